"""Every pass that the compiler has."""

from __future__ import annotations

import importlib
import pkgutil

import rlx.passes
from rlx.passes.base import AbstractPass


def registered_passes() -> list[type[AbstractPass]]:
    """The classes of all modules of passes."""
    for module in pkgutil.walk_packages(rlx.passes.__path__, "rlx.passes."):
        importlib.import_module(module.name)
    found: list[type[AbstractPass]] = []
    pending: list[type[AbstractPass]] = [AbstractPass]
    while pending:
        classes = pending.pop().__subclasses__()
        found += [c for c in classes if c.__module__.startswith("rlx.passes.")]
        pending += classes
    return found
