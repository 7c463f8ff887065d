"""Compiled programs on disk, so that a second process compiles nothing.

One file per program, named by its key: what was compiled (the LIR's fingerprint and a digest of
the StableHLO that it became, kernels' digests included), for which target, by which versions and
with which options. A file is written under another name and then moved, holds a checksum, and is
taken for missing when anything about it is wrong. Programs are machine code: the directory must be
the user's own.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rlx.errors import CompileError

SUFFIX = ".rlxprog"
MAX_BYTES = 2 << 30
"""Largest size of all programs of a directory, in bytes; the least recently used go first."""

_MAGIC = b"RLXPROG1"
_HEAD = len(_MAGIC) + 8 + 32
_TEXT_LIMIT = 256 << 10
"""Most characters of a graph's text that are kept for comparing keys."""


@final
@dataclass(frozen=True)
class ProgramKey:
    """What a program depends on.

    Attributes:
        parts: name → text: ``lir``, ``program``, ``target``, ``versions``, ``options`` ….
        graph: text of the graph, for telling keys apart; not part of the key.
    """

    parts: Mapping[str, str]
    graph: str = ""

    @property
    def digest(self) -> str:
        """The name of the program's file."""
        text = json.dumps(dict(sorted(self.parts.items())))
        return hashlib.sha256(text.encode()).hexdigest()[:40]


@final
@dataclass(frozen=True)
class ProgramEntry:
    """One program on disk.

    Attributes:
        key: its name.
        name: of the graph.
        nbytes: size of the file.
        used: when it was last used, in seconds since 1970.
        seconds: what its compile took.
        parts: see ``ProgramKey``.
        graph: see ``ProgramKey``.
    """

    key: str
    name: str
    nbytes: int
    used: float
    seconds: float
    parts: Mapping[str, str]
    graph: str


@final
class ProgramCache:
    """The programs of one directory; any number of processes may share it."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        """Look at a directory; it is made when the first program is written."""
        self.directory = directory
        self._max_bytes = max_bytes

    def get(self, key: ProgramKey) -> bytes | None:
        """The program of a key; None where there is none that is whole."""
        path = self._path(key.digest)
        found = _read(path)
        if found is None:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        meta, program = found
        return program if meta.get("parts") == dict(key.parts) else None

    def put(self, key: ProgramKey, program: bytes, name: str, seconds: float) -> None:
        """Keep a program; a full disk or a directory that cannot be written keeps nothing."""
        meta = {
            "name": name,
            "seconds": seconds,
            "parts": dict(key.parts),
            "graph": key.graph[:_TEXT_LIMIT],
        }
        head = json.dumps(meta).encode()
        body = len(head).to_bytes(8, "little") + head + program
        data = _MAGIC + len(body).to_bytes(8, "little") + hashlib.sha256(body).digest() + body
        if len(data) > self._max_bytes:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self.directory, suffix=".part")
        except OSError:
            return
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(temporary).replace(self._path(key.digest))
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            return
        self._shrink()

    def drop(self, key: ProgramKey) -> None:
        """Forget a program that did not load."""
        with contextlib.suppress(OSError):
            self._path(key.digest).unlink()

    def entries(self) -> list[ProgramEntry]:
        """Every program that is whole, most recently used first."""
        found: list[ProgramEntry] = []
        for path, size, used in self._files():
            entry = _read(path)
            if entry is None:
                continue
            meta = entry[0]
            found.append(
                ProgramEntry(
                    path.name.removesuffix(SUFFIX),
                    str(meta.get("name", "")),
                    size,
                    used,
                    float(meta.get("seconds", 0.0)),
                    {str(k): str(v) for k, v in dict(meta.get("parts", {})).items()},
                    str(meta.get("graph", "")),
                )
            )
        return sorted(found, key=lambda e: -e.used)

    def clear(self) -> int:
        """Delete every program and what half-written ones left; return the bytes freed."""
        freed = 0
        leftovers = [(p, p.stat().st_size, 0.0) for p in self.directory.glob("*.part")]
        for path, size, _ in [*self._files(), *leftovers]:
            with contextlib.suppress(OSError):
                path.unlink()
                freed += size
        return freed

    def size(self) -> tuple[int, int]:
        """Number of programs and their bytes."""
        files = list(self._files())
        return len(files), sum(size for _, size, _ in files)

    def find(self, start: str) -> ProgramEntry:
        """The program whose key begins with a text.

        Raises:
            CompileError: none, or several.
        """
        entries = self.entries()
        found = [entry for entry in entries if entry.key.startswith(start)]
        if len(found) == 1:
            return found[0]
        listed = ", ".join(entry.key[:12] for entry in found or entries) or "none"
        what, advice = "has several", "Give more characters."
        if not found:
            what, advice = "has none; its keys", "List them with rlx-xla cache list."
        raise CompileError(
            f"compile cache: one key that begins with {start!r} is required; {self.directory} "
            f"{what}: {listed}. {advice}"
        )

    def _path(self, digest: str) -> Path:
        return self.directory / f"{digest}{SUFFIX}"

    def _files(self) -> Iterator[tuple[Path, int, float]]:
        if not self.directory.is_dir():
            return
        for path in self.directory.glob(f"*{SUFFIX}"):
            try:
                stat = path.stat()
            except OSError:  # another process deleted it meanwhile
                continue
            yield path, stat.st_size, stat.st_mtime

    def _shrink(self) -> None:
        files = sorted(self._files(), key=lambda file: file[2])
        total = sum(size for _, size, _ in files)
        for path, size, _ in files:
            if total <= self._max_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


def explain(one: ProgramEntry, other: ProgramEntry) -> list[str]:
    """Why two keys differ, in lines: the parts that do, and the lines of the graph that do."""
    lines: list[str] = []
    for name in sorted({*one.parts, *other.parts}):
        old, new = one.parts.get(name, "none"), other.parts.get(name, "none")
        if old != new:
            lines.append(f"{name}: {_short(old)} → {_short(new)}")
    difference = difflib.unified_diff(
        one.graph.splitlines(), other.graph.splitlines(), one.name, other.name, lineterm="", n=0
    )
    lines += [line for line in difference if not line.startswith(("---", "+++", "@@"))]
    return lines


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}…"


def _read(path: Path) -> tuple[dict[str, Any], bytes] | None:
    """Metadata and program of a file; None when it is missing or not whole."""
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            return None
        with path.open("rb") as file:
            start = file.read(_HEAD + 8)
            if len(start) < _HEAD + 8 or not start.startswith(_MAGIC):
                return None
            data = start + file.read()
    except OSError:
        return None
    size = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 8], "little")
    body = data[_HEAD:]
    if len(body) != size or hashlib.sha256(body).digest() != data[_HEAD - 32 : _HEAD]:
        return None
    count = int.from_bytes(body[:8], "little")
    try:
        meta = json.loads(body[8 : 8 + count])
    except (ValueError, RecursionError):
        return None
    if not isinstance(meta, dict):
        return None
    parts, seconds = meta.get("parts", {}), meta.get("seconds", 0.0)
    known = isinstance(parts, dict) and isinstance(seconds, int | float)
    return (meta, body[8 + count :]) if known else None
