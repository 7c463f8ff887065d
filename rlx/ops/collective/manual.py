"""A graph that is computed on the shards of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlx import dims
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.collective.shards import Coordinates, run_shards
from rlx.ops.placement import Placement, require_mesh, require_placement
from rlx.sharding import axes_size
from rlx.types import Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Graph


@define_op("shard_map")
class ShardMap(Op):
    """A graph applied to the shards of its operands, on each device its own.

    Inside of the body, types are those of one shard, and collectives (``psum``, ``all_gather`` …)
    exchange values between shards. In NumPy every shard is computed, each in a thread of its own.

    Inputs:
        operands: one for each input of the body, in order, whole.

    Attributes:
        body: what each device computes.
        mesh: names and sizes of the axes of the devices.
        manual: the axes over which operands are divided here; the compiler divides over others.
        in_shardings: for each operand, for each axis the mesh axes that divide it.
        out_shardings: the same for each output of the body.
        checked: JAX follows which values differ between shards, and its derivatives use that.

    Result:
        The outputs, whole: parts joined along the axes that are divided. An output must be the
        same on shards that differ only along mesh axes which its sharding does not name.

    Constraints:
        C1: the mesh has axes with names of their own and sizes ≥ 1.
        C2: manual names axes of the mesh, each at most once.
        C3: there is an in_sharding for each operand and an out_sharding for each output.
        C4: a sharding has an entry for each axis.
        C5: shardings name manual axes, each at most once.
        C6: each dim of an operand is divisible by the mesh axes that divide it.
        C7: the body has no params and no effects, and takes the shards of the operands.

    Source: Shardy `sdy.manual_computation`, `jax.shard_map`.
    """

    body: Graph
    mesh: tuple[tuple[str, int], ...]
    manual: tuple[str, ...]
    in_shardings: tuple[tuple[tuple[str, ...], ...], ...]
    out_shardings: tuple[tuple[tuple[str, ...], ...], ...]
    checked: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        require_mesh(self, "C1", self.mesh)
        sizes = dict(self.mesh)
        self.require(
            "C2",
            set(self.manual) <= set(sizes) and len(set(self.manual)) == len(self.manual),
            f"manual is required to name axes of the mesh ({', '.join(sizes)}), each at most "
            f"once; got ({', '.join(map(repr, self.manual))}). Correct the names.",
        )
        body = self.body
        self.require(
            "C3",
            len(self.in_shardings) == len(operands)
            and len(self.out_shardings) == len(body.outputs),
            f"in_shardings and out_shardings are required for {len(operands)} operands and "
            f"{len(body.outputs)} outputs; got {len(self.in_shardings)} and "
            f"{len(self.out_shardings)}. Give one for each.",
        )
        own = tuple((name, size) for name, size in self.mesh if name in self.manual)
        shards: list[TensorType] = []
        for i, (x, placement) in enumerate(zip(operands, self.in_shardings, strict=True)):
            self._require(f"operands[{i}]", own, placement, x.shape)
            shards.append(x.with_shape(self._part(x.shape, placement)))
        found = [v.type for v in body.inputs]
        self.require(
            "C7",
            not body.params and not body.effects and found == shards,
            lambda: (
                "body is required to take the shards of the operands "
                f"({', '.join(map(str, shards))}), and to have no params and no effects; it takes "
                f"({', '.join(map(str, found))}). Give its inputs the types of the shards."
            ),
        )
        results: list[TensorType] = []
        for i, (value, placement) in enumerate(zip(body.outputs, self.out_shardings, strict=True)):
            shape = value.type.shape
            whole = tuple(
                dim * self._parts(names)
                for dim, names in zip(shape, placement, strict=False)
                if all(name in sizes for name in names)
            )
            short = len(whole) != len(shape) or len(placement) != len(shape)
            self._require(f"output {i}", own, placement, shape if short else whole)
            results.append(value.type.with_shape(whole))
        return tuple(results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        from rlx.ir.interpret import run

        sizes = dict(self.mesh)
        axes = tuple((name, sizes[name]) for name in self.manual)

        def compute(at: Coordinates) -> Sequence[Array]:
            return run(
                self.body,
                [
                    x[self._slices(x.shape, placement, at)]
                    for x, placement in zip(operands, self.in_shardings, strict=True)
                ],
            )

        shards = run_shards(axes, compute)
        results: list[Array] = []
        for index, (value, placement) in enumerate(
            zip(self.body.outputs, self.out_shardings, strict=True)
        ):
            part = tuple(dims.evaluate(d, {}) for d in value.type.shape)
            shape = tuple(n * self._parts(names) for n, names in zip(part, placement, strict=True))
            whole = np.zeros(shape, value.type.dtype.numpy)
            for at, made in reversed(shards):  # the first of equal shards stays
                whole[self._slices(shape, placement, at)] = made[index]
            results.append(whole)
        return tuple(results)

    def _require(
        self, what: str, own: tuple[tuple[str, int], ...], placement: Placement, shape: Shape
    ) -> None:
        require_placement(self, what, own, placement, shape, labels=("C4", "C5", "C6"))

    def _parts(self, names: tuple[str, ...]) -> int:
        sizes = dict(self.mesh)
        return axes_size((name, sizes[name]) for name in names)

    def _part(self, shape: Shape, placement: Placement) -> Shape:
        parts = [self._parts(names) for names in placement]
        return tuple(
            dim if count == 1 else dim // count for dim, count in zip(shape, parts, strict=True)
        )

    def _slices(
        self, shape: tuple[int, ...], placement: Placement, at: Coordinates
    ) -> tuple[slice, ...]:
        """The part of a whole array that lies on one shard."""
        sizes = dict(self.mesh)
        found: list[slice] = []
        for size, names in zip(shape, placement, strict=True):
            position = 0
            for name in names:
                position = position * sizes[name] + at[name]
            part = size // self._parts(names)
            found.append(slice(position * part, (position + 1) * part))
        return tuple(found)
