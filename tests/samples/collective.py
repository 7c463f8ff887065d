"""Samples of shardings, of graphs on shards and of what shards exchange.

A collective by itself has a meaning on one shard only; over more of them the samples are bodies
of ``shard_map``. XLA needs as many devices as a mesh has, which the conformance suite has not:
``tests/rlx_xla/test_sharding.py`` runs these samples on eight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Op
from rlx.ops.collective import (
    AllGather,
    AllToAll,
    AxisIndex,
    Pmax,
    Pmin,
    Ppermute,
    Psum,
    ReduceScatter,
    ShardingConstraint,
    ShardMap,
)
from rlx.ops.io import Input, Param
from rlx.sharding import MeshAxes, Placement
from rlx.types import as_type
from tests.samples.base import ErrorSample, Sample, SymbolicSample, draw

DTYPES = (DType.F32, DType.BF16, DType.I32)
ONE: MeshAxes = (("d", 1),)
FOUR: MeshAxes = (("d", 2), ("m", 2))
DEVICES = "XLA needs as many devices as the mesh has; tests/rlx_xla/test_sharding.py has them"


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in DTYPES:
        x = draw(rng, dtype, (4, 6))
        for op in (
            Psum(mesh=ONE, axes=("d",)),
            Pmax(mesh=ONE, axes=("d",)),
            Pmin(mesh=ONE, axes=()),
            AllGather(mesh=ONE, axes=("d",), axis=1),
            ReduceScatter(mesh=ONE, axes=("d",), axis=1),
            AllToAll(mesh=ONE, axes=("d",), split_axis=0, concat_axis=1),
            Ppermute(mesh=ONE, axes=("d",), perm=((0, 0),)),
            Ppermute(mesh=ONE, axes=("d",), perm=()),
            ShardingConstraint(mesh=ONE, sharding=(("d", "?"), ())),
        ):
            yield Sample(op, (x,), f"{dtype}[4, 6] {op.op_name} on one shard")
        placed = ShardingConstraint(mesh=FOUR, sharding=(("m", "d"), ("?",)))
        yield Sample(placed, (x,), f"{dtype} placed", xla=False, limitation=DEVICES)
        for name, op in _maps(dtype, ONE).items():
            yield Sample(op, (x,), f"{dtype} {name} on one shard")
        for name, op in _maps(dtype, FOUR).items():
            yield Sample(op, (x,), f"{dtype} {name}", xla=False, limitation=DEVICES)
    yield Sample(AxisIndex(mesh=ONE, axes=("d",)), (), "one shard")


def _maps(dtype: DType, mesh: MeshAxes) -> dict[str, Op]:
    """Bodies with one collective each, over the last axis of the mesh and over all."""
    names = tuple(name for name, _ in mesh)
    last, size = mesh[-1]
    parts: Placement = (("d",), (last,) if last != "d" else ())
    half = (last, "d") if last != "d" else ("d",)
    ring = tuple((i, (i + 1) % size) for i in range(size))
    whole: Placement = ((), ())
    columns = 6 // (size if last != "d" else 1)
    rows = 4 // mesh[0][1]

    def op(fn: Callable[[Value], Any], out: Placement, inputs: Placement = parts) -> Op:
        sizes = (4, 6) if inputs == whole else (rows, columns)
        return ShardMap(
            body=body((f"{dtype}[{sizes[0]}, {sizes[1]}]",), fn),
            mesh=mesh,
            manual=names,
            in_shardings=(inputs,),
            out_shardings=(out,),
        )

    return {
        "psum": op(lambda x: Psum(mesh=mesh, axes=(last,))(x), (("d",), ())),
        "psum of all": op(lambda x: Psum(mesh=mesh, axes=half)(x), whole),
        "pmax": op(lambda x: Pmax(mesh=mesh, axes=half)(x), whole),
        "pmin": op(lambda x: Pmin(mesh=mesh, axes=("d",))(x), ((), parts[1])),
        "all_gather": op(lambda x: AllGather(mesh=mesh, axes=half, axis=0)(x), whole),
        "reduce_scatter": op(
            lambda x: ReduceScatter(mesh=mesh, axes=half, axis=0)(x), (half, ()), whole
        ),
        "all_to_all": op(
            lambda x: AllToAll(mesh=mesh, axes=("d",), split_axis=0, concat_axis=1)(x), parts
        ),
        "ppermute": op(lambda x: Ppermute(mesh=mesh, axes=(last,), perm=ring)(x), parts),
        "ppermute to one": op(lambda x: Ppermute(mesh=mesh, axes=("d",), perm=((0, 0),))(x), parts),
        "axis_index": op(lambda x: x + AxisIndex(mesh=mesh, axes=half)().convert(dtype), parts),
    }


def body(types: Sequence[str], fn: Callable[..., Any], *, params: bool = False) -> Graph:
    """A graph of a Python function on values."""
    leaf = Param if params else Input
    leaves = [
        leaf(name=f"x{i}", dtype=t.dtype, shape=t.shape)()
        for i, t in enumerate(map(as_type, types))
    ]
    made = fn(*leaves)
    outputs = (made,) if isinstance(made, Value) else tuple(made)
    return Graph(() if params else leaves, leaves if params else (), outputs, name="body")


def _same(x: Value) -> Value:
    return x


def _map(**changes: Any) -> Callable[[], Op]:
    fields: dict[str, Any] = {
        "body": body(("f32[2, 6]",), _same),
        "mesh": FOUR,
        "manual": ("d", "m"),
        "in_shardings": ((("d",), ()),),
        "out_shardings": ((("d",), ()),),
    }
    return lambda: ShardMap(**{**fields, **changes})


def error_samples() -> Iterator[ErrorSample]:
    kinds: tuple[tuple[Any, dict[str, Any]], ...] = (
        (Psum, {}),
        (Pmax, {}),
        (Pmin, {}),
        (AllGather, {}),
        (ReduceScatter, {}),
        (AllToAll, {"split_axis": 0, "concat_axis": 0}),
        (Ppermute, {"perm": ()}),
    )
    for cls, more in kinds:
        yield ErrorSample(
            lambda cls=cls, more=more: cls(mesh=FOUR, axes=("d", "z"), **more),
            ("f32[4]",), ShapeError, "C1",
            "axes are required to be axes of the mesh (d, m), each at most once; got ('d', 'z')",
        )  # fmt: skip
    yield ErrorSample(
        lambda: AxisIndex(mesh=(), axes=()), (), ShapeError, "C1",
        "mesh: axes with names of their own and sizes ≥ 1 are required; got none",
    )  # fmt: skip
    for cls, text in ((Psum, "a number"), (Pmax, "a real number"), (Pmin, "a real number")):
        yield ErrorSample(
            lambda cls=cls: cls(mesh=FOUR, axes=("d",)), ("bool[4]",), DTypeError, "C2",
            f"x is required to be {text}; got bool[4]",
        )  # fmt: skip
    yield ErrorSample(
        lambda: Pmax(mesh=FOUR, axes=("d",)), ("c64[4]",), DTypeError, "C2", "real number"
    )
    for cls in (AllGather, ReduceScatter):
        yield ErrorSample(
            lambda cls=cls: cls(mesh=FOUR, axes=("d",), axis=1), ("f32[4]",), ShapeError, "C2",
            "axis is required to be in range for x: f32[4], 0 ≤ axis < 1; got 1",
        )  # fmt: skip
    yield ErrorSample(
        lambda: AllToAll(mesh=FOUR, axes=("d",), split_axis=0, concat_axis=2),
        ("f32[4, 4]",), ShapeError, "C2", "concat_axis is required to be in range for x",
    )  # fmt: skip
    yield ErrorSample(
        lambda: ReduceScatter(mesh=FOUR, axes=("d", "m")), ("f32[6]",), ShapeError, "C3",
        "axis 0 of x: f32[6] is required to be divisible by 4",
    )  # fmt: skip
    yield ErrorSample(
        lambda: AllToAll(mesh=FOUR, axes=("d",), split_axis=0, concat_axis=0),
        ("f32[5]",), ShapeError, "C3", "split_axis 0 of x: f32[5] is required to be divisible by 2",
    )  # fmt: skip
    yield ErrorSample(
        lambda: ReduceScatter(mesh=FOUR, axes=("d",)), ("bool[4]",), DTypeError, "C4", "a number"
    )
    for perm in (((0, 2),), ((0, 1), (0, 0)), ((0, 1), (1, 1))):
        yield ErrorSample(
            lambda perm=perm: Ppermute(mesh=FOUR, axes=("d",), perm=perm),
            ("f32[4]",), ShapeError, "C2", "pairs of positions below 2",
        )  # fmt: skip
    place = ShardingConstraint
    yield ErrorSample(
        lambda: place(mesh=(("d", 2), ("d", 2)), sharding=((),)), ("f32[4]",), ShapeError, "C1",
        "got 'd' twice",
    )  # fmt: skip
    yield ErrorSample(
        lambda: place(mesh=FOUR, sharding=((),)), ("f32[4, 4]",), ShapeError, "C2",
        "the sharding of x is required to have an entry for each axis, here 2; got 1",
    )  # fmt: skip
    for wrong in ((("z",),), (("d", "d"),), (("?", "d"),)):
        yield ErrorSample(
            lambda wrong=wrong: place(mesh=FOUR, sharding=wrong), ("f32[4]",), ShapeError, "C3",
            "the sharding of x is required to name axes of the mesh (d, m), each at most once",
        )  # fmt: skip
    yield ErrorSample(
        lambda: place(mesh=FOUR, sharding=(("d", "m"),)), ("f32[6]",), ShapeError, "C4",
        "axis 0 of x is required to be divisible by 4, the size of 'd' × 'm'; got 6. Pad it to 8",
    )  # fmt: skip
    whole = ("f32[4, 6]",)
    yield ErrorSample(_map(mesh=(("d", 0),)), whole, ShapeError, "C1", "got 'd'=0")
    yield ErrorSample(_map(manual=("z",)), whole, ShapeError, "C2", "axes of the mesh (d, m)")
    yield ErrorSample(
        _map(in_shardings=()), whole, ShapeError, "C3", "1 operands and 1 outputs; got 0 and 1"
    )
    yield ErrorSample(_map(in_shardings=((("d",),),)), whole, ShapeError, "C4", "operands[0]")
    yield ErrorSample(_map(out_shardings=((("d",),),)), whole, ShapeError, "C4", "output 0")
    yield ErrorSample(
        _map(manual=("d",), in_shardings=((("m",), ()),)), whole, ShapeError, "C5",
        "axis 0 names 'm'",
    )  # fmt: skip
    yield ErrorSample(
        _map(in_shardings=(((), ("d", "m")),)), whole, ShapeError, "C6",
        "axis 1 of operands[0] is required to be divisible by 4",
    )  # fmt: skip
    yield ErrorSample(
        _map(in_shardings=(((), ()),)), whole, ShapeError, "C7",
        "body is required to take the shards of the operands (f32[4, 6])",
    )  # fmt: skip
    yield ErrorSample(
        _map(body=body(("f32[2, 6]",), _same, params=True)), whole, ShapeError, "C7", "no params"
    )


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(
        ShardingConstraint(mesh=FOUR, sharding=(("d",), ())), ("f32[b, 4]",), {"b": 6}
    )
    yield SymbolicSample(Psum(mesh=FOUR, axes=("d",)), ("f32[b]",), {"b": 3})
    yield SymbolicSample(AllGather(mesh=FOUR, axes=("d",)), ("f32[b]",), {"b": 3})
