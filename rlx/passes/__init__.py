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
    from rlx.passes.bind_params import BindParams as BindParams
    from rlx.passes.bind_rng import BindRng as BindRng
    from rlx.passes.canonicalize import Canonicalize as Canonicalize
    from rlx.passes.eliminate import EliminateCommonSubexpressions as EliminateCommonSubexpressions
    from rlx.passes.eliminate_dead import DropUnusedParams as DropUnusedParams
    from rlx.passes.eliminate_dead import EliminateDeadCode as EliminateDeadCode
    from rlx.passes.fold_constants import FoldConstants as FoldConstants
    from rlx.passes.fuse import Fuse as Fuse
    from rlx.passes.fuse import UnfuseElementwiseRegions as UnfuseElementwiseRegions
    from rlx.passes.hoist import HoistInvariants as HoistInvariants
    from rlx.passes.inline_calls import InlineCalls as InlineCalls
    from rlx.passes.lint_numerics import LintNumerics as LintNumerics
    from rlx.passes.matmul_precision import RaiseMatmulPrecision as RaiseMatmulPrecision
    from rlx.passes.pipelines import mir_pipeline as mir_pipeline
    from rlx.passes.precision import ApplyPrecision as ApplyPrecision
    from rlx.passes.prepare import split_param_invariant as split_param_invariant
    from rlx.passes.protect_values import ProtectValues as ProtectValues
    from rlx.passes.quantize import InsertQDQ as InsertQDQ
    from rlx.passes.quantize import InsertScaledMatmul as InsertScaledMatmul
    from rlx.passes.quantize import PropagateQuantization as PropagateQuantization
    from rlx.passes.recognize import Recognize as Recognize
    from rlx.passes.roll import RollBlocks as RollBlocks
    from rlx.passes.specialize import Specialize as Specialize
    from rlx.passes.unroll import UnrollScans as UnrollScans

_LAZY = {
    "ApplyPrecision": "precision",
    "BindParams": "bind_params",
    "BindRng": "bind_rng",
    "Canonicalize": "canonicalize",
    "DropUnusedParams": "eliminate_dead",
    "EliminateCommonSubexpressions": "eliminate",
    "EliminateDeadCode": "eliminate_dead",
    "FoldConstants": "fold_constants",
    "Fuse": "fuse",
    "HoistInvariants": "hoist",
    "InlineCalls": "inline_calls",
    "InsertQDQ": "quantize",
    "InsertScaledMatmul": "quantize",
    "LintNumerics": "lint_numerics",
    "PropagateQuantization": "quantize",
    "ProtectValues": "protect_values",
    "RaiseMatmulPrecision": "matmul_precision",
    "Recognize": "recognize",
    "RollBlocks": "roll",
    "Specialize": "specialize",
    "UnfuseElementwiseRegions": "fuse",
    "UnrollScans": "unroll",
    "mir_pipeline": "pipelines",
    "split_param_invariant": "prepare",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'rlx.passes' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rlx.passes.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
