"""JAX's persistent compilation cache, which our compiles share.

The cache is keyed by module, options, devices and jaxlib; a directory may be shared by many
processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import jax
from jax.experimental.compilation_cache import compilation_cache

from rlx.errors import CompileError
from rlx_xla._jax_compat import client as jax_client


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
    """
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
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
    return CacheInfo(directory, entries, sum(file.stat().st_size for file in files))


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
