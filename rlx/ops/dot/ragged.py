"""Products of groups of rows whose sizes are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir.op import Op, define_op
from rlx.ops.dot.general import (
    DEFAULT_PRECISION,
    DotAlgorithm,
    DotGeneral,
    DotPrecision,
    check_algorithm,
    check_contraction,
    check_precision,
    check_product,
)
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("ragged_dot")
class RaggedDot(Op):
    """Products of groups of one axis of lhs, whose sizes are computed, each with its own part.

    With group g from starts[g] = Σ_{h < g} group_sizes[h] up to starts[g + 1], the ragged axis is

    free:         y[m, n] = Σ_k lhs[m, k] · rhs[g, k, n] for m in group g, and 0 outside all groups
    contracting:  y[g, m, n] = Σ_{k in group g} lhs[m, k] · rhs[k, n]
    batch:        y[b, m, n] = Σ_k lhs[b, m, k] · rhs[b, k, n]   (the groups change nothing)

    Inputs:
        lhs: T[...]   number.
        rhs: U[...]
        group_sizes: integer[G]   or integer[..., G], with one axis for each batch axis of lhs,
            and each other axis of the ragged one's role, that stands before the ragged one.

    Attributes:
        lhs_contracting: axes of lhs that are summed, pairwise with rhs_contracting.
        rhs_contracting: the same for rhs.
        lhs_batch: axes of lhs that are kept together, pairwise with rhs_batch.
        rhs_batch: the same for rhs.
        lhs_ragged: the axis of lhs that is grouped.
        rhs_group: the axis of rhs that counts groups, where the ragged axis is free; else None.
        precision: for lhs and for rhs.
        preferred_element_type: dtype of the accumulation and the result; None means that of lhs.
        algorithm: the one way in which a device has to multiply; None leaves it to precision.

    Result:
        That of dot_general without rhs_group; a contracting ragged axis puts G in front.

    Constraints:
        C1: axes are in range, distinct, and as many for lhs as for rhs; rhs_group is an axis apart.
        C2: paired contracting axes have one size.
        C3: paired batch axes have one size.
        C4: lhs and rhs have one dtype, or preferred_element_type is given and of their kind.
        C5: precision has two entries.
        C6: an algorithm gets real floats, and an f8 one 8-bit floats.
        C7: group_sizes holds integers.
        C8: group_sizes has the axes said above, and G is a number.
        C9: rhs_group is given exactly where the ragged axis is free, and has the size G.

    Numerics: as dot_general.
    Source: `jax.lax.ragged_dot_general`.
    """

    lhs_contracting: tuple[int, ...] = (1,)
    rhs_contracting: tuple[int, ...] = (1,)
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    lhs_ragged: int = 0
    rhs_group: int | None = 0
    precision: tuple[DotPrecision, ...] = DEFAULT_PRECISION
    preferred_element_type: DType | None = None
    algorithm: DotAlgorithm | None = None

    def infer(self, lhs: TensorType, rhs: TensorType, group_sizes: TensorType) -> TensorType:
        check_contraction(self, lhs, rhs, "C1", "C2", "C3")
        taken = (*self.rhs_contracting, *self.rhs_batch)
        group = self.rhs_group
        self.require(
            "C1",
            0 <= self.lhs_ragged < lhs.rank
            and (group is None or (0 <= group < rhs.rank and group not in taken)),
            lambda: (
                f"lhs_ragged is required to be an axis of lhs: {lhs}, and rhs_group one of "
                f"rhs: {rhs} that is neither batch nor contracting; got {self.lhs_ragged} and "
                f"{group}. Count from 0."
            ),
        )
        result = check_product(self, lhs, rhs, self.preferred_element_type, "C4")
        check_precision(self, "C5")
        check_algorithm(self, self.algorithm, lhs, rhs, "C6")
        self.require(
            "C7",
            group_sizes.dtype.is_integer,
            lambda: f"group_sizes are required to be integers; got {group_sizes}. Convert them.",
            DTypeError,
        )
        count = group_sizes.shape[-1] if group_sizes.rank else None
        prefix = tuple(lhs.shape[i] for i in self.prefix(lhs.rank))
        self.require(
            "C8",
            isinstance(count, int) and group_sizes.shape in ((count,), (*prefix, count)),
            lambda: (
                f"group_sizes are required to be [G] or [{', '.join(map(str, (*prefix, 'G')))}] "
                f"with a number G; got {group_sizes}. Give one size for each group."
            ),
        )
        free = self.lhs_ragged not in (*self.lhs_batch, *self.lhs_contracting)
        self.require(
            "C9",
            free is (group is not None) and (group is None or rhs.shape[group] == count),
            lambda: (
                "rhs_group is required to be an axis of size G where the ragged axis is free, and "
                f"None elsewhere; got {group} of rhs: {rhs} with {count} groups. "
                "Name the axis of rhs that counts groups."
            ),
        )
        plain = self._product()
        left = [lhs.shape[i] for i in plain.lhs_free(lhs.rank)]
        right = [rhs.shape[i] for i in plain.rhs_free(rhs.rank) if i != group]
        leading = (count,) if self.lhs_ragged in self.lhs_contracting and count is not None else ()
        batch = [lhs.shape[i] for i in self.lhs_batch]
        return TensorType(result, (*leading, *batch, *left, *right))

    def decompose(self, lhs: Value, rhs: Value, group_sizes: Value) -> Value:
        if self.lhs_ragged in self.lhs_batch:
            return self._product()(lhs, rhs)
        spread = _grouped(lhs, self.lhs_ragged, group_sizes, self.prefix(lhs.rank))
        left, left_batch = _later(self.lhs_contracting), _later(self.lhs_batch)
        if self.rhs_group is not None:
            product = self._product(
                lhs_contracting=(*left, 0),
                rhs_contracting=(*self.rhs_contracting, self.rhs_group),
                lhs_batch=left_batch,
            )
            return product(spread, rhs)
        place = self.lhs_contracting.index(self.lhs_ragged)
        axes = (*self.rhs_batch, *self.rhs_contracting[:place])
        other = _grouped(rhs, self.rhs_contracting[place], group_sizes, axes)
        product = self._product(
            lhs_contracting=left,
            rhs_contracting=_later(self.rhs_contracting),
            lhs_batch=(0, *left_batch),
            rhs_batch=(0, *_later(self.rhs_batch)),
        )
        return product(spread, other)

    def prefix(self, rank: int) -> tuple[int, ...]:
        """The axes of lhs for which group_sizes may differ, in their order."""
        ragged = self.lhs_ragged
        if ragged in self.lhs_batch:
            return self.lhs_batch[: self.lhs_batch.index(ragged)]
        peers = self.lhs_contracting
        if ragged not in peers:
            peers = self._product().lhs_free(rank)
        return (*self.lhs_batch, *peers[: peers.index(ragged)])

    def _product(self, **changes: Any) -> DotGeneral:
        """The product of all of it, with some attributes changed."""
        attributes: dict[str, Any] = {
            "lhs_contracting": self.lhs_contracting,
            "rhs_contracting": self.rhs_contracting,
            "lhs_batch": self.lhs_batch,
            "rhs_batch": self.rhs_batch,
            "precision": self.precision,
            "preferred_element_type": self.preferred_element_type,
            "algorithm": self.algorithm,
        }
        return DotGeneral(**(attributes | changes))


def _later(axes: Sequence[int]) -> tuple[int, ...]:
    """Axes behind one that was put in front."""
    return tuple(axis + 1 for axis in axes)


def _grouped(x: Value, axis: int, group_sizes: Value, prefix: Sequence[int]) -> Value:
    """[G, *x]: x in each group's part of an axis, 0 elsewhere; sizes may differ along a prefix."""
    from rlx.ir.operators import broadcast_to, constant
    from rlx.ops.bitwise import And
    from rlx.ops.compare import Compare, Direction, Select
    from rlx.ops.reduction import CumSum
    from rlx.ops.shape import BroadcastInDim, Iota

    if group_sizes.dtype.bits < DType.I32.bits:  # places and sums need not fit into a narrow dtype
        group_sizes = group_sizes.convert(DType.I32)
    count = group_sizes.shape[-1]
    shape = (count, *x.shape)
    mapped = (0,) if group_sizes.rank == 1 else (*_later(prefix), 0)
    ends: Value = CumSum(axis=group_sizes.rank - 1)(group_sizes)
    starts: Value = CumSum(axis=group_sizes.rank - 1, exclusive=True)(group_sizes)
    counter: Value = Iota(dtype=group_sizes.dtype, shape=shape, axis=axis + 1)()
    order = tuple(sorted(range(len(mapped)), key=mapped.__getitem__))
    place = BroadcastInDim(shape=shape, broadcast_dimensions=tuple(sorted(mapped)))
    starts, ends = (place(_turned(v, order)) for v in (starts, ends))
    late = Compare(direction=Direction.LE)(starts, counter)
    early = Compare(direction=Direction.LT)(counter, ends)
    repeated = BroadcastInDim(shape=shape, broadcast_dimensions=tuple(range(1, x.rank + 1)))(x)
    return Select()(And()(late, early), repeated, broadcast_to(constant(0, x.dtype), shape))


def _turned(x: Value, order: tuple[int, ...]) -> Value:
    from rlx.ops.shape import Transpose

    return x if order == tuple(range(x.rank)) else Transpose(permutation=order)(x)
