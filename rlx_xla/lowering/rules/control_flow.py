"""Calls, choices and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from rlx.dtypes import DType
from rlx.ops.control_flow import Call, Cond, PlatformIndex, Scan, While
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext, i64_array
from rlx_xla.lowering.registry import lowers


@lowers(Call)
def call(ctx: LoweringContext, op: Call, *operands: ir.Value) -> Sequence[ir.Value]:
    return ctx.call(op.body, operands)


@lowers(Cond)
def cond(
    ctx: LoweringContext, op: Cond, index: ir.Value, *operands: ir.Value
) -> Sequence[ir.Value]:
    count = len(op.branches)
    chooser = ctx.node.inputs[0].node.op
    if isinstance(chooser, PlatformIndex):
        # Branches of other platforms may hold what this one cannot compile: leave them out.
        return ctx.inline(op.branches[chooser.index_of(ctx.platform)], operands)
    if count == 1:
        return ctx.inline(op.branches[0], operands)
    if not ctx.result_types:
        return []
    scalar = TensorType(DType.I32)
    if ctx.input_types[0].dtype is DType.BOOL:
        index = stablehlo.convert(ctx.mlir_type(scalar), index)
    else:
        # StableHLO takes the last branch for an index out of range on either side.
        low, high = ctx.constant(0, DType.I32), ctx.constant(count - 1, DType.I32)
        index = stablehlo.clamp(low, index, high)
    made = stablehlo.CaseOp(ctx.result_types, index, count)
    for region, branch in zip(made.regions, op.branches, strict=True):
        ctx.region(region, (), lambda graph=branch: ctx.inline(graph, operands))
    return list(made.results)


@lowers(PlatformIndex)
def platform_index(ctx: LoweringContext, op: PlatformIndex) -> ir.Value:
    return ctx.constant(op.index_of(ctx.platform), DType.I32)


@lowers(While)
def while_(ctx: LoweringContext, op: While, *operands: ir.Value) -> Sequence[ir.Value]:
    consts = op.cond_consts + op.body_consts
    for_cond, for_body = operands[: op.cond_consts], operands[op.cond_consts : consts]
    carry = operands[consts:]
    if not carry:
        return []
    values = len(op.cond.inputs) - op.cond_consts
    made = stablehlo.WhileOp(ctx.result_types, carry)
    ctx.region(
        made.cond,
        ctx.result_types,
        lambda *state: ctx.inline(op.cond, (*for_cond, *state[:values])),
    )
    ctx.region(made.body, ctx.result_types, lambda *state: ctx.inline(op.body, (*for_body, *state)))
    return list(made.results)


_SMALL_BODY = 200
"""Most nodes of a scan's body that is unrolled on GPUs without being asked."""

_GPU_UNROLL = 8


@lowers(Scan)
def scan(ctx: LoweringContext, op: Scan, *operands: ir.Value) -> Sequence[ir.Value]:
    return _ScanLowering(ctx, op, operands).lower()


