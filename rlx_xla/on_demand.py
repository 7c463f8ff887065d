"""Names of a package that load on first use, so that a process imports what it needs only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any


def found_in(package: str, name: str, homes: Mapping[str, str]) -> Any:
    """What a package's ``__getattr__`` returns; the package keeps it.

    Args:
        package: its full name.
        name: that was asked for; another one than those in `homes` means a submodule.
        homes: name → full name of the module that has it.

    Raises:
        AttributeError: there is neither.
    """
    home = homes.get(name)
    if home is not None:
        found: Any = getattr(importlib.import_module(home), name)
    elif not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
        found = importlib.import_module(f"{package}.{name}")
    else:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    sys.modules[package].__dict__[name] = found
    return found
