"""Many boxes at once, written to computed places."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any, final

import numpy as np

from rlx.dtypes import Kind, as_dtype
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.arithmetic import numbers
from rlx.ops.axes import require_at_most, require_axes
from rlx.ops.elementwise import round_to
from rlx.ops.indexing.gathers import require_batching
from rlx.ops.indexing.places import (
    IndexMode,
    require_components,
    require_integers,
    require_one_dtype,
    window_positions,
    window_starts,
)
from rlx.types import Dim, TensorType


@final
class ScatterKind(enum.Enum):
    """How an update meets the element that is there."""

    SET = "set"
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    MIN = "min"
    MAX = "max"


@define_op("scatter_general")
class ScatterGeneral(Op):
    """x with a window of updates written for each index vector, as `jax.lax.scatter` does.

    indices is ``[*batch, k]``: along its last axis lie vectors of k components; component j is
    where the window starts on axis scatter_dims_to_operand_dims[j] of x. The axes of updates are
    those of batch in order, with the window's axes at update_window_dims.

    y = x; then for each window in order: y[place] = combine(y[place], update)

    Inputs:
        x: T[...]
        indices: int[..., k]
        updates: T[...]

    Attributes:
        kind: how an update is combined; see `ScatterKind`.
        update_window_dims: axes of updates that run inside the window, increasing.
        inserted_window_dims: axes of x that updates leaves out (window dim 1), increasing.
        scatter_dims_to_operand_dims: the axis of x that each component is for.
        operand_batching_dims: axes of x that run along with batch axes of indices, increasing.
        scatter_indices_batching_dims: those axes of indices, in the same order.
        indices_are_sorted: the caller's word that they are; lets XLA be faster.
        unique_indices: the caller's word that no two windows overlap.
        mode: what becomes of a window that is not wholly inside x; see `IndexMode`.

    Result:
        Same type as x. Where windows overlap, SET leaves any of the updates on accelerators; the
        last one here and on XLA's CPU.

    Constraints:
        C1: indices are integers.
        C2: the last axis of indices has one component for each axis in
            scatter_dims_to_operand_dims.
        C3: update_window_dims are distinct increasing axes of updates, whose other axes are the
            batch axes of indices, with equal dims.
        C4: inserted_window_dims and operand_batching_dims are distinct increasing axes of x,
            scatter_dims_to_operand_dims distinct ones; batching axes are in neither of the others.
        C5: batching axes come in pairs of equal dims, none the last axis of indices.
        C6: each axis of x is a window, inserted or batching one.
        C7: window dims of updates are at most those of x.
        C8: x and updates have one dtype.
        C9: SUB takes no bool.

    Numerics: MIN and MAX order complex numbers by real, then by imaginary part. Here narrow
        floats accumulate in f32 and round once; XLA may round after each update.
    Source: StableHLO `scatter`, `jax.lax.scatter` and its kin.
    """

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()
    kind: ScatterKind = ScatterKind.SET
    indices_are_sorted: bool = False
    unique_indices: bool = False
    mode: IndexMode = IndexMode.FILL_OR_DROP

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        require_integers(self, "C1", indices)
        require_components(self, "C2", indices, self.scatter_dims_to_operand_dims)
        window = self.update_window_dims
        require_axes(self, "C3", window, updates, "updates", "update_window_dims", sort=True)
        batch = tuple(d for axis, d in enumerate(updates.shape) if axis not in window)
        self.require_same_dims(
            "C3",
            batch,
            indices.shape[:-1],
            lambda: (
                f"the axes of updates: {updates} outside of {window} are required to be those of "
                f"indices: {indices} without the last; got {list(batch)}."
            ),
        )
        require_batching(
            self, "C4", "C5", x, indices, self.operand_batching_dims,
            self.scatter_indices_batching_dims, self.inserted_window_dims,
            self.scatter_dims_to_operand_dims,
        )  # fmt: skip
        dropped = {*self.inserted_window_dims, *self.operand_batching_dims}
        self.require(
            "C6",
            x.rank == len(window) + len(dropped),
            lambda: (
                f"each axis of x: {x} is required to be a window, inserted or batching one; got "
                f"{len(window)} window axes and {len(dropped)} others."
            ),
        )
        for size, total in zip(self.windows(updates.shape, x.rank), x.shape, strict=True):
            message = (
                f"window dims of updates: {updates} are required to be at most those of x: {x}; "
                f"got {size} where x has {total}."
            )
            if size != 1:  # an inserted axis may be empty: no window is inside then
                require_at_most(self, "C7", size, total, message)
        require_one_dtype(self, "C8", x, updates, "updates")
        require_kind(self, "C9", self.kind, x)
        return x

    def evaluate(self, x: Array, indices: Array, updates: Array) -> Array:
        windows = self.windows(updates.shape, x.ndim)
        pairs = zip(self.operand_batching_dims, self.scatter_indices_batching_dims, strict=True)
        starts, inside = window_starts(
            indices, x.shape, windows, self.scatter_dims_to_operand_dims, list(pairs),
            clip=self.mode is IndexMode.CLIP,
        )  # fmt: skip
        batch = indices.shape[:-1]
        if not updates.size or not inside.any():
            return x.copy()
        strides = [math.prod(x.shape[axis + 1 :]) for axis in range(x.ndim)]
        places = np.zeros((*batch, *windows), np.int64)
        for position, stride in zip(window_positions(starts, windows), strides, strict=True):
            places += position * stride
        outer = [axis for axis in range(updates.ndim) if axis not in self.update_window_dims]
        new = updates.transpose((*outer, *self.update_window_dims)).reshape(places.shape)
        dtype = as_dtype(x.dtype)
        result = x.astype(dtype.compute.numpy).reshape(-1)
        values = new[inside].astype(result.dtype).reshape(-1)
        with np.errstate(all="ignore"):
            _COMBINE[self.kind](result, places[inside].reshape(-1), values)
            return round_to(result, dtype).reshape(x.shape)

    def windows(self, updates: tuple[Dim, ...], rank: int) -> list[Any]:
        """Dims of the window for each axis of x, from the dims of updates."""
        sizes = iter(updates[axis] for axis in self.update_window_dims)
        dropped = {*self.inserted_window_dims, *self.operand_batching_dims}
        return [1 if axis in dropped else next(sizes) for axis in range(rank)]


def require_kind(op: Op, label: str, kind: ScatterKind, x: TensorType) -> None:
    """Require a dtype that the kind of scatter takes."""
    op.require(
        label,
        not (kind is ScatterKind.SUB and x.dtype.kind is Kind.BOOL),
        lambda: f"SUB takes no bool; got {kind.name} on x: {x}. Convert x.",
        DTypeError,
    )


def _set(target: Array, places: Array, values: Array) -> None:
    target[places] = values


def _ordered(
    real: Callable[[Array, Array, Array], None], choose: Callable[[Array, Array], Array]
) -> Callable[[Array, Array, Array], None]:
    """Complex numbers have RLX's order, which is not NumPy's."""

    def combine(target: Array, places: Array, values: Array) -> None:
        if not np.iscomplexobj(target):
            real(target, places, values)
            return
        for place, value in zip(places, values, strict=True):
            target[place] = choose(target[place], value)

    return combine


_COMBINE: dict[ScatterKind, Callable[[Array, Array, Array], None]] = {
    ScatterKind.SET: _set,
    ScatterKind.ADD: np.add.at,
    ScatterKind.SUB: np.subtract.at,
    ScatterKind.MUL: np.multiply.at,
    ScatterKind.MIN: _ordered(np.minimum.at, numbers.minimum),
    ScatterKind.MAX: _ordered(np.maximum.at, numbers.maximum),
}
