"""Passes, and ``run`` to apply them by hand. Those that need op families load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlx.passes.base import AbstractPass as AbstractPass
from rlx.passes.base import Fixpoint as Fixpoint
from rlx.passes.base import PassContext as PassContext
from rlx.passes.base import PassRecord as PassRecord
from rlx.passes.base import Pipeline as Pipeline
from rlx.passes.base import run as run
from rlx.passes.decompose import Decompose as Decompose

if TYPE_CHECKING:
    from rlx.passes.canonicalize import Canonicalize as Canonicalize
    from rlx.passes.eliminate import EliminateCommonSubexpressions as EliminateCommonSubexpressions
    from rlx.passes.fold_constants import FoldConstants as FoldConstants
    from rlx.passes.inline_calls import InlineCalls as InlineCalls
    from rlx.passes.pipelines import mir_pipeline as mir_pipeline
    from rlx.passes.specialize import Specialize as Specialize

_LAZY = {
    "Canonicalize": "canonicalize",
    "EliminateCommonSubexpressions": "eliminate",
    "FoldConstants": "fold_constants",
    "InlineCalls": "inline_calls",
    "Specialize": "specialize",
    "mir_pipeline": "pipelines",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'rlx.passes' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rlx.passes.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
