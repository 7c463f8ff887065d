"""From what the caller has (text, bytecode, artifact, export) to checked StableHLO text.

Bytes are read by a child process with limits on time and memory: damaged bytecode crashes or
hangs MLIR's reader, damaged text only makes it complain.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from rlx.errors import FormatError, TraceError
from rlx.ir.foreign_files import START, kind_of, wrong_file
from rlx.types import TensorType, as_type
from rlx_xla._jax_compat import export, mlir, mlir_child
from rlx_xla.lowering import foreign

WALL_SECONDS = 120.0
CPU_SECONDS = 60
CHILD_BYTES = 4 * 2**30
"""Limits of the child process: seconds by the clock and of processor time, bytes of memory."""

MAX_SOURCE = 2**30
"""Bytes; a larger file is refused unread."""

MAX_DEPTH = 160
"""Brackets that may be open at once: MLIR's parser and our walk go down as deep as they do."""

_PORTABLE = b"StableHLO_v"
_BRACKETS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[\[({<]|[\])}>]')


@final
@dataclass(frozen=True)
class Source:
    """What is imported.

    Attributes:
        text: StableHLO text, checked for sizes.
        platforms: what an export with several platforms was made for, in the order of its index;
            empty otherwise.
    """

    text: str
    platforms: tuple[str, ...] = ()


def read(source: Any, shapes: Sequence[Any] | None) -> Source:
    """Read a source of any kind.

    Args:
        source: text, bytes, or a ``jax.export.Exported``.
        shapes: for a source with dynamic shapes, a static type for each argument.

    Raises:
        FormatError: the source is of no known kind, or damaged, or too large.
        TraceError: shapes are needed, or of no use.
    """
    kind, data, platforms = _classify(source)
    types = None if shapes is None else [_mlir_type(i, s) for i, s in enumerate(shapes)]
    text = data.decode() if kind == "text" else _convert(kind, data, types)
    check(text)
    if kind == "text" and types is not None:
        text = _convert(kind, data, types)
        check(text)
    return Source(text, platforms if len(platforms) > 1 else ())


def check(text: str) -> None:
    """Refuse text that is too long, too deep, or claims absurd sizes.

    Raises:
        FormatError: it does one of these.
    """
    foreign.check_text(text, "from_stablehlo")
    depth = 0
    for match in _BRACKETS.finditer(text):
        token = match.group()
        if len(token) == 1:
            depth += 1 if token in "[({<" else -1
            if depth > MAX_DEPTH:
                raise FormatError(
                    f"from_stablehlo: at most {MAX_DEPTH} brackets may be open at once; found more "
                    f"at character {match.start():,}. Nest loops and calls less deeply."
                )


def _classify(source: Any) -> tuple[str, bytes, tuple[str, ...]]:
    if isinstance(source, export.Exported):
        return "portable", bytes(source.mlir_module_serialized), tuple(source.platforms)
    if isinstance(source, str):
        return "text", source.encode(), ()
    if not isinstance(source, bytes | bytearray | memoryview):
        raise FormatError(
            "from_stablehlo: the source must be text, bytes or a jax.export.Exported; got "
            f"{type(source).__name__}. Pass str(lowered.compiler_ir()), for instance."
        )
    data = bytes(source)
    if len(data) > MAX_SOURCE:
        raise FormatError(
            f"from_stablehlo: at most {MAX_SOURCE:,} bytes are read; got {len(data):,}."
        )
    if not data or (_is_text(data) and kind_of(data[:START])[0] not in ("", "StableHLO text")):
        reading = export.FOREIGN
        raise wrong_file(reading.where, reading.wanted, reading.what, data, "Write it again.")
    if data.startswith(mlir.BYTECODE_MAGIC):
        return _bytecode_kind(data), data, ()
    if _is_text(data):
        return "text", data, ()
    module, platforms = export.read_artifact(data)
    return _bytecode_kind(module), module, platforms


def _bytecode_kind(data: bytes) -> str:
    # Artifacts of 2023 do not name their version, but all name the dialect.
    return "portable" if _PORTABLE in data[:32] or b"vhlo" in data else "bytecode"


def _is_text(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return "\0" not in text


def _mlir_type(index: int, spec: Any) -> str:
    type_ = as_type(spec) if isinstance(spec, str | TensorType) else None
    if type_ is None or not type_.is_static:
        raise TraceError(
            f"from_stablehlo: shapes are one static type for each argument, such as 'f32[8, 64]'; "
            f"entry {index} is {spec!r}. Give every size as a number."
        )
    return mlir.tensor_type_text([int(str(d)) for d in type_.shape], type_.dtype.numpy)


def _convert(kind: str, data: bytes, types: Sequence[str] | None) -> str:
    """Let a child process read a module and print it.

    Raises:
        FormatError: the child refuses, crashes, hangs or prints too much.
    """
    head: Mapping[str, Any] = {
        "kind": kind,
        "types": types,
        "memory": CHILD_BYTES,
        "seconds": CPU_SECONDS,
        "characters": foreign.MAX_TEXT,
    }
    command = [sys.executable, "-P", mlir_child.__file__]
    what = {"portable": "a portable artifact", "bytecode": "MLIR bytecode", "text": "text"}[kind]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(head).encode() + b"\n" + data,
            capture_output=True,
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FormatError(
            f"from_stablehlo: {what} of {len(data):,} bytes must be readable in "
            f"{WALL_SECONDS:.0f} s; MLIR's reader was still busy. The file is damaged."
        ) from error
    if done.returncode == 0:
        return done.stdout.decode()
    words = done.stderr.decode(errors="replace").strip()[-1500:]
    if done.returncode == mlir_child.REFUSED:
        hint = "Write it again, or with an older version of StableHLO."
        if types is not None:
            hint = "Check that shapes has the type of every argument, in order."
        raise FormatError(f"from_stablehlo: {what} must be valid; MLIR says: {words}. {hint}")
    raise FormatError(
        f"from_stablehlo: {what} of {len(data):,} bytes must be readable within "
        f"{CPU_SECONDS} s and {CHILD_BYTES:,} bytes of memory; MLIR's reader ended with code "
        f"{done.returncode}. The file is damaged."
    )
