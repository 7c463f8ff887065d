"""Products with few rows, and small ones, on the CPU (``cc/matmul.h``).

XLA widens a whole 16-bit matrix to f32, in memory, to multiply it by one row, and for small
products spends more time on setting out than on multiplying. The handler widens a tile at a time,
and where the CPU multiplies pairs of bf16 (AVX512_BF16) it widens none (``cc/matmul_bf16.h``).

Numerics: products of 16-bit floats are exact and their sums are f32, with ``strict=True`` and
under every ``precision`` too; only the order of the sums is the kernel's own. In pairs of bf16,
operands and sums below f32's normal numbers count as zero, as they do where XLA computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from rlx.dtypes import DType
from rlx.ops.dot import DotGeneral
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.calibration import Bound, bound, features
from rlx_xla.kernels.select import register_kernel

DTYPES = (DType.F32, DType.BF16, DType.F16)


@final
@dataclass(frozen=True, kw_only=True)
class Product:
    """A product in the handler's terms.

    Attributes:
        batch: how many leading axes both operands share.
        summed: how many axes are summed, the last ones of the rows.
        weights: the operand that is the matrix.
        by_rows: whether the matrix is [n..., k...] and not [k..., n...].
        products: size of the batch.
        rows: of the other operand, in each product.
        k: how many terms are summed.
        n: columns of the result.
    """

    batch: int
    summed: int
    weights: int
    by_rows: bool
    products: int
    rows: int
    k: int
    n: int


def product_of(op: DotGeneral, types: Sequence[TensorType]) -> Product | Refused:
    """Read a contraction as rows times a matrix, or say why it is none."""
    lhs, rhs = types
    if not (lhs.is_static and rhs.is_static):
        return Refused(f"{lhs if rhs.is_static else rhs} is not static")
    batch, summed = len(op.lhs_batch), len(op.lhs_contracting)
    leading = tuple(range(batch))
    if op.lhs_batch != leading or op.rhs_batch != leading:
        return Refused("batch axes do not lead in both operands")
    last = [tuple(range(t.rank - summed, t.rank)) for t in types]
    first = tuple(range(batch, batch + summed))
    # The order in which axes are paired is of no account.
    pairs = sorted(zip(op.lhs_contracting, op.rhs_contracting, strict=True))
    sums = [tuple(pair[side] for pair in pairs) for side in (0, 1)]
    # The other way round first: a matrix times a vector is one row, not many rows of one column.
    for weights in (0, 1):
        x, w = types[1 - weights], types[weights]
        by_rows = sums[weights] == last[weights]
        rows = _size(x, batch, x.rank - summed)
        if sums[1 - weights] != last[1 - weights] or not (by_rows or sums[weights] == first):
            continue
        if weights == 0 and rows != 1:  # the result would have the rows last
            continue
        split = w.rank - summed if by_rows else batch + summed
        return Product(
            batch=batch,
            summed=summed,
            weights=weights,
            by_rows=by_rows,
            products=_size(w, 0, batch),
            rows=rows,
            k=_size(x, x.rank - summed, x.rank),
            n=_size(w, batch, split) if by_rows else _size(w, split, w.rank),
        )
    return Refused(f"{lhs} and {rhs} are not rows and a matrix, each with its axes in order")


def _size(type_: TensorType, first: int, last: int) -> int:
    return math.prod(d for d in type_.shape[first:last] if isinstance(d, int))


@final
@dataclass(frozen=True, kw_only=True)
class Gain:
    """A range of products that gain, as measured on a quiet machine against the same graph without.

    Attributes:
        rows: the most rows, a number or a bound.
        least: fewest elements of the matrix.
        most: most elements of the matrix.
        terms: fewest terms, rows times elements.
        by_rows: whether only a matrix [n, k] gains.
    """

    rows: int | Bound
    least: int = 0
    most: int = 2**62
    terms: int = 0
    by_rows: bool = False

    def holds(self, product: Product) -> bool:
        """Whether a product lies in the range."""
        size = product.k * product.n
        most = self.rows if isinstance(self.rows, int) else self.rows.value
        return (
            1 <= product.rows <= most
            and self.least <= size <= self.most
            and self.terms <= product.rows * size
            and (product.by_rows or not self.by_rows)
        )

    def __str__(self) -> str:
        shape = "[n, k] " if self.by_rows else ""
        return f"up to {self.rows} rows and {self.least} to {self.most} {shape}elements"


WIDE = "avx512" in features().split("-")
"""Whether this CPU has vectors of 64 bytes."""

PAIRS = "bf16" in features().split("-")
"""Whether this CPU multiplies pairs of bf16."""

_SIZES = (1, 2, 3, 4, 8, 16, 32, 64)
_BF16_ROWS = bound("dot_general.cpu.ffi/bf16", 8 if PAIRS else 3, _SIZES, least=False)
_F16_ROWS = bound("dot_general.cpu.ffi/f16", 32, _SIZES, least=False)


def bf16_gains(most: int | Bound, *, pairs: bool) -> tuple[Gain, ...]:
    """What gains in bf16.

    Args:
        most: the most rows times a large matrix.
        pairs: whether the CPU multiplies pairs. Up to 4 rows then take 0.3 to 0.95 of the time of
            XLA's f32 product of the widened operands, 8 rows 0.5 to 0.8, 16 rows 0.6 to 0.9 in the
            ranges here; more rows gain by rows alone, up to 2^19 elements (0.7 to 0.8).
    """
    if pairs:
        return (
            Gain(rows=4, least=2**12),
            Gain(rows=most, least=2**16),
            Gain(rows=16, least=2**17, most=700_000),
            Gain(rows=16, least=2**17, most=2**21, by_rows=True),
            Gain(rows=32, least=2**16, most=2**19, by_rows=True),
        )
    # From two rows on, XLA multiplies bf16 without widening it first.
    return Gain(rows=1, least=2**14), Gain(rows=most, least=2**20, by_rows=True)


def f32_gains(*, wide: bool) -> tuple[Gain, ...]:
    """What gains in f32.

    Args:
        wide: whether the CPU has AVX-512. It then reads a matrix [k, n] where it lies: 0.4 to 0.8
            of XLA's time for up to 4 rows, 0.5 to 0.9 for up to 16, in the ranges here.
    """
    return (
        # XLA multiplies f32 well but for products by rows, 0.25 to 0.85 of its time here; it does
        # small ones in line.
        Gain(rows=32, least=2**16, most=2**20, by_rows=True),
        Gain(rows=16, least=2**14, most=2**22, terms=2**17, by_rows=True),
        Gain(rows=4, least=2**15, by_rows=True),
        *(
            (
                Gain(rows=16, least=2**17, most=2**22),
                Gain(rows=16, least=2**14, most=2**17, terms=2**18 + 1),
            )
            if wide
            else (Gain(rows=2, least=2**20),)
        ),
    )


GAINS: dict[DType | None, tuple[Gain, ...]] = {
    DType.F32: f32_gains(wide=WIDE),
    DType.BF16: bf16_gains(_BF16_ROWS, pairs=PAIRS),
    DType.F16: (Gain(rows=16, least=2**14), Gain(rows=_F16_ROWS, least=2**20)),
    # Operands of two dtypes: XLA widens the narrower one.
    None: (Gain(rows=16, least=2**14), Gain(rows=32, least=2**20)),
}
"""What gains, by the dtype of both operands."""


SQUARE = (2**20, 2**21)
"""Fewest and most terms of a single f32 product that gains whatever its shape (0.6 to 0.8).

