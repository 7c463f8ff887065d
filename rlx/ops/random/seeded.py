"""What the random ops mean once the seed of the run is a value in the graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from rlx import dims, rng
from rlx.dtypes import DType
from rlx.errors import LoweringError
from rlx.ir.attributes import Array
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.elementwise import round_to
from rlx.ops.random.draws import RngNormal, RngUniform
from rlx.ops.random.philox import PhiloxBits, philox_blocks, words_of
from rlx.ops.random.sample import Sample
from rlx.ops.reduction.numbers import lowest
from rlx.options.rng import SEED_LIMIT, RngBackend, RngOptions
from rlx.types import Shape

RANDOM_OPS: tuple[type[Op], ...] = (RngNormal, RngUniform, Sample)
"""The ops whose meaning depends on the policy of the run."""

SINE = (-41.34170217662646, 81.60521006853168, -76.69832382315963, 41.48585222082329)
"""sin(2πx) = x · (2π + x² · Σ SINE[i] · x²ⁱ) for |x| ≤ 1/8, to 2⁻⁴⁰."""

COSINE = (-19.73920869073926, 64.93932550212654, -85.44364456102676, 59.242934556416)
"""cos(2πx) = 1 + x² · Σ COSINE[i] · x²ⁱ for |x| ≤ 1/8, to 2⁻³⁴."""


UNITS = 1 << 30
"""Probabilities are counted in parts of it."""


def default_seed() -> Value:
    """The seed of the default policy, as u32[2]."""
    return seed_value(RngOptions().seed)


def seed_value(seed: int) -> Value:
    """A 64-bit seed as a constant u32[2], low word first."""
    return constant(np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32))


def seeded(op: Op, inputs: Sequence[Value], seed: Value, backend: RngBackend) -> Value:
    """A random op's meaning, given the policy's seed in the graph.

    Args:
        op: one of RANDOM_OPS.
        inputs: its inputs.
        seed: u32[2], the low and the high word of the policy's seed. The ORT backend draws while
            the graph is built, so there the seed is a constant unless the op has one of its own.
        backend: which generator draws.

    Returns:
        A value of the op's result type, made of ops that mean the same on every device.

    Raises:
        LoweringError: the op is no random op, or the ORT backend lacks a constant seed or sizes.
    """
    if isinstance(op, Sample):
        zero = backend is RngBackend.ZERO
        return _sample(op, inputs[0], seed_value(op.seed) if op.seed else seed, zero)
    if not isinstance(op, RngNormal | RngUniform):
        raise LoweringError(
            f"seeded: a random op ({', '.join(c.op_name for c in RANDOM_OPS)}) is required; got "
            f"{op.op_name!r}. Leave other ops as they are."
        )
    if backend is RngBackend.ZERO:
        return broadcast_to(constant(0.0, op.dtype), op.shape)
    if backend is RngBackend.ORT:
        return constant(draw(op, RngOptions.ort(_known_seed(op, seed))))
    mixed = _mix(seed, op.key)
    if isinstance(op, RngNormal):
        return _affine(_normal(mixed, op.shape), op.mean, op.scale).convert(op.dtype)
    unit = _unit(PhiloxBits(shape=op.shape)(mixed))
    result = _affine(unit, op.low, op.high - op.low).convert(op.dtype)
    limit = _limit(op)
    if limit is None:
        return result
    from rlx.ops.arithmetic import Min

    return Min()(result, broadcast_to(constant(limit), op.shape))


def draw(op: Op, options: RngOptions, *arrays: Array) -> Array:
    """What a random op gives under a policy, in NumPy.

    Args:
        op: one of RANDOM_OPS, of known sizes.
        options: the policy.
        arrays: the op's inputs.
    """
    if isinstance(op, RngNormal | RngUniform):
        shape = tuple(dims.evaluate(d, {}) for d in op.shape)
        if options.backend is RngBackend.ZERO:
            return np.zeros(shape, op.dtype.numpy)
        count = math.prod(shape)
        if isinstance(op, RngNormal):
            unit = rng.normals(options, count, key=op.key, op_seed=op.op_seed)
            return round_to(_affine_numbers(unit, op.mean, op.scale), op.dtype).reshape(shape)
        unit = rng.uniforms(options, count, key=op.key, op_seed=op.op_seed)
        made = round_to(_affine_numbers(unit, op.low, op.high - op.low), op.dtype)
        limit = _limit(op)
        return (made if limit is None else np.minimum(made, limit)).reshape(shape)
    from rlx.ir.interpret import run
    from rlx.ops.io import Input
    from rlx.types import TensorType, as_dtype

    types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
    leaves = [Input(name=str(i), dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types)]
    result = seeded(op, leaves, seed_value(options.seed), options.backend)
    return run(Graph(leaves, (), (result,)), list(arrays))[0]


def _known_seed(op: RngNormal | RngUniform, seed: Value) -> int:
    from rlx.ops.io import Constant

    sizes = all(isinstance(d, int) for d in op.shape)
    if sizes and op.op_seed is not None:
        return 0
    if not sizes or not isinstance(seed.node.op, Constant):
        raise LoweringError(
            f"{op.op_name}: the ORT backend is required to know sizes and seed when the graph is "
            f"compiled; got shape {list(op.shape)} and a seed made by {seed.node.op.op_name!r}. "
            "Bind the symbols and pass the seed as a constant, or use the Philox backend."
        )
    low, high = (int(w) for w in seed.node.op.value.array)
    return low | high << 32


def _mix(seed: Value, key: int) -> Value:
    """Seed + key · SEED_STEP modulo 2⁶⁴, in 32-bit words."""
    from rlx.ops.shape import Concatenate

    added = key * rng.SEED_STEP % SEED_LIMIT
    if not added:
        return seed
    low, high = words_of(seed)
    step_low, step_high = (constant(np.uint32(w)) for w in (added & 0xFFFFFFFF, added >> 32))
    sum_low = low + step_low
    carry = (sum_low < low).convert(DType.U32)
    return Concatenate(axis=0)(sum_low.reshape(1), (high + step_high + carry).reshape(1))


def _unit(words: Value) -> Value:
    """The top 24 bits of each word over 2²⁴."""
    return _top(words).convert(DType.F32) * 2.0**-24


def _top(words: Value) -> Value:
    from rlx.ops.bitwise import ShiftRightLogical

    shift = broadcast_to(constant(np.uint32(8)), words.shape)
    return ShiftRightLogical()(words, shift).convert(DType.I32)


def _normal(seed: Value, shape: Shape) -> Value:
    """Standard normals: two of each block, one behind the other."""
    from rlx.ops.shape import Concatenate

    count = dims.product(shape)
    if count == 0:
        return broadcast_to(constant(0.0, DType.F32), shape)
    blocks = dims.floordiv_(count + 1, 2)
    c0, c1, c2, c3 = philox_blocks(seed, blocks)
    column = [_box_muller(*pair).reshape(blocks, 1) for pair in ((c0, c1), (c2, c3))]
    made: Value = Concatenate(axis=1)(*column)
    return made.reshape(blocks * 2).narrow(0, 0, count).reshape(shape)


def _box_muller(first: Value, second: Value) -> Value:
    """One normal of two words: the angle is reduced in integers, so that its cosine is exact."""
    from rlx.ops.arithmetic import Max
    from rlx.ops.bitwise import ShiftRightArithmetic
    from rlx.ops.compare import Select

    shape = first.shape
    smallest = broadcast_to(constant(rng.SMALLEST), shape)
    radius = (Max()(_unit(first), smallest).log() * -2.0).sqrt()
    turn = _top(second)
    quarters = ShiftRightArithmetic()(turn + 2**21, broadcast_to(constant(22), shape))
    x = (turn - quarters * 2**22).convert(DType.F32) * 2.0**-24
    square = x * x
    whole = float(np.float32(2 * math.pi))
    sine = x * whole + x * (square * _polynomial(SINE, square) + (2 * math.pi - whole))
    cosine = square * _polynomial(COSINE, square) + 1.0
    odd = (quarters & 1).eq(1)
    size = Select()(odd, sine, cosine)
    negative = ((quarters + 1) & 2).eq(2)  # the quarters 1 and 2
    return radius * Select()(negative, -size, size)


def _polynomial(coefficients: Sequence[float], x: Value) -> Value:
    total = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        total = total * x + coefficient
    return total


def _affine(unit: Value, offset: float, factor: float) -> Value:
    """The sum offset + factor · unit, rounded once to f32: no fused product can change it."""
    from rlx.ops.convert import ReducePrecision

    if offset == 0.0 and factor == 1.0:
        return unit
    # XLA may skip a conversion to f32 on the way to another dtype, but never this rounding.
    single = ReducePrecision(exponent_bits=8, mantissa_bits=23)
    rounded: Value = single(unit.convert(DType.F64) * factor + offset)
    return rounded.convert(DType.F32)


def _affine_numbers(unit: Array, offset: float, factor: float) -> Array:
    if offset == 0.0 and factor == 1.0:
        return unit
    return (unit.astype(np.float64) * factor + offset).astype(np.float32)


def _limit(op: RngUniform) -> Array | None:
    """The largest number that may come out, where rounding could give a larger one."""
    if (op.low, op.high) == (0.0, 1.0) and op.dtype in (DType.F32, DType.F64):
        return None
    with np.errstate(all="ignore"):
        high = np.asarray(op.high, op.dtype.numpy)
        low = np.asarray(op.low, op.dtype.numpy)
        below = np.nextafter(high, np.asarray(lowest(op.dtype), op.dtype.numpy))
    # A high end between two numbers of the dtype is rounded; only one at or above it is too large.
    reached = float(cast("Any", high)) >= op.high
    return np.maximum(below if reached else high, low)


def _sample(op: Sample, logits: Value, seed: Value, zero: bool) -> Value:
    from rlx.ops.arithmetic import Min
    from rlx.ops.compare import Select
    from rlx.ops.normalization import Softmax
    from rlx.ops.reduction import Argmax, CumSum

    if op.temperature == 0:
        return Argmax(axis=1)(logits)
    rows = logits.shape[0]
    wide = logits.dtype.compute
    scaled = logits.convert(wide) / max(op.temperature, 1e-6)
    kept = _largest(scaled, op.top_k)
    if kept is not None:
        lowest = broadcast_to(constant(-math.inf, wide), scaled.shape)
        scaled = Select()(kept, scaled, lowest)
    weight: Value = Softmax(axis=1)(scaled)
    # Whole numbers add up to the same sums in any order, so that devices choose alike.
    units = (weight * float(UNITS) + 0.5).convert(DType.I32)
    if op.top_p < 1:
        nothing = broadcast_to(constant(0), units.shape)
        units = Select()(_nucleus(weight, units, op.top_p), units, nothing)
    total: Value = CumSum(axis=1)(units)
    if zero:
        unit = broadcast_to(constant(0, DType.U32), (rows,))
    else:
        unit = _top(PhiloxBits(shape=(rows,))(seed)).convert(DType.U32)
    target = _part(total.max(1), unit)
    reached = total <= broadcast_to(target.reshape(rows, 1), total.shape)
    index = reached.convert(DType.I32).sum(1)
    return Min()(index, broadcast_to(_last_index(logits), (rows,)))


def _part(total: Value, fraction: Value) -> Value:
    """⌊total · fraction / 2²⁴⌋ of i32 and u32 numbers."""
    from rlx.ops.bitwise import ShiftRightLogical

    product = total.convert(DType.U64) * fraction.convert(DType.U64)
    shift = broadcast_to(constant(24, DType.U64), product.shape)
    return ShiftRightLogical()(product, shift).convert(DType.I32)


def _last_index(logits: Value) -> Value:
    from rlx.ops.shape import DimValue

    last = logits.shape[1] - 1
    return constant(last) if isinstance(last, int) else DimValue(dim=last)()


def _largest(scaled: Value, top_k: int) -> Value | None:
    """Where values are at least the k-th largest; None where all are kept."""
    from rlx.ops.sorting import TopK

    rows, count = scaled.shape
    if top_k == 0 or (isinstance(count, int) and top_k >= count):
        return None
    values: Value = TopK(k=top_k)(scaled)[0]
    return scaled >= broadcast_to(values.narrow(1, top_k - 1, 1), (rows, count))


def _nucleus(weight: Value, units: Value, top_p: float) -> Value:
    """Where the shortest run of the largest weights is whose units make up top_p of all.

    The smallest weight of the run is found by halving its range of bit patterns, which are ordered
    as the weights are: a few dozen sums cost less than to sort a vocabulary.
    """
    from rlx.ops.compare import Select
    from rlx.ops.control_flow import Scan
    from rlx.ops.convert import BitcastConvert
    from rlx.ops.io import Input
    from rlx.ops.reduction import CumSum

    integer = DType.I64 if weight.dtype is DType.F64 else DType.I32
    rows = weight.shape[:1]
    bits: Value = BitcastConvert(dtype=integer)(weight)
    nothing = broadcast_to(constant(0), units.shape)
    fraction = max(round(top_p * 2**24), 1)
    wanted = _part(units.sum(1), broadcast_to(constant(fraction, DType.U32), rows))
    steps = 62 if integer is DType.I64 else 30  # a weight is below 2, whose pattern is 1 << steps
    bounds = [broadcast_to(constant(n, integer), rows) for n in (0, 1 << steps)]
    given = [bits, units, nothing, wanted, *bounds]
    leaves = [Input(name=f"x{i}", dtype=v.dtype, shape=v.shape)() for i, v in enumerate(given)]
    patterns, parts, zeros, enough, low, high = leaves
    middle = low + (high - low) / 2
    column = broadcast_to(middle.reshape(*rows, 1), patterns.shape)
    reached = Select()(patterns >= column, parts, zeros).sum(1) >= enough
    moved = Select()(reached, middle, low), Select()(reached, high, middle)
    body = Graph(leaves, (), moved, name="halve")
    least: Value = Scan(body=body, length=steps, num_consts=4, num_carry=2)(*given)[0]
    edge = broadcast_to(least.reshape(*rows, 1), bits.shape)
    above, tied = bits > edge, bits.eq(edge)
    inside = Select()(above, units, nothing).sum(1, keepdims=True)
    before: Value = CumSum(axis=1, exclusive=True)(Select()(tied, units, nothing))
    room = wanted.reshape(*rows, 1) - inside
    return above | (tied & (before < broadcast_to(room, before.shape)))
