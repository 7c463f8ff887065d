"""Reductions over the shards of a ``shard_map``."""

from __future__ import annotations

import functools

import numpy as np

from rlx.dtypes import DType, Kind
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.collective.axes import require_axes
from rlx.ops.collective.shards import exchange
from rlx.types import TensorType


@define_op("psum")
class Psum(Op):
    """The sum of what the shards along some mesh axes hold.

    y = Σ x of the shards that differ along `axes` alone

    Inputs:
        x: any number.

    Attributes:
        mesh: names and sizes of the mesh's axes.
        axes: along which shards are summed.

    Result:
        Same type as x; the same on every shard of a group.

    Constraints:
        C1: axes are axes of the mesh, each at most once.
        C2: x is a number, not a bool.

    Numerics: floats of 16 bits and less are summed in f32 and rounded once.
    Source: StableHLO `all_reduce`, `jax.lax.psum`; RLX `collective.all_reduce` and
    `collective.reduce_from_parallel`.
    """

    mesh: tuple[tuple[str, int], ...]
    axes: tuple[str, ...]

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self, "C1", self.mesh, self.axes)
        _require_number(self, "C2", x)
        return x

    def evaluate(self, x: Array) -> Array:
        parts, _ = exchange(self.op_name, self.mesh, self.axes, x)
        return summed(parts)


@define_op("pmax")
class Pmax(Op):
    """The elementwise maximum of what the shards along some mesh axes hold.

    Inputs:
        x: any real number.

    Attributes:
        mesh: names and sizes of the mesh's axes.
        axes: along which shards are compared.

    Result:
        Same type as x; NaN where a shard has NaN.

    Constraints:
        C1: axes are axes of the mesh, each at most once.
        C2: x is a real number, not a bool.

    Source: StableHLO `all_reduce`, `jax.lax.pmax`.
    """

    mesh: tuple[tuple[str, int], ...]
    axes: tuple[str, ...]

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self, "C1", self.mesh, self.axes)
        _require_number(self, "C2", x, real=True)
        return x

    def evaluate(self, x: Array) -> Array:
        parts, _ = exchange(self.op_name, self.mesh, self.axes, x)
        return functools.reduce(np.maximum, parts)


@define_op("pmin")
class Pmin(Op):
    """The elementwise minimum of what the shards along some mesh axes hold.

    Inputs:
        x: any real number.

    Attributes:
        mesh: names and sizes of the mesh's axes.
        axes: along which shards are compared.

    Result:
        Same type as x; NaN where a shard has NaN.

    Constraints:
        C1: axes are axes of the mesh, each at most once.
        C2: x is a real number, not a bool.

    Source: StableHLO `all_reduce`, `jax.lax.pmin`.
    """

    mesh: tuple[tuple[str, int], ...]
    axes: tuple[str, ...]

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self, "C1", self.mesh, self.axes)
        _require_number(self, "C2", x, real=True)
        return x

    def evaluate(self, x: Array) -> Array:
        parts, _ = exchange(self.op_name, self.mesh, self.axes, x)
        return functools.reduce(np.minimum, parts)


def summed(parts: list[Array]) -> Array:
    """The sum of arrays of one dtype; narrow floats are summed in f32."""
    dtype = parts[0].dtype
    if len(parts) == 1:
        return parts[0]
    narrow = dtype.itemsize < 4 and dtype.kind not in "iub"
    wide = [part.astype(np.float32) if narrow else part for part in parts]
    return functools.reduce(np.add, wide).astype(dtype)


def _require_number(op: Op, label: str, x: TensorType, *, real: bool = False) -> None:
    right = x.dtype.kind is not Kind.BOOL and x.dtype is not DType.TOKEN
    right = right and not (real and x.dtype.is_complex)
    op.require(
        label,
        right,
        f"x is required to be a {'real ' if real else ''}number; got {x}. Convert it.",
        DTypeError,
    )
