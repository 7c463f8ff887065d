"""Shardings, ``shard_map`` and what shards exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.ir.graph import Graph, Value
from rlx.ops import collective as ops
from rlx.ops.reduction import ReduceMax, ReduceMin, ReduceSum
from rlx.ops.shape import Reshape
from rlx.sharding import MeshAxes, placement_of
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla._jax_compat import shardings as js
from rlx_xla.tracing import shardings
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import rule_for, traces

_MODELLED = frozenset(
    {"psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant"}
    | {"reduce_scatter", "all_to_all", "ppermute", "axis_index", "pvary", "pcast"}
)
"""Primitives with a rule below that names mesh axes."""


@traces("sharding_constraint")
def sharding_constraint(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    made = shardings.constrained(x, params["sharding"]) if params.get("layout") is None else None
    return NotImplemented if made is None else made


@traces("reshard")
def reshard(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    wanted = params.get("dst_sharding", params.get("sharding"))
    found = js.named_placement(wanted)
    if found is not None and found.automatic:  # the compiler divides it as it likes
        return x
    made = shardings.constrained(x, wanted)
    return NotImplemented if made is None else made


@traces("shard_map")
def shard_map(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
    found = js.shard_map_params(params)
    if found is None or not all(map(_is_modelled, js.collectives_of(found.jaxpr))):
        return NotImplemented
    closed = jx.closed_jaxpr(found.jaxpr)
    meshes = ctx.walker.meshes
    meshes.append(found.axes)
    try:
        body: Graph = ctx.graph(closed, "shard")
        captured, effects = ctx.constants(closed), ctx.effects(closed)
    finally:
        meshes.pop()
    if effects:
        return NotImplemented
    specs = [*[()] * len(captured), *found.in_specs]
    given = (*captured, *operands)
    return ops.ShardMap(
        body=body,
        mesh=found.axes,
        manual=found.manual,
        in_shardings=tuple(
            placement_of("in_specs", spec, v.type.rank)
            for spec, v in zip(specs, given, strict=True)
        ),
        out_shardings=tuple(
            placement_of("out_specs", spec, v.type.rank)
            for spec, v in zip(found.out_specs, body.outputs, strict=True)
        ),
        checked=found.checked,
    )(*given)


def _is_modelled(equation: Any) -> bool:
    name, params = equation.primitive.name, equation.params
    if name not in _MODELLED or rule_for(name) is None or params.get("axis_index_groups"):
        return False
    given = params.get("axes", params.get("axis_name"))
    if name in _REDUCING:
        given, _ = js.named_and_vmapped(given)
    return js.axis_names(given) is not None


_REDUCING: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "psum": (ops.Psum, ReduceSum),
    "psum_invariant": (ops.Psum, ReduceSum),
    "pmax": (ops.Pmax, ReduceMax),
    "pmin": (ops.Pmin, ReduceMin),
}
"""By primitive: the op over axes of a mesh, and that over axes which ``vmap`` made."""


def _reducing(primitive: str) -> None:
    over_mesh, over_axes = _REDUCING[primitive]

    @traces(primitive)
    def rule(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
        named, vmapped = js.named_and_vmapped(params["axes"])
        place = _place(ctx, {**params, "axes": named}, "axes") if named else None
        if (named and place is None) or params.get("axis_index_groups"):
            return NotImplemented
        made = list(operands)
        if vmapped:
            made = [over_axes(axes=vmapped)(x) for x in made]
        if place is not None:
            mesh, axes = place
            made = [over_mesh(mesh=mesh, axes=axes)(x) for x in made]
        return tuple(made)


for _primitive in _REDUCING:
    _reducing(_primitive)


@traces("pvary", "pcast")
def pvary(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Sequence[Value]:
    """What JAX notes about differences between shards changes no value."""
    return operands


@traces("all_gather", "all_gather_invariant")
def all_gather(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
    place = _place(ctx, params, "axis_name")
    if place is None:
        return NotImplemented
    mesh, axes = place
    axis = int(params["all_gather_dimension"])
    made: list[Value] = []
    for x in operands:
        if not params["tiled"]:  # each shard is one slice of a new axis
            x = Reshape(shape=(*x.type.shape[:axis], 1, *x.type.shape[axis:]))(x)
        made.append(ops.AllGather(mesh=mesh, axes=axes, axis=axis)(x))
    return tuple(made)


@traces("reduce_scatter")
def reduce_scatter(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
    place = _place(ctx, params, "axis_name")
    if place is None:
        return NotImplemented
    mesh, axes = place
    axis = int(params["scatter_dimension"])
    made: list[Value] = []
    for x in operands:
        y: Value = ops.ReduceScatter(mesh=mesh, axes=axes, axis=axis)(x)
        if not params["tiled"]:  # the axis has one slice for each shard, and goes
            y = Reshape(shape=(*y.type.shape[:axis], *y.type.shape[axis + 1 :]))(y)
        made.append(y)
    return tuple(made)


@traces("all_to_all")
def all_to_all(ctx: TraceContext, params: dict[str, Any], x: Value) -> Any:
    place = _place(ctx, params, "axis_name")
    if place is None:
        return NotImplemented
    mesh, axes = place
    return ops.AllToAll(
        mesh=mesh,
        axes=axes,
        split_axis=int(params["split_axis"]),
        concat_axis=int(params["concat_axis"]),
    )(x)


@traces("ppermute")
def ppermute(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
    place = _place(ctx, params, "axis_name")
    if place is None:
        return NotImplemented
    mesh, axes = place
    perm = tuple((int(source), int(target)) for source, target in params["perm"])
    return tuple(ops.Ppermute(mesh=mesh, axes=axes, perm=perm)(x) for x in operands)


@traces("axis_index")
def axis_index(ctx: TraceContext, params: dict[str, Any]) -> Any:
    place = _place(ctx, params, "axis_name")
    if place is None:
        return NotImplemented
    mesh, axes = place
    return ops.AxisIndex(mesh=mesh, axes=axes)()


def _place(
    ctx: TraceContext, params: dict[str, Any], key: str
) -> tuple[MeshAxes, tuple[str, ...]] | None:
    """The mesh around an equation and the axes it names; None where they are not modelled."""
    meshes = ctx.walker.meshes
    axes = js.axis_names(params[key])
    if not meshes or axes is None or params.get("axis_index_groups"):
        return None
    mesh: MeshAxes = meshes[-1]
    return (mesh, axes) if set(axes) <= {name for name, _ in mesh} else None
