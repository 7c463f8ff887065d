"""Numbers of weights that `rlx.quant.native` took apart, as nodes of a graph.

XLA makes them a part of the product: what it writes to memory first is the scales alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from rlx.dtypes import DType
from rlx.ir.attributes import Literal
from rlx.ir.graph import Value
from rlx.ops.bitwise import ShiftRightArithmetic
from rlx.ops.io import Constant
from rlx.ops.shape import BroadcastInDim, Iota
from rlx.quant.native import OFFSETS, RUN, native_parts
from rlx.quant.schemes import QuantScheme
from rlx.types import Shape


def native_numbers(scheme: QuantScheme, tensors: Sequence[Value]) -> Value:
    """f32[K, N] of the parts of a weight.

    Args:
        scheme: of the blocks.
        tensors: what ``native_parts`` names, [K / every, N] each.
    """
    inner, outer = (cast("int", d) for d in tensors[0].shape)
    parts = native_parts(scheme, inner)
    held = {part.name: value for part, value in zip(parts, tensors, strict=True)}
    codes = _codes(scheme, held)
    scale = _scale(held, "scale")
    groups = cast("int", scale.shape[0])
    shape = (groups, inner // groups, outer)
    spread = BroadcastInDim(shape=shape, broadcast_dimensions=(0, 2))
    wide: Value = codes.reshape(shape) * spread(scale)
    if "least" in held:
        least = spread(_scale(held, "least"))
        wide = wide - least if "least_unit" in held else wide + least
    return wide.reshape((inner, outer))


def _codes(scheme: QuantScheme, held: Mapping[str, Value]) -> Value:
    """f32[K, N]."""
    codes = held["codes"].convert(DType.F32)
    if "high" not in held:
        return codes
    offset = OFFSETS.get(scheme.kind, 0)
    whole = codes + _high_bits(held["high"], codes.shape) * 16.0
    return whole - float(offset) if offset else whole


def _high_bits(high: Value, shape: Shape) -> Value:
    """f32[K, N] of u4[K / every, N]."""
    inner, outer = (cast("int", d) for d in shape)
    held = cast("int", high.shape[0])
    every = inner // held
    whole = (held // RUN, every, RUN, outer)
    # Along the runs alone: spread within one, the bits would not be a part of the product.
    wide = high.convert(DType.I32).reshape((held // RUN, RUN, outer))
    wide = BroadcastInDim(shape=whole, broadcast_dimensions=(0, 2, 3))(wide)
    place = cast("Value", Iota(dtype=DType.I32, shape=whole, axis=1)()) * (4 // every)
    bits = cast("Value", ShiftRightArithmetic()(wide, place)) & (2 ** (4 // every) - 1)
    return bits.convert(DType.F32).reshape((inner, outer))


def _filled(like: Value, number: int) -> Value:
    """An array of one whole number."""
    scalar: Value = Constant(value=Literal(np.asarray(number, like.dtype.numpy)))()
    filled: Value = BroadcastInDim(shape=like.shape, broadcast_dimensions=())(scalar)
    return filled


def _scale(held: Mapping[str, Value], name: str) -> Value:
    """f32[K / group, N] of scales, or of least numbers."""
    scale = held[name].convert(DType.F32)
    if "tops" in held:
        tops = held["tops"].convert(DType.I32)
        mine = tops & 3 if name == "scale" else ShiftRightArithmetic()(tops, _filled(tops, 2))
        scale = scale + cast("Value", mine).convert(DType.F32) * 16.0
    unit = held.get(f"{name}_unit")
    if unit is None:
        return scale
    blocks, outer = (cast("int", d) for d in unit.shape)
    shape = (blocks, cast("int", scale.shape[0]) // blocks, outer)
    spread = BroadcastInDim(shape=shape, broadcast_dimensions=(0, 2))
    return (scale.reshape(shape) * spread(unit.convert(DType.F32))).reshape(scale.shape)
