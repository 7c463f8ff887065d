"""Custom calls whose meaning we know, each with its own check; all others must be allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ir.graph import Value
from rlx.ops.random import Threefry2x32
from rlx.ops.sorting import TopK, TopNan
from rlx_xla.lowering import lapack
from rlx_xla.tracing.stablehlo import opaque
from rlx_xla.tracing.stablehlo.calls import name_of
from rlx_xla.tracing.stablehlo.context import OpContext, constant_of, integer_constant
from rlx_xla.tracing.stablehlo.ops.control_flow import call_named
from rlx_xla.tracing.stablehlo.ops.elementwise import CHLO
from rlx_xla.tracing.stablehlo.ops.random import generate
from rlx_xla.tracing.stablehlo.ops.reduction import dynamic_reduce_window
from rlx_xla.tracing.stablehlo.registry import imports
from rlx_xla.tracing.stablehlo.shardings import HLO, SHARDY, texts_of

ANNOTATIONS = frozenset({
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
    "xla.sdy.FuncResultSharding", "xla.sdy.PropagationBarrier", "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape", "LayoutConstraint", "MoveToHost", "MoveToDevice",
})  # fmt: skip
"""What says where a value lives: the value itself."""

THREEFRY = frozenset({
    "cu_threefry2x32_ffi", "hip_threefry2x32_ffi", "cu_threefry2x32", "cuda_threefry2x32",
    "hip_threefry2x32", "rocm_threefry2x32",
})  # fmt: skip
RNG = {0: "DEFAULT", 1: "THREE_FRY", 2: "PHILOX"}


@imports("stablehlo.custom_call")
def custom_call(ctx: OpContext, *operands: Value) -> Any:
    """A known custom call, or an allowed one as an external node."""
    target = ctx.text("call_target_name")
    known = _known(target)
    made = NotImplemented if known is None else known(ctx, target, operands)
    if made is not NotImplemented:
        return made
    if "callback" in target:
        return ctx.refuse(
            f"target {target!r} calls a Python function by its number or address, which no file "
            "holds; trace the function in this process instead"
        )
    if lapack.is_known(target) and target not in ctx.walker.allowed:
        problem = lapack.fault(ctx.op)
        if problem:
            return ctx.refuse(problem.removesuffix("."))
        return opaque.node(ctx, target, custom=True, saved_for=("cpu",))
    if target not in ctx.walker.allowed:
        return ctx.refuse(
            f"target {target!r} is code outside of StableHLO; "
            f"allow_custom_calls={{{target!r}}} imports it as an external node"
        )
    return opaque.node(ctx, target, custom=True, effect=ctx.flag("has_side_effect"))


def _known(target: str) -> Callable[[OpContext, str, tuple[Value, ...]], Any] | None:
    if target in ANNOTATIONS:
        return _annotation
    if target in THREEFRY:
        return _threefry
    if target.startswith("mhlo.") and target.removeprefix("mhlo.") in CHLO:
        return _elementwise
    return _BY_TARGET.get(target)


def _annotation(ctx: OpContext, target: str, operands: tuple[Value, ...]) -> Any:
    if len(operands) != 1 or len(ctx.out_types) != 1:
        return NotImplemented
    if operands[0].type != ctx.out_types[0]:
        return NotImplemented  # a program for several devices
    if target == "Sharding":
        return ctx.walker.shardings.constrained(operands[0], _texts(ctx))
    if target != "annotate_device_placement":
        ctx.walker.shardings.left_out += 1
    return operands[0]


def _texts(ctx: OpContext) -> dict[str, str]:
    return texts_of((name, ctx.attribute(name)) for name in (HLO,) if ctx.has(name))


def _threefry(ctx: OpContext, target: str, operands: tuple[Value, ...]) -> Any:
    words = [v for v in operands if v.type == ctx.out_types[0] and v.dtype is DType.U32]
    if len(words) != 4 or words != list(operands[:4]):
        return NotImplemented
    if ctx.out_types[0] != ctx.out_types[-1] or len(ctx.out_types) != 2:
        return NotImplemented
    return Threefry2x32()(*words)


def _elementwise(ctx: OpContext, target: str, operands: tuple[Value, ...]) -> Any:
    return CHLO[target.removeprefix("mhlo.")]()(*operands)


def _shape_assertion(ctx: OpContext, target: str, operands: tuple[Value, ...]) -> Any:
    holds = constant_of(operands[0]) if operands else None
    if ctx.out_types or holds is None:
        return ctx.refuse("a shape assertion must be a constant once shapes are known")
    if not bool(np.all(holds)):
        return ctx.refuse(f"a shape assertion does not hold: {ctx.text('error_message')}")
    return ()


def _top_k(ctx: OpContext, target: str, operands: tuple[Value, ...]) -> Any:
    shape = ctx.out_types[0].shape
    if len(operands) not in (1, 2) or not shape or len(ctx.out_types) != 2:
        return NotImplemented
    if "largest = false" in str(ctx.op).lower():
        return NotImplemented
    return TopK(k=int(str(shape[-1])), nan=TopNan.LARGEST)(operands[0])


def _dynamic_rng(ctx: OpContext, target: str, operands: tuple[Value, ...]) -> Any:
    if len(operands) != 2 or len(ctx.out_types) != 2 or integer_constant(operands[1]) is None:
        return NotImplemented
    number = ctx.integer("rng_algorithm", -1)
    made = generate(ctx, operands[0], ctx.out_types[1], RNG.get(number, ""))
    return ctx.refuse("its state or bits have no form in RLX") if made is NotImplemented else made


def _dynamic_reduce_window(ctx: OpContext, target: str, operands: tuple[Value, ...]) -> Any:
    called = ctx.attribute("called_computations") if ctx.has("called_computations") else ()
    if len(called) != 1 or len(operands) < 7:
        return NotImplemented
    body = ctx.walker.function(name_of(called[0]))
    return None if body is None else dynamic_reduce_window(ctx, body, operands)


_BY_TARGET: dict[str, Callable[[OpContext, str, tuple[Value, ...]], Any]] = {
    "shape_assertion": _shape_assertion,
    "mhlo.topk": _top_k,
    "chlo.top_k": _top_k,
    "stablehlo.dynamic_top_k": _top_k,
    "stablehlo.dynamic_rng_bit_generator": _dynamic_rng,
    "stablehlo.dynamic_reduce_window": _dynamic_reduce_window,
}


@imports("stablehlo.composite")
def composite(ctx: OpContext, *operands: Value) -> Any:
    """An op of CHLO that an artifact spells as a composite, else its decomposition."""
    name = ctx.text("name")
    plain = CHLO.get(name.removeprefix("chlo."))
    if name.startswith("chlo.") and plain is not None and len(plain.operands) == len(operands):
        made = plain()(*operands)
        if made.type == ctx.out_types[0]:
            return made
    if name == "chlo.top_k" and len(operands) == 1 and len(ctx.out_types) == 2:
        return _top_k(ctx, name, operands)
    function = name_of(ctx.attribute("decomposition"))
    return call_named(ctx, function, operands)


@imports("sdy.sharding_constraint", "sdy.reshard")
def sharding_constraint(ctx: OpContext, x: Value) -> Value:
    """The value where it is asked to live."""
    return ctx.walker.shardings.constrained(x, {SHARDY: str(ctx.attribute("sharding"))})


@imports("sdy.propagation_barrier")
def propagation_barrier(ctx: OpContext, x: Value) -> Value:
    """The value; that shardings do not pass it has no form."""
    ctx.walker.shardings.left_out += 1
    return x
