"""CUDA C++ text to PTX, by NVIDIA's run-time compiler through ctypes: no compiler at install.

PTX is kept on disk under the digest of everything that went into it, so a kernel compiles once
per machine, architecture and shape. A file that is damaged is compiled again.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from rlx.errors import KernelError
from rlx_xla.kernels.ffi import Unavailable as Unavailable

_SUCCESS = 0
_PATTERN = "libnvrtc.so*"


@final
@dataclass(frozen=True)
class Compiler:
    """The loaded library.

    Attributes:
        path: the file it was loaded from.
        version: (major, minor) of CUDA.
    """

    path: Path
    version: tuple[int, int]
    _library: ctypes.CDLL = field(repr=False, compare=False)

    def ptx(self, source: str, *, name: str, architecture: str, defines: Mapping[str, int]) -> str:
        """Compile, or read what an earlier compile left.

        Args:
            source: CUDA C++ without includes.
            name: shown in messages, such as ``selective_scan.cu``.
            architecture: virtual architecture, such as ``compute_90``.
            defines: macros with their values.

        Raises:
            KernelError: the source does not compile; the compiler's log is quoted.
        """
        options = [
            f"--gpu-architecture={architecture}",
            "-default-device",
            *(f"-D{macro}={value}" for macro, value in sorted(defines.items())),
        ]
        text = "\0".join([f"{self.version}", name, source, *options])
        digest = hashlib.sha256(text.encode()).hexdigest()
        kept = _cache_folder() / f"{digest}.ptx"
        found = _read(kept)
        if found is None:
            found = self._compile(source, name, options)
            _write(kept, found)
        return found

    def _compile(self, source: str, name: str, options: Sequence[str]) -> str:
        library = self._library
        program = ctypes.c_void_p()
        arguments = (ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        self._check(library.nvrtcCreateProgram(*arguments), name)
        try:
            words = (ctypes.c_char_p * len(options))(*(word.encode() for word in options))
            status = library.nvrtcCompileProgram(program, len(options), words)
            if status != _SUCCESS:
                log = self._text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
                raise KernelError(
                    f"kernel source {name!r} is required to compile for {' '.join(options)}; "
                    f"NVRTC says:\n{log}"
                )
            return self._text(program, "nvrtcGetPTXSize", "nvrtcGetPTX")
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, size_of: str, get: str) -> str:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, size_of)(program, ctypes.byref(size)), size_of)
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, get)(program, buffer), get)
        return buffer.value.decode()

    def _check(self, status: int, what: str) -> None:
        if status != _SUCCESS:
            raise KernelError(f"NVRTC is required to succeed; {what} gave status {status}.")


@functools.cache
def load() -> Compiler | Unavailable:
    """The compiler that comes with CUDA or with JAX's CUDA wheels, or why there is none."""
    tried: list[str] = []
    for path in _candidates():
        # NVRTC opens its built-in functions by bare name, so they are loaded first.
        for builtins in sorted(path.parent.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            tried.append(str(error))
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        if library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == _SUCCESS:
            return Compiler(path, (major.value, minor.value), library)
    found = f" ({'; '.join(tried)})" if tried else ""
    return Unavailable(
        f"no NVRTC library was found{found}: install nvidia-cuda-nvrtc, which comes with "
        "jax[cuda12] and jax[cuda13]"
    )


def _candidates() -> list[Path]:
    found: list[Path] = []
    for folder in map(Path, sys.path):
        found += sorted(folder.glob(f"nvidia/*/lib/{_PATTERN}"), reverse=True)
    found += sorted(Path("/usr/local").glob(f"cuda*/lib64/{_PATTERN}"), reverse=True)
    return [path for path in found if path.is_file()]


def _cache_folder() -> Path:
    return Path.home() / ".cache" / "rlx" / "ptx"


def _read(path: Path) -> str | None:
    """The text, if it is whole: its first line is a comment with the digest of the rest."""
    try:
        first, _, rest = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return rest if first == _seal(rest) else None


def _write(path: Path, text: str) -> None:
    """Keep the text; a folder that cannot be written costs a compile the next time, no more."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"{_seal(text)}\n{text}")
        Path(name).replace(path)
    except OSError:
        return


def _seal(text: str) -> str:
    return f"// sha256 {hashlib.sha256(text.encode()).hexdigest()}"
