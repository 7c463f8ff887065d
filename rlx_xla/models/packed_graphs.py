"""Products and rows of packed weights as graphs of one op, spliced into JAX functions.

Apart from ``packed``, which a program that is loaded compiled reads too: these need ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rlx.dtypes import DType
from rlx.ir.builder import GraphBuilder
from rlx.ops.quantized import (
    DequantGather,
    DequantizeBlocks,
    DequantMatmul,
    DequantMatmulInt8,
    DequantMatmulPick,
)
from rlx.ops.quantized.rounded import BLOCKS
from rlx.quant.schemes import QuantScheme
from rlx.types import TensorType
from rlx_xla.tracing.to_jax import to_jax

ROWS = "rows"
"""The symbol for the rows of a product, whatever JAX calls their number."""


@functools.lru_cache(maxsize=256)
def packed_product(
    scheme: str, inputs: str, dtype: DType, codes: tuple[int, int]
) -> Callable[..., Any]:
    """Product with a matrix of blocks, of x[ROWS, K], codes."""
    builder = GraphBuilder("packed_product")
    inner = _inner(scheme, codes[1])
    x = builder.input("x", f"{dtype}[{ROWS}, {inner}]")
    weight = builder.input("weight", TensorType(DType.U8, codes))
    kind = DequantMatmulInt8 if _rounds(scheme, inputs) else DequantMatmul
    op = kind(scheme=scheme)
    return to_jax(builder.build(op(x, weight)))


@functools.lru_cache(maxsize=256)
def picked_product(
    scheme: str, inputs: str, dtype: DType, codes: tuple[int, int], count: int
) -> Callable[..., Any]:
    """Product with one of several matrices of one kind, of x[ROWS, K], index, codes of each."""
    builder = GraphBuilder("picked_product")
    inner = _inner(scheme, codes[1])
    x = builder.input("x", f"{dtype}[{ROWS}, {inner}]")
    index = builder.input("index", "i32[]")
    weights = [builder.input(f"weight_{i}", TensorType(DType.U8, codes)) for i in range(count)]
    op = DequantMatmulPick(scheme=scheme, rounded=_rounds(scheme, inputs))
    return to_jax(builder.build(op(x, index, *weights)))


def _rounds(scheme: str, inputs: str) -> bool:
    return inputs == "int8" and QuantScheme.parse(scheme).block_size in BLOCKS


@functools.lru_cache(maxsize=256)
def packed_rows(scheme: str, codes: tuple[int, int]) -> Callable[..., Any]:
    """Rows of a matrix of blocks, of codes, indices[ROWS]."""
    builder = GraphBuilder("packed_rows")
    weight = builder.input("weight", TensorType(DType.U8, codes))
    indices = builder.input("indices", f"i32[{ROWS}]")
    return to_jax(builder.build(DequantGather(scheme=scheme)(weight, indices)))


@functools.lru_cache(maxsize=256)
def mlx_product(
    scheme: str, dtype: DType, inner: int, types: tuple[TensorType, ...]
) -> Callable[..., Any]:
    """Product with a matrix in MLX's arrays, of x[ROWS, K], codes, scales, biases."""
    builder = GraphBuilder("mlx_product")
    x = builder.input("x", f"{dtype}[{ROWS}, {inner}]")
    parts = [builder.input(f"part_{i}", type_) for i, type_ in enumerate(types)]
    return to_jax(builder.build(DequantMatmul(scheme=scheme)(x, *parts)))


@functools.lru_cache(maxsize=256)
def mlx_rows(scheme: str, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    """The numbers of a matrix in MLX's arrays."""
    builder = GraphBuilder("mlx_rows")
    parts = [builder.input(f"part_{i}", type_) for i, type_ in enumerate(types)]
    return to_jax(builder.build(DequantizeBlocks(scheme=scheme)(*parts)))


def _inner(scheme: str, width: int) -> int:
    """K of rows of so many bytes."""
    kind = QuantScheme.parse(scheme)
    return width // kind.block_bytes * kind.block_size
