"""JAX's door to custom calls: where the FFI headers are and how a handler is registered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax.ffi

_VERSION = re.compile(r"^#define XLA_FFI_API_(MAJOR|MINOR) (\d+)$", re.MULTILINE)


def runtime_api_version() -> tuple[int, int] | None:
    """Return the FFI API version (major, minor) of the running jaxlib.

    The version is read from the headers that jaxlib ships, since no function gives it.

    Returns:
        The version, or None where the headers are missing or do not say it.
    """
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    if not header.is_file():
        return None
    found = {name: int(number) for name, number in _VERSION.findall(header.read_text())}
    if found.keys() != {"MAJOR", "MINOR"}:
        return None
    return found["MAJOR"], found["MINOR"]


def register_handler(target: str, function: Any, *, platform: str) -> None:
    """Register a C function as the handler of a custom call.

    Args:
        target: the name that `stablehlo.custom_call` uses.
        function: a function of a `ctypes` library; the library must stay loaded.
        platform: "cpu", "CUDA" or "ROCM".
    """
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform=platform)
