"""Finding the place where something goes wrong: in a pass, in a compile, in a run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.debug.bisect import Bisection as Bisection
    from rlx.debug.bisect import bisect as bisect
    from rlx.debug.nan import Culprit as Culprit
    from rlx.debug.nan import localize_nan as localize_nan

_LAZY = {
    "Bisection": "bisect",
    "Culprit": "nan",
    "bisect": "bisect",
    "localize_nan": "nan",
}
"""Loaded at first use: they need the op families, which ``import rlx`` leaves out."""


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'rlx.debug' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"rlx.debug.{module}"), name)
    globals()[name] = found  # the submodule of the same name was put there by its import
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
