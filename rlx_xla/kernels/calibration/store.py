"""Where measured bounds are kept: one small JSON file for each set of CPU features.

    ~/.cache/rlx/kernels/<features>.json
    {"format": 1, "features": "x86_64-avx2-avx512", "library": "0.1.0+1a2b3c4d5e6f",
     "bounds": {"top_k.cpu.ffi/f32": 64}}

A file is read as data only. One that is too large, is no such JSON, has another format, belongs
to other features or to kernels built from other sources, or holds anything but whole numbers in
range is left aside as a whole, with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

from rlx.errors import RunError
from rlx_xla import machine
from rlx_xla.kernels import ffi

FORMAT = 1
MAX_BYTES = 1 << 16
NEVER = 2**62
"""A bound that no size reaches."""

_FEATURES = (
    ("avx2", ("avx2", "fma", "f16c")),
    ("avx512", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    ("bf16", ("avx512_bf16",)),
    ("vnni", ("avx512_vnni",)),
)


@final
@dataclass(frozen=True)
class Calibration:
    """What was read.

    Attributes:
        bounds: name → size; empty where nothing is used.
        problem: why a file that is there is not used, as a clause; empty otherwise.
    """

    bounds: Mapping[str, int]
    problem: str = ""


def features() -> str:
    """The set of CPU features that kernels tell apart, ``"x86_64-avx2-avx512"``."""
    found = machine.cpu().features
    names = [name for name, needed in _FEATURES if found.issuperset(needed)]
    return "-".join([platform.machine() or "unknown", *names])


def path() -> Path:
    """The file of this machine's features; it need not exist."""
    return Path.home() / ".cache" / "rlx" / "kernels" / f"{features()}.json"


def library_version() -> str:
    """The version of the kernels that are measured; empty where there are none."""
    library = ffi.load()
    return "" if isinstance(library, ffi.Unavailable) else library.version


def read() -> Calibration:
    """Read this machine's file; whatever it holds, nothing is raised."""
    try:
        file = path()
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, RuntimeError):  # no file, or no home
        return Calibration({})
    except OSError as error:
        return Calibration({}, f"it cannot be read ({error.strerror})")
    if len(data) > MAX_BYTES:
        return Calibration({}, f"it is larger than {MAX_BYTES} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return Calibration({}, "it is not JSON")
    return _checked(found)


def _checked(found: Any) -> Calibration:
    if not isinstance(found, dict):
        return Calibration({}, "it is not an object")
    content = cast("dict[str, Any]", found)
    for name, wanted in (
        ("format", FORMAT),
        ("features", features()),
        ("library", library_version()),
    ):
        value = content.get(name)
        if type(value) is not type(wanted) or value != wanted:
            return Calibration({}, f"its {name} is {_shown(value)} and not {wanted!r}")
    bounds = content.get("bounds")
    if not isinstance(bounds, dict):
        return Calibration({}, "it has no object of bounds")
    sizes = cast("dict[str, Any]", bounds)
    for name, size in sizes.items():
        if type(size) is not int or not 0 <= size <= NEVER:
            return Calibration({}, f"the bound {_shown(name)} is {_shown(size)}")
    return Calibration(sizes)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def write(bounds: Mapping[str, int]) -> Path:
    """Write this machine's file, whole or not at all; returns where it is.

    Args:
        bounds: name → size.

    Raises:
        RunError: the folder cannot be written.
    """
    file = path()
    content = {
        "format": FORMAT,
        "features": features(),
        "library": library_version(),
        "bounds": dict(sorted(bounds.items())),
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(content, stream, indent=1)
            Path(name).replace(file)
        except OSError:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise RunError(
            f"calibration: a folder that can be written is required for {file}; got "
            f"{error.strerror}. Free space there, or set HOME to another folder."
        ) from error
    return file
