"""The order of the compiler: every named pipeline on one screen.

A tuple's order is the order of work. Where a line's position matters, it says why.
"""

from __future__ import annotations

from rlx.options.compile import CompileOptions
from rlx.options.precision import effective
from rlx.passes.base import AbstractPass, Pipeline
from rlx.passes.bind_params import NOTHING_KNOWN, BindParams, KnownValues, LiftBoundParams
from rlx.passes.bind_rng import BindRng
from rlx.passes.canonicalize import Canonicalize
from rlx.passes.eliminate import EliminateCommonSubexpressions
from rlx.passes.eliminate_dead import DropUnusedParams, EliminateDeadCode
from rlx.passes.fold_constants import FoldConstants
from rlx.passes.fuse import Fuse, UnfuseElementwiseRegions
from rlx.passes.hoist import HoistInvariants
from rlx.passes.inline_calls import InlineCalls
from rlx.passes.lint_numerics import LintNumerics
from rlx.passes.matmul_precision import RaiseMatmulPrecision
from rlx.passes.precision import ApplyPrecision
from rlx.passes.protect_values import ProtectValues
from rlx.passes.quantize import InsertScaledMatmul, PropagateQuantization
from rlx.passes.recognize import Recognize
from rlx.passes.roll import RollBlocks
from rlx.passes.specialize import Specialize
from rlx.passes.stream_loops import StreamLoops
from rlx.passes.unroll import UnrollScans


def binding_pipeline(
    options: CompileOptions, known: KnownValues = NOTHING_KNOWN, *, hidden_seed: bool = True
) -> Pipeline:
    """MIR → MIR: what the compile knows besides the graph is put in.

    Args:
        options: the compile's options.
        known: values of params that cannot change.
        hidden_seed: read the seed of random ops from a hidden param.
    """
    passes: tuple[AbstractPass, ...] = (
        # Before anything is folded: known values decide what is constant.
        BindParams(values=known),
        # Before elimination, which would merge two random ops of one key in any case.
        BindRng(rng=options.rng, hidden=hidden_seed),
    )
    return Pipeline(passes)


def symbolic_pipeline(options: CompileOptions) -> Pipeline:
    """MIR → MIR with symbolic dims: what needs no sizes, done once for all bindings."""
    # Validation compares on drawn inputs, which have sizes; a dump begins with what was given.
    if options.validate or options.ir_dump:
        return Pipeline(())
    passes: tuple[AbstractPass, ...] = (
        # First, as in ``mir_pipeline``: a call hides what is inside it.
        InlineCalls(),
        Canonicalize(),
        # Last: binding and the passes after it then see each expression once.
        EliminateCommonSubexpressions(),
    )
    return Pipeline(passes)


def padding_pipeline(options: CompileOptions) -> Pipeline:
    """MIR → MIR with symbolic dims, before padding: what it puts in hides patterns."""
    passes: tuple[AbstractPass, ...] = (
        InlineCalls(),
        Canonicalize(),
        EliminateCommonSubexpressions(),
        # A softmax takes one mask; its parts take one each, and are never found again.
        *(() if options.fusion_opts.skip_fusion else (Recognize(),)),
    )
    return Pipeline(passes)


def mir_pipeline(options: CompileOptions) -> Pipeline:
    """MIR → MIR, before implementations are chosen."""
    lowered = effective(options.precision, options.policy)
    passes: tuple[AbstractPass, ...] = (
        # First: a call hides what is inside it from every other pass.
        InlineCalls(),
        # Before the clean-up of what the steps leave.
        UnrollScans(max_length=options.scan_unroll_max_length),
        # Early: later passes match the plain forms that this one leaves.
        Canonicalize(),
        # After canonicalize, which makes equal expressions look equal.
        EliminateCommonSubexpressions(),
        # After canonicalize, which makes counters plain; before recognition, which takes scans.
        StreamLoops(),
        # Before recognition: a cell that stacks what nobody reads is one all the same.
        *((EliminateDeadCode(),) if options.dce else ()),
        # After elimination, which makes the parts of a pattern the same node; before folding and
        # Specialize, which take patterns apart.
        *(() if options.fusion_opts.skip_fusion else (Recognize(),)),
        # After recognition, which leaves fewer nodes; before what looks at single products.
        RollBlocks(blocks=options.roll_blocks),
        # After elimination, so that a tensor is quantised once; before folding, which would make
        # constants of what is to be quantised.
        *(
            (InsertScaledMatmul(config=options.scaled_quant),)
            if options.scaled_quant is not None
            else ()
        ),
        PropagateQuantization(),
        # After recognition, which makes the composites that it fuses; before folding, which joins
        # constant weights.
        Fuse(
            target=options.fusion_target,
            options=options.fusion_opts,
            staged=options.cache_param_invariant,
        ),
        *((UnfuseElementwiseRegions(),) if options.fusion_opts.unfuse_elementwise_regions else ()),
        # After everything that matches patterns, which casts would break; before folding, which
        # converts constants once.
        *((ApplyPrecision(policy=lowered),) if lowered is not None else ()),
        # After fusion and casts, which may leave such values; before folding.
        HoistInvariants(),
        # After elimination, so that one constant is folded once.
        *((FoldConstants(),) if options.constant_folding else ()),
        # After the forms have settled, before the clean-up of what it leaves.
        Specialize(),
        # Again: folding leaves new identities (x + 0 with a folded 0), known places and choices.
        Canonicalize(),
        EliminateCommonSubexpressions(),
        # Last: it writes composites out that earlier passes would still recognise.
        *(
            (RaiseMatmulPrecision(precision=options.matmul_precision),)
            if options.matmul_precision
            else ()
        ),
        # After everything that makes or joins ops: barriers hide what is behind them.
        *((ProtectValues(),) if options.strict else ()),
        # After everything that may leave a result or a carry without users.
        *((EliminateDeadCode(),) if options.dce else ()),
        # After folding, which shows what is constant.
        *((LintNumerics(),) if options.lint_numerics else ()),
    )
    return Pipeline(passes)


def closing_pipeline(options: CompileOptions, known: KnownValues = NOTHING_KNOWN) -> Pipeline:
    """MIR → MIR: the params that the compiled graph takes are settled.

    Args:
        options: the compile's options.
        known: values of params that cannot change.
    """
    passes: tuple[AbstractPass, ...] = (
        # After folding, which leaves what it could not use as literals.
        LiftBoundParams(values=known),
        # After everything that may leave a param without users.
        *((DropUnusedParams(),) if options.dce else ()),
    )
    return Pipeline(passes)
