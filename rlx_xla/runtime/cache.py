"""The compile cache: JAX's persistent one, and beside it programs of ours that load as they are.

Where JAX's cache is on, whole programs of RLX are kept in the folder ``rlx`` of its directory (see
``program_cache``): a second process loads them and compiles nothing. Programs with callbacks, and
those that the platform cannot serialise, are left to JAX's cache. A directory may be shared by
many processes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import jax
from jax.experimental.compilation_cache import compilation_cache

from rlx.errors import CompileError, RunError
from rlx.ir.plan import Lir
from rlx_xla._jax_compat import client as jax_client
from rlx_xla.runtime.program_cache import ProgramCache, ProgramKey


@final
@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What the persistent compilation cache holds.

    Attributes:
        directory: where it is, or None when the cache is off.
        entries: number of compiled programs.
        nbytes: size of all files, in bytes.
    """

    directory: Path | None
    entries: int
    nbytes: int

    def __str__(self) -> str:
        if self.directory is None:
            return "compile cache: off"
        mebibytes = self.nbytes / 2**20
        return f"compile cache: {self.directory}, {self.entries} programs, {mebibytes:.1f} MiB"


def enable_cache(directory: str | Path, *, min_compile_seconds: float = 0.0) -> None:
    """Keep compiled programs in a directory, for this process and those after it.

    Args:
        directory: made if it does not exist.
        min_compile_seconds: programs that compile faster than this, in seconds, are not kept.

    Raises:
        RunError: the directory cannot be made.
    """
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"enable_cache: a directory that can be made and written to is required; got {path}: "
            f"{error.strerror}. Name another."
        ) from error
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float(min_compile_seconds))
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    compilation_cache.reset_cache()


def disable_cache() -> None:
    """Stop reading and writing the persistent cache; its files stay."""
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


def cache_info() -> CacheInfo:
    """Return directory, number of programs and size of the persistent cache."""
    directory = _directory()
    files = [] if directory is None else _files(directory)
    entries = sum(1 for file in files if not file.name.endswith("-atime"))
    nbytes = sum(file.stat().st_size for file in files)
    programs = program_cache()
    if programs is not None:
        count, size = programs.size()
        entries, nbytes = entries + count, nbytes + size
    return CacheInfo(directory, entries, nbytes)


def program_cache(directory: str | Path | None = None) -> ProgramCache | None:
    """The programs of a cache's directory, of the one in use if None; None while it is off."""
    found = _directory() if directory is None else Path(directory)
    return None if found is None else ProgramCache(found / "rlx")


def program_key(
    lir: Lir, program: str, device: Any, roles: Mapping[str, Any], options: Mapping[str, Any]
) -> ProgramKey:
    """What a compiled program depends on.

    Args:
        lir: what is compiled.
        program: its StableHLO, without locations.
        device: where it runs.
        roles: how arguments and results are used: bound, donated, resident ….
        options: XLA's flags.
    """
    parts = {
        "lir": lir.fingerprint(),
        "program": hashlib.sha256(program.encode()).hexdigest(),
        **target_parts(device),
        "roles": json.dumps(roles, sort_keys=True, default=str),
        "options": json.dumps(options, sort_keys=True, default=str),
        "flags": jax_client.compile_options_digest(device, options),
    }
    return ProgramKey(parts, str(lir.graph))


def target_parts(device: Any) -> dict[str, str]:
    """Parts of a key that say which device and versions a program is of."""
    versions = {name: _version(name) for name in ("jax", "jaxlib", "rlx-xla")}
    client = device.client
    target = [client.platform, client.platform_version, device.device_kind, _processor()]
    return {
        "target": " · ".join(str(t).split("\n")[0] for t in target),
        "versions": ", ".join(f"{n} {v}" for n, v in versions.items()),
    }


def min_compile_seconds() -> float:
    """Programs that compile faster are not kept."""
    return jax_client.least_cached_seconds()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "from source"


@functools.cache
def _processor() -> str:
    """Digest of what this processor can do: programs for the CPU use it all."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor(), platform.machine()]
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    model = next((line for line in lines if line.startswith("model name")), lines[0])
    return hashlib.sha256(f"{model}\n{flags}".encode()).hexdigest()[:16]


def clear_cache() -> int:
    """Delete every program of the persistent cache.

    Returns:
        The bytes that became free.

    Raises:
        CompileError: the cache is off, so there is no directory to clear.
    """
    directory = _directory()
    if directory is None:
        raise CompileError(
            "compile cache: must be on to be cleared; it is off. "
            "Set jax_compilation_cache_dir or call enable_cache(directory)."
        )
    freed = 0
    for file in _files(directory):
        freed += file.stat().st_size
        file.unlink()
    programs = program_cache()
    if programs is not None:
        freed += programs.clear()
    compilation_cache.reset_cache()
    return freed


def _directory() -> Path | None:
    configured = jax_client.compilation_cache_directory()
    return Path(configured) if configured else None


def _files(directory: Path) -> list[Path]:
    """Return the cache's own files; anything else in the directory is left alone."""
    return [
        file
        for file in directory.rglob("*")
        if file.is_file() and (file.name.endswith(("-cache", "-atime")))
    ]
