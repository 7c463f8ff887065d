"""One box whose place is computed."""

from __future__ import annotations

from collections.abc import Sequence

from rlx import dims
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most
from rlx.ops.indexing.places import require_one_dtype
from rlx.types import Dim, TensorType


@define_op("dynamic_slice")
class DynamicSlice(Op):
    """A box of fixed size at computed start indices.

    y[i0, …] = x[s0 + i0, …],  s_a = clamp(0, start_a, size_a − sizes_a)

    Inputs:
        x: T[...]
        start_indices: int[]   one scalar for each axis of x.

    Attributes:
        sizes: dims of the box.

    Result:
        T[sizes]; a start that would put the box outside is moved inside.

    Constraints:
        C1: there is one size and one start index for each axis of x.
        C2: start_indices are integer scalars of one dtype.
        C3: 0 ≤ size ≤ dim of x on each axis.

    Source: StableHLO `dynamic_slice`, `jax.lax.dynamic_slice`.
    """

    sizes: tuple[Dim, ...]

    def infer(self, x: TensorType, *start_indices: TensorType) -> TensorType:
        self.require(
            "C1",
            len(self.sizes) == x.rank == len(start_indices),
            lambda: (
                f"one size and one start index is required for each axis of x: {x}; got "
                f"{len(self.sizes)} and {len(start_indices)}."
            ),
        )
        _require_starts(self, "C2", start_indices)
        _require_box(self, "C3", x, self.sizes, "sizes")
        return x.with_shape(self.sizes)

    def evaluate(self, x: Array, *start_indices: Array) -> Array:
        sizes = [dims.evaluate(size, {}) for size in self.sizes]
        return x[_box(x, sizes, start_indices)].copy()


@define_op("dynamic_update_slice")
class DynamicUpdateSlice(Op):
    """x with a box at computed start indices replaced.

    y[s0 + i0, …] = update[i0, …],  y = x elsewhere,
    s_a = clamp(0, start_a, size_a − shape(update)_a)

    Inputs:
        x: T[...]
        update: T[...]   the new elements.
        start_indices: int[]   one scalar for each axis of x.

    Result:
        Same type as x.

    Constraints:
        C1: there is one start index for each axis of x.
        C2: start_indices are integer scalars of one dtype.
        C3: update has the rank of x and no larger dims.
        C4: x and update have one dtype.

    Source: StableHLO `dynamic_update_slice`, `jax.lax.dynamic_update_slice`.
    """

    def infer(self, x: TensorType, update: TensorType, *start_indices: TensorType) -> TensorType:
        self.require(
            "C1",
            len(start_indices) == x.rank,
            lambda: (
                f"one start index is required for each axis of x: {x}; got {len(start_indices)}."
            ),
        )
        _require_starts(self, "C2", start_indices)
        self.require(
            "C3",
            update.rank == x.rank,
            lambda: f"update is required to have the rank of x: {x}; got {update}. Reshape it.",
        )
        _require_box(self, "C3", x, update.shape, "the dims of update")
        require_one_dtype(self, "C4", x, update, "update")
        return x

    def evaluate(self, x: Array, update: Array, *start_indices: Array) -> Array:
        result = x.copy()
        result[_box(x, update.shape, start_indices)] = update
        return result


def _box(x: Array, sizes: Sequence[int], start_indices: Sequence[Array]) -> tuple[slice, ...]:
    box: list[slice] = []
    for total, size, start in zip(x.shape, sizes, start_indices, strict=True):
        first = max(0, min(int(start), total - size))
        box.append(slice(first, first + size))
    return tuple(box)


def _require_starts(op: Op, label: str, starts: Sequence[TensorType]) -> None:
    good = all(t.rank == 0 and t.dtype.is_integer and t.dtype is starts[0].dtype for t in starts)
    op.require(
        label,
        good,
        lambda: (
            "start_indices are required to be integer scalars of one dtype; "
            f"got {', '.join(map(str, starts))}. Convert or reshape them."
        ),
        DTypeError,
    )


def _require_box(op: Op, label: str, x: TensorType, sizes: Sequence[Dim], what: str) -> None:
    for axis, (size, total) in enumerate(zip(sizes, x.shape, strict=True)):
        message = (
            f"{what} are required to be between 0 and {total} on axis {axis} of x: {x}; "
            f"got {size}. Choose a box that fits."
        )
        require_at_most(op, label, 0, size, message)
        require_at_most(op, label, size, total, message)
