"""The library of C++ kernels: found, checked against the running jaxlib, registered on demand.

A library that cannot be used is not an error here: `load` says why in an `Unavailable`, which
becomes the reason of every refusal that depends on it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import rlx_xla.kernels
from rlx.errors import KernelError
from rlx_xla._jax_compat import ffi as jax_ffi

_BUILD_INFO = "build_info.json"
_REBUILD = "Reinstall rlx-xla with a C++ compiler (g++ or clang++) on PATH"


@final
@dataclass(frozen=True)
class Unavailable:
    """Why a library that kernels need cannot be used, as one sentence without a full stop."""

    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class LoadedLibrary:
    """A library whose handlers may be registered.

    Attributes:
        path: the file it was loaded from.
        version: package version and digest of the sources, ``"0.1.0+1a2b3c4d5e6f"``.
        api_version: the FFI API (major, minor) that it was built against.
    """

    path: Path
    version: str
    api_version: tuple[int, int]
    _library: ctypes.CDLL = field(repr=False, compare=False)
    _registered: dict[str, str] = field(default_factory=dict[str, str], repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def has(self, symbol: str) -> bool:
        """Whether the library exports a handler of this name."""
        return hasattr(self._library, symbol)

    def target(self, symbol: str) -> str:
        """Return the custom-call target of a handler; the first call registers it.

        The target holds the digest of the sources, so that a program kept in a compilation
        cache is never run with a handler built from other sources.

        Args:
            symbol: the exported name, ``"rlx_argreduce_f32_cpu"``. Its last part is the platform.

        Returns:
            The name for `stablehlo.custom_call`.

        Raises:
            KernelError: the library has no such symbol.
        """
        with self._lock:
            known = self._registered.get(symbol)
            if known is not None:
                return known
            if not self.has(symbol):
                raise KernelError(
                    f"kernel library: a handler named {symbol!r} is required; {self.path.name} "
                    f"{self.version} has none. {_REBUILD}, or check the symbol's spelling."
                )
            target = f"{symbol}.{self.version.partition('+')[2]}"
            jax_ffi.register_handler(target, getattr(self._library, symbol), platform="cpu")
            self._registered[symbol] = target
            return target


def native_directories() -> list[Path]:
    """Return where an install or `make native` put the library, the most recent build first.

    An editable install has the sources in one directory and what was built in another; both are
    on the package's path.
    """
    found = [Path(entry) / "native" for entry in rlx_xla.kernels.__path__]
    found = [directory for directory in found if (directory / _BUILD_INFO).is_file()]
    return sorted(found, key=lambda d: max(f.stat().st_mtime for f in d.iterdir()), reverse=True)


def check(path: Path) -> LoadedLibrary | Unavailable:
    """Load one library and decide whether its handlers may be registered.

    An incompatible handler makes XLA's whole CPU backend fail to start, so that nothing is
    registered unless the versions are known to fit.

    Args:
        path: the shared library.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return Unavailable(f"{path.name} does not load ({error})")
    for name in ("rlx_kernels_version", "rlx_kernels_missing_cpu_feature"):
        getattr(library, name).restype = ctypes.c_char_p
    missing = library.rlx_kernels_missing_cpu_feature().decode()
    if missing:
        return Unavailable(f"this CPU lacks {missing}, which {path.name} is built for")
    ours = (library.rlx_kernels_ffi_api_major(), library.rlx_kernels_ffi_api_minor())
    problem = _api_problem(path, ours)
    if problem is not None:
        return problem
    version = library.rlx_kernels_version().decode()
    return LoadedLibrary(path=path, version=version, api_version=ours, _library=library)


def _api_problem(path: Path, ours: tuple[int, int]) -> Unavailable | None:
    """Why a library built against an FFI API cannot be used with the running jaxlib, or None."""
    theirs = jax_ffi.runtime_api_version()
    if theirs is None:
        return Unavailable("the installed jaxlib does not say which XLA FFI version it has")
    if ours[0] != theirs[0] or ours > theirs:
        return Unavailable(
            f"{path.name} is built for XLA FFI {ours[0]}.{ours[1]} and the installed jaxlib has "
            f"{theirs[0]}.{theirs[1]}"
        )
    return None


@functools.cache
def open_library(path: Path, api_version: tuple[int, int]) -> LoadedLibrary | Unavailable:
    """Load another package's library of handlers, for the field ``library`` of its kernels.

    The answer is kept. A change of the file gives its custom calls other targets.

    Args:
        path: the shared library; its handlers are exported C functions.
        api_version: XLA_FFI_API_MAJOR and XLA_FFI_API_MINOR of the headers it was built with.
    """
    if not path.is_file():
        return Unavailable(f"{path.name} is not built")
    problem = _api_problem(path, api_version)
    if problem is not None:
        return problem
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return Unavailable(f"{path.name} does not load ({error})")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return LoadedLibrary(
        path=path, version=f"{path.stem}+{digest}", api_version=api_version, _library=library
    )


def find() -> LoadedLibrary | Unavailable:
    """Look for the library and check it; `load` keeps the answer."""
    directories = native_directories()
    if not directories:
        return Unavailable("the C++ kernels are not built (run `make native` in a source tree)")
    info = json.loads((directories[0] / _BUILD_INFO).read_text())
    if not info["library"]:
        return Unavailable(info["reason"])
    path = directories[0] / info["library"]
    if not path.is_file():
        return Unavailable(f"{path.name} is missing from {directories[0]}")
    return check(path)


@functools.cache
def load() -> LoadedLibrary | Unavailable:
    """Return the library of C++ kernels, or why there is none. The answer is kept."""
    return find()
