"""The order of the compiler: every named pipeline on one screen.

A tuple's order is the order of work. Where a line's position matters, it says why.
"""

from __future__ import annotations

from rlx.options.compile import CompileOptions
from rlx.passes.base import AbstractPass, Pipeline


def mir_pipeline(options: CompileOptions) -> Pipeline:
    """MIR → MIR, before implementations are chosen."""
    del options
    passes: tuple[AbstractPass, ...] = ()
    # Order planned: Canonicalize() first, because later passes match the plain forms it leaves;
    # EliminateCommonSubexpressions() after it, equal expressions then look equal; FoldConstants()
    # if options.constant_folding; both again, because folding leaves new identities.
    return Pipeline(passes)
