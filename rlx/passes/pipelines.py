"""The order of the compiler: every named pipeline on one screen.

A tuple's order is the order of work. Where a line's position matters, it says why.
"""

from __future__ import annotations

from rlx.options.compile import CompileOptions
from rlx.passes.base import AbstractPass, Pipeline
from rlx.passes.canonicalize import Canonicalize
from rlx.passes.eliminate import EliminateCommonSubexpressions
from rlx.passes.fold_constants import FoldConstants
from rlx.passes.inline_calls import InlineCalls
from rlx.passes.specialize import Specialize


def mir_pipeline(options: CompileOptions) -> Pipeline:
    """MIR → MIR, before implementations are chosen."""
    passes: tuple[AbstractPass, ...] = (
        # First: a call hides what is inside it from every other pass.
        InlineCalls(),
        # Early: later passes match the plain forms that this one leaves.
        Canonicalize(),
        # After canonicalize, which makes equal expressions look equal.
        EliminateCommonSubexpressions(),
        # After elimination, so that one constant is folded once.
        *((FoldConstants(),) if options.constant_folding else ()),
        # After the forms have settled, before the clean-up of what it leaves.
        Specialize(),
        # Again: folding leaves new identities (x + 0 with a folded 0), known places and choices.
        Canonicalize(),
        EliminateCommonSubexpressions(),
    )
    return Pipeline(passes)