Fewer are done in line by XLA; up to the most, it takes longer to set out than to multiply.
"""

ONE_ROW = (2**15, 2**21)
"""Fewest and most terms of one row of f32, by rows, that gains (0.45 to 0.75)."""


def _gains(product: Product, types: Sequence[TensorType]) -> str:
    """Why a product gains nothing, or an empty string."""
    dtypes = {t.dtype for t in types}
    dtype = next(iter(dtypes)) if len(dtypes) == 1 else None
    if dtype is DType.F32:
        if product.products > 1:
            return "XLA does batches of f32 products as fast"
        terms = product.rows * product.k * product.n
        if product.rows == 1:
            least, most = ONE_ROW
            if product.by_rows and least <= terms <= most:
                return ""
            return f"one row of f32 with {terms} terms is not [n, k] from {least} to {most}"
        least, most = SQUARE
        if least <= terms <= most:
            return ""
    if any(g.holds(product) for g in GAINS[dtype]):
        return ""
    taken = "; ".join(map(str, GAINS[dtype]))
    return (
        f"{product.rows} rows times {product.k * product.n} elements "
        f"{'[n, k]' if product.by_rows else '[k, n]'} gain nothing ({taken} do)"
    )


def _check(op: DotGeneral, types: Sequence[TensorType]) -> Supported | Refused:
    result = op.infer(*types)
    for name, type_ in zip(("lhs", "rhs", "the result"), (*types, result), strict=True):
        if type_.dtype not in DTYPES:
            return Refused(f"{name} is {type_.dtype}, and f32, bf16 and f16 are taken")
    if op.algorithm is not None:
        return Refused(f"the algorithm {op.algorithm.value} is asked for")
    product = product_of(op, types)
    if isinstance(product, Refused):
        return product
    reason = _gains(product, types)
    return Refused(reason) if reason else Supported()


def _product(op: DotGeneral, types: Sequence[TensorType]) -> Product:
    product = product_of(op, types)
    assert isinstance(product, Product)
    return product


def _symbol(op: DotGeneral, types: Sequence[TensorType]) -> str:
    return f"rlx_matmul_{types[_product(op, types).weights].dtype}_cpu"


def _attributes(op: DotGeneral, types: Sequence[TensorType]) -> dict[str, int | bool]:
    product = _product(op, types)
    return {
        "batch": product.batch,
        "summed": product.summed,
        "weights": product.weights,
        "by_rows": product.by_rows,
    }


register_kernel(
    FfiKernel(
        name="dot_general.cpu.ffi",
        op=DotGeneral,
        platforms=("cpu",),
        symbol=_symbol,
        check=_check,
        attributes=_attributes,
    )
)