@final
class _ScanLowering:
    """One scan: a loop of `length // unroll` turns, then the remaining steps in place."""

    def __init__(self, ctx: LoweringContext, op: Scan, operands: Sequence[ir.Value]) -> None:
        self.ctx = ctx
        self.op = op
        self.length = _static(ctx, op.length)
        self.counter = TensorType(DType.I32 if self.length < 2**31 else DType.I64)
        first, last = op.num_consts + op.num_carry, len(operands) - len(op.body.effects)
        self.consts = operands[: op.num_consts]
        self.carry = [*operands[op.num_consts : first], *operands[last:]]
        self.xs = operands[first:last]
        self.x_types = ctx.input_types[first:last]
        stacked = len(ctx.output_types) - len(op.body.effects)
        self.y_types = ctx.output_types[op.num_carry : stacked]

    def lower(self) -> list[ir.Value]:
        kept = [t.with_dtype(self._stored_as(t.dtype)) for t in self.y_types]
        ys = [self.ctx.full(_zero(t), t) for t in kept]
        state: Sequence[ir.Value] = [*self.carry, *ys]
        unroll = max(1, min(self._unroll(), self.length))
        turns = self.length // unroll
        if turns > 1:
            state = self._loop(turns, unroll, state)
        start = turns * unroll if turns > 1 else 0
        for step in range(start, self.length):
            state = self._step(self._number(step), state)
        tokens = len(self.op.body.effects)
        values = state[: self.op.num_carry]
        stacked = state[len(self.carry) :]
        ys = [self._as_dtype(y, t.dtype) for y, t in zip(stacked, self.y_types, strict=True)]
        return [*values, *ys, *state[len(self.carry) - tokens : len(self.carry)]]

    def _unroll(self) -> int:
        """Steps in one turn of the loop.

        XLA replays a loop body of a few kernels from a CUDA graph only when it has enough of them;
        below, each turn costs 15 µs (``lax.scan`` of 2,048 steps on an H200: 38 ms, unrolled by 8
        2.9 ms, the same bits).
        """
        small = self.op.body.node_count(nested=True) <= _SMALL_BODY
        if self.op.unroll == 1 and self.ctx.platform in ("cuda", "rocm") and small:
            return _GPU_UNROLL
        return self.op.unroll

    def _loop(self, turns: int, unroll: int, state: Sequence[ir.Value]) -> Sequence[ir.Value]:
        types = [self.ctx.mlir_type(self.counter), *(v.type for v in state)]
        made = stablehlo.WhileOp(types, [self._number(0), *state])

        def more(turn: ir.Value, *_: ir.Value) -> ir.Value:
            direction = stablehlo.ComparisonDirectionAttr.get("LT")
            return stablehlo.compare(turn, self._number(turns), direction)

        def body(turn: ir.Value, *now: ir.Value) -> list[ir.Value]:
            base = turn if unroll == 1 else stablehlo.multiply(turn, self._number(unroll))
            state = list(now)
            for offset in range(unroll):
                step = stablehlo.add(base, self._number(offset)) if offset else base
                state = self._step(step, state, shared=unroll > 1)
            return [stablehlo.add(turn, self._number(1)), *state]

        self.ctx.region(made.cond, types, more)
        self.ctx.region(made.body, types, body)
        return list(made.results)[1:]

    def _step(
        self, step: ir.Value, state: Sequence[ir.Value], *, shared: bool = True
    ) -> list[ir.Value]:
        """Do one step; ``shared`` calls the body as a function instead of writing it in place."""
        if self.op.reverse:
            step = stablehlo.subtract(self._number(self.length - 1), step)
        op, tokens = self.op, len(self.op.body.effects)
        carry, ys = state[: len(self.carry)], state[len(self.carry) :]
        slices = [self._slice(x, t, step) for x, t in zip(self.xs, self.x_types, strict=True)]
        arguments = [
            *self.consts, *carry[: op.num_carry], *slices, *carry[op.num_carry :]
        ]  # fmt: skip
        emit = self.ctx.call if shared else self.ctx.inline
        results = emit(op.body, arguments)
        new = results[op.num_carry : len(results) - tokens]
        stacked = [
            self._update(y, part, t, step) for y, part, t in zip(ys, new, self.y_types, strict=True)
        ]
        return [*results[: op.num_carry], *results[len(results) - tokens :], *stacked]

    def _slice(self, x: ir.Value, type_: TensorType, step: ir.Value) -> ir.Value:
        sizes = [1, *(_static(self.ctx, d) for d in type_.shape[1:])]
        part = stablehlo.dynamic_slice(x, self._starts(step, type_), i64_array(sizes))
        return stablehlo.reshape(self.ctx.mlir_type(type_.with_shape(type_.shape[1:])), part)

    def _update(self, y: ir.Value, part: ir.Value, type_: TensorType, step: ir.Value) -> ir.Value:
        row = type_.with_shape((1, *type_.shape[1:]))
        part = stablehlo.reshape(self.ctx.mlir_type(row), part)
        bits = self._as_dtype(part, self._stored_as(type_.dtype))
        return stablehlo.dynamic_update_slice(y, bits, self._starts(step, type_))

    def _stored_as(self, dtype: DType) -> DType:
        """The dtype in which rows are stacked.

        XLA's CPU puts a bf16 row into its place by converting the whole stack to f32 and back, at
        every step: 256 rows of 512 take 23 ms, and 0.18 ms as integers of the same bits
        (``bench_specialize``). f16 it moves as it is.
        """
        as_bits = self.ctx.platform == "cpu" and dtype is DType.BF16
        return DType.U16 if as_bits else dtype

    def _as_dtype(self, x: ir.Value, dtype: DType) -> ir.Value:
        """The same bits in another dtype of their width."""
        target = self.ctx.tensor(dtype, list(ir.RankedTensorType(x.type).shape))
        return x if x.type == target else stablehlo.bitcast_convert(target, x)

    def _starts(self, step: ir.Value, type_: TensorType) -> list[ir.Value]:
        return [step] + [self._number(0)] * (type_.rank - 1) if type_.rank > 1 else [step]

    def _number(self, value: int) -> ir.Value:
        return self.ctx.constant(value, self.counter.dtype)


def _zero(type_: TensorType) -> np.ndarray:
    return np.zeros((), type_.dtype.numpy)


def _static(ctx: LoweringContext, dim: object) -> int:
    if not isinstance(dim, int):
        raise ctx.refuse(f"static dims are required; got {dim}. Bind the symbolic dims first.")
    return dim
