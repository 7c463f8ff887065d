"""Rotary position embeddings: pairs of elements turned by an angle that grows with the position."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, final

import numpy as np

from rlx import dims
from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most
from rlx.types import Dim, Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@final
class RopeStyle(enum.Enum):
    """Which elements of a head form a pair, for i < n_rot / 2."""

    NEOX = "neox"
    """Elements i and i + n_rot / 2."""
    GPTJ = "gptj"
    """Elements 2i and 2i + 1."""


LAYOUTS = ("bshd", "bhsd")
DTYPES = (DType.F32, DType.BF16, DType.F16, DType.F64)


@define_op("rope")
class Rope(Op):
    """Rotary position embedding with given tables.

    y1 = x1·cos − x2·sin;  y2 = x2·cos + x1·sin, for each pair (x1, x2) of the first n_rot
    elements of a head

    Inputs:
        x: float[B, S, H, D]   layout bshd; [B, H, S, D] for bhsd; heads packed as [B, S, H·D] or
            [S, H·D].
        cos: float[P, W]       row p holds the cosines at position p; the first S rows are read.
            Or [B, P, W], where each sequence of the batch has positions of its own.
        sin: float[P, W]       the sines, of the shape of cos.

    Attributes:
        head_dim: D.
        n_rot: how many elements of each head are turned; the others are copied.
        style: which elements form pairs: neox (i, i + n_rot / 2) or gptj (2i, 2i + 1).
        layout: ``bshd`` or ``bhsd``, the order of the axes of x.

    Result:
        Same type as x.

    Constraints:
        C1: n_rot is even and 2 ≤ n_rot ≤ head_dim; layout is known.
        C2: x has rank 4, or rank 2 or 3 (packed heads) with layout bshd.
        C3: the heads of x have head_dim elements.
        C4: cos and sin have one shape [P, W] or [B, P, W], where W is n_rot / 2 or head_dim / 2
            (of which the first n_rot / 2 columns are read), and S ≤ P. With a B, x has one too.
        C5: x is one of f32, bf16, f16, f64; cos and sin have its dtype or f32.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Su et al. 2021, arXiv:2104.09864; RLX `Op::Rope`.
    """

    head_dim: int
    n_rot: int
    style: RopeStyle = RopeStyle.NEOX
    layout: str = "bshd"

    def infer(self, x: TensorType, cos: TensorType, sin: TensorType) -> TensorType:
        self._check_attributes()
        self.require(
            "C2",
            x.rank == 4 or (x.rank in (2, 3) and self.layout == "bshd"),
            f"x is required to have rank 4, or rank 2 or 3 with layout 'bshd'; got {x} with "
            f"layout {self.layout!r}. Reshape it.",
        )
        self._check_heads(x)
        self._check_tables(x, cos, sin)
        for name, table in (("cos", cos), ("sin", sin)):
            self.require(
                "C5",
                x.dtype in DTYPES and table.dtype in (x.dtype, DType.F32),
                f"x is required to be one of {', '.join(map(str, DTYPES))}, and {name} to have its "
                f"dtype or f32; got x: {x}, {name}: {table}. Convert them.",
                DTypeError,
            )
        return x

    def decompose(self, x: Value, cos: Value, sin: Value) -> Value:
        from rlx.ops.shape import Concatenate, Narrow

        heads = x
        if x.rank < 4:
            count = dims.exact_div(x.shape[-1], self.head_dim)
            heads = x.reshape(*x.shape[:-1], count, self.head_dim)
        axis = heads.rank - 3 if self.layout == "bshd" else heads.rank - 2
        half, last = self.n_rot // 2, heads.rank - 1

        def along(table: Value) -> Value:
            part = _part(table, heads.shape[axis], half).convert(x.dtype.compute)
            if table.rank == 2:
                return _along(part, axis, heads.shape)
            return _along(part, 0, heads.shape, extra=(axis,))

        turned = heads
        if self.n_rot < self.head_dim:
            turned = Narrow(axis=last, start=0, length=self.n_rot)(heads)
        rotated = rotate(
            turned.convert(x.dtype.compute),
            along(cos),
            along(sin),
            self.style,
        ).convert(x.dtype)
        if self.n_rot < self.head_dim:
            rest = Narrow(axis=last, start=self.n_rot, length=self.head_dim - self.n_rot)(heads)
            rotated = Concatenate(axis=last)(rotated, rest)
        return rotated.reshape(*x.shape) if x.rank < 4 else rotated

    def _check_attributes(self) -> None:
        self.require(
            "C1",
            self.n_rot % 2 == 0 and 2 <= self.n_rot <= self.head_dim,
            f"n_rot is required to be even and from 2 to head_dim = {self.head_dim}; "
            f"got {self.n_rot}. Change the attribute.",
        )
        self.require(
            "C1",
            self.layout in LAYOUTS,
            f"layout is required to be one of {LAYOUTS}; got {self.layout!r}. Choose one.",
        )

    def _check_heads(self, x: TensorType) -> None:
        width = x.shape[-1]
        text = (
            f"heads of {self.head_dim} elements are required along the last axis of x; got {x}. "
            "Check head_dim."
        )
        if x.rank == 4:
            self.require_same_dims("C3", (width,), (self.head_dim,), text)
        else:
            whole = dims.floordiv_(width, self.head_dim) * self.head_dim
            self.require_same_dims("C3", (whole,), (width,), text)

    def _check_tables(self, x: TensorType, cos: TensorType, sin: TensorType) -> None:
        text = (
            f"cos and sin are required to have one shape [P, W] or [B, P, W], W being n_rot / 2 = "
            f"{self.n_rot // 2} or head_dim / 2 = {self.head_dim // 2}, and P ≥ S of x: {x}; "
            f"got cos: {cos}, sin: {sin}. Cut the tables."
        )
        self.require("C4", cos.rank == 2 or (cos.rank == 3 and x.rank > 2), text)
        self.require_same_dims("C4", sin.shape, cos.shape, text)
        rows, columns = cos.shape[-2:]
        self.require_same_dims("C4", cos.shape[:-2], x.shape[: cos.rank - 2], text)
        wider = self.head_dim % 2 == 0 and columns == self.head_dim // 2
        if not wider:
            self.require_same_dims("C4", (columns,), (self.n_rot // 2,), text)
        axis = 0 if x.rank == 2 else 2 if self.layout == "bhsd" else 1
        require_at_most(self, "C4", x.shape[axis], rows, text)


@define_op("axial_rope2d")
class AxialRope2d(Op):
    """Rotary position embedding of the cells of a grid: half of a head by x, half by y.

    Token t stands at p = ⌊t / repeat_factor⌋, in column p mod end_x and row ⌊p / end_x⌋. The
    pairs (2i, 2i + 1), i < D/4, of the first half of each head turn by column · θ_i, those of the
    second half by row · θ_i, where θ_i = theta^(−4i / D).

    Inputs:
        x: float[B, S, H·D]

    Attributes:
        end_x: columns of the grid.
        end_y: rows of the grid.
        head_dim: D.
        num_heads: H.
        theta: base of the frequencies, > 0.
        repeat_factor: how many neighbouring tokens share a cell.

    Result:
        Same type as x.

    Constraints:
        C1: end_x, end_y, num_heads and repeat_factor are ≥ 1; theta is finite and > 0.
        C2: head_dim is a positive multiple of 4.
        C3: x has shape [B, S, H·D].
        C4: S = end_x · end_y · repeat_factor.
        C5: x is one of f32, bf16, f16, f64.

    Numerics: angles and products in f32 (f64 for f64); result rounded once.
    Source: Heo et al. 2024, arXiv:2403.13298; RLX `Op::AxialRope2d`.
    """

    end_x: int
    end_y: int
    head_dim: int
    num_heads: int
    theta: float = 10000.0
    repeat_factor: int = 1

    def infer(self, x: TensorType) -> TensorType:
        counts = {n: getattr(self, n) for n in ("end_x", "end_y", "num_heads", "repeat_factor")}
        self.require(
            "C1",
            min(counts.values()) >= 1 and math.isfinite(self.theta) and self.theta > 0,
            f"required counts ≥ 1 and theta finite and > 0; got "
            f"{', '.join(f'{n} = {v}' for n, v in counts.items())}, theta = {self.theta}. "
            "Change the attribute.",
        )
        self.require(
            "C2",
            self.head_dim > 0 and self.head_dim % 4 == 0,
            f"head_dim is required to be a positive multiple of 4; got {self.head_dim}. "
            "Choose another.",
        )
        width = self.num_heads * self.head_dim
        text = f"x is required to be [B, S, {width}], {width} = H·D; got {x}. Reshape it."
        self.require("C3", x.rank == 3, text)
        self.require_same_dims("C3", x.shape[2:], (width,), text)
        cells = self.end_x * self.end_y * self.repeat_factor
        self.require_same_dims(
            "C4",
            x.shape[1:2],
            (cells,),
            f"x is required to have S = end_x · end_y · repeat_factor = {cells} tokens; got {x}. "
            "Change the grid.",
        )
        self.require(
            "C5",
            x.dtype in DTYPES,
            f"x is required to be one of {', '.join(map(str, DTYPES))}; got {x}. Convert it.",
            DTypeError,
        )
        return x

    def decompose(self, x: Value) -> Value:
        batch, length, _ = x.shape
        wide = x.dtype.compute
        cells = self.end_x * self.end_y * self.repeat_factor
        shape: Shape = (batch, cells, self.num_heads, 2, self.head_dim // 2)
        # Both halves at once: axis 3 says whether a pair turns by its column or by its row.
        angles = self._angles(wide)
        cos, sin = (_along(t, 1, shape, extra=(3,)) for t in (_cos(angles), _sin(angles)))
        halves = x.convert(wide).reshape(*shape)
        turned = rotate(halves, cos, sin, RopeStyle.GPTJ)
        return turned.convert(x.dtype).reshape(batch, length, self.num_heads * self.head_dim)

    def _angles(self, dtype: DType) -> Value:
        """Angles [S, 2, D/4]: those of the columns, then those of the rows."""
        from rlx.ir.operators import constant
        from rlx.ops.arithmetic import Div, Rem
        from rlx.ops.shape import Concatenate, Iota

        cells = self.end_x * self.end_y * self.repeat_factor
        pairs = self.head_dim // 4
        exponents = -4.0 * np.arange(pairs) / self.head_dim
        frequencies = constant((self.theta**exponents).astype(dtype.numpy))

        def number(n: int) -> Value:
            return constant(n, DType.I32).broadcast_to((cells,))

        token = Iota(dtype=DType.I32, shape=(cells,), axis=0)()
        place = Div()(token, number(self.repeat_factor))
        column, row = Rem()(place, number(self.end_x)), Div()(place, number(self.end_x))
        steps = Concatenate(axis=1)(column.reshape(cells, 1), row.reshape(cells, 1))
        steps = steps.convert(dtype).reshape(cells, 2, 1).broadcast_to((cells, 2, pairs))
        return steps * frequencies.broadcast_to((cells, 2, pairs))


def rotate(x: Value, cos: Value, sin: Value, style: RopeStyle) -> Value:
    """Turn the pairs along the last axis of x; cos and sin have one element for each pair.

    Args:
        x: float[..., 2·n].
        cos: float[..., n].
        sin: float[..., n].
        style: which elements form pairs.

    Returns:
        float[..., 2·n] of the dtype of x.
    """
    from rlx.ops.shape import Concatenate, Narrow

    *lead, width = x.shape
    half = dims.exact_div(width, 2)
    last = x.rank - 1
    if style is RopeStyle.NEOX:
        first = Narrow(axis=last, start=0, length=half)(x)
        second = Narrow(axis=last, start=half, length=half)(x)
        turned = (first * cos - second * sin, second * cos + first * sin)
        return Concatenate(axis=last)(*turned)
    pairs = x.reshape(*lead, half, 2)
    first = Narrow(axis=last + 1, start=0, length=1)(pairs).reshape(*lead, half)
    second = Narrow(axis=last + 1, start=1, length=1)(pairs).reshape(*lead, half)
    turned = tuple(
        part.reshape(*lead, half, 1)
        for part in (first * cos - second * sin, second * cos + first * sin)
    )
    return Concatenate(axis=last + 1)(*turned).reshape(*x.shape)


def _part(table: Value, rows: Dim, columns: int) -> Value:
    from rlx.ops.shape import Narrow

    last = table.rank - 1
    if table.shape[last] != columns:
        table = Narrow(axis=last, start=0, length=columns)(table)
    whole = table.shape[last - 1] == rows
    return table if whole else Narrow(axis=last - 1, start=0, length=rows)(table)


def _along(table: Value, axis: int, shape: Shape, extra: tuple[int, ...] = ()) -> Value:
    """A table [S, …, n] with the axes of x, as many columns as it has itself."""
    from rlx.ops.shape import BroadcastInDim

    last = len(shape) - 1
    full = (*shape[:last], table.shape[-1])
    return BroadcastInDim(shape=full, broadcast_dimensions=(axis, *extra, last))(table)


def _cos(x: Value) -> Value:
    from rlx.ops.transcendental import Cos

    return Cos()(x)


def _sin(x: Value) -> Value:
    from rlx.ops.transcendental import Sin

    return Sin()(x)
