"""Shardings, ``shard_map`` and what shards exchange."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from rlx.errors import TraceError
from rlx.ir.graph import Graph
from rlx.ops import collective as ops
from rlx.ops.control_flow import Cond, Scan, While
from rlx.sharding import OPEN, Mesh, MeshAxes, Placement
from rlx_xla._jax_compat import placement
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule


@to_jax_rule(ops.ShardingConstraint)
def sharding_constraint(ctx: JaxContext, op: ops.ShardingConstraint, x: Any) -> Any:
    mesh = _mesh(op.mesh)
    return lax.with_sharding_constraint(x, placement.named_sharding(mesh, _entries(op.sharding)))


@to_jax_rule(ops.ShardMap)
def shard_map(ctx: JaxContext, op: ops.ShardMap, *operands: Any) -> Any:
    def body(*shards: Any) -> tuple[Any, ...]:
        return tuple(ctx.function(op.body)(*shards))

    spec = jax.sharding.PartitionSpec
    mapped = jax.shard_map(
        body,
        mesh=_mesh(op.mesh),
        in_specs=tuple(spec(*_entries(p)) for p in op.in_shardings),
        out_specs=tuple(spec(*_entries(p)) for p in op.out_shardings),
        axis_names=set(op.manual),
        check_vma=op.checked and not _has_loops(op.body),
    )
    return mapped(*operands)


@to_jax_rule(ops.Psum)
def psum(ctx: JaxContext, op: ops.Psum, x: Any) -> Any:
    return lax.psum(x, op.axes)


@to_jax_rule(ops.Pmax)
def pmax(ctx: JaxContext, op: ops.Pmax, x: Any) -> Any:
    return lax.pmax(x, op.axes)


@to_jax_rule(ops.Pmin)
def pmin(ctx: JaxContext, op: ops.Pmin, x: Any) -> Any:
    return lax.pmin(x, op.axes)


@to_jax_rule(ops.AllGather)
def all_gather(ctx: JaxContext, op: ops.AllGather, x: Any) -> Any:
    return lax.all_gather(x, op.axes, axis=op.axis, tiled=True)


@to_jax_rule(ops.ReduceScatter)
def reduce_scatter(ctx: JaxContext, op: ops.ReduceScatter, x: Any) -> Any:
    return lax.psum_scatter(x, op.axes, scatter_dimension=op.axis, tiled=True)


@to_jax_rule(ops.AllToAll)
def all_to_all(ctx: JaxContext, op: ops.AllToAll, x: Any) -> Any:
    return lax.all_to_all(x, op.axes, op.split_axis, op.concat_axis, tiled=True)


@to_jax_rule(ops.Ppermute)
def ppermute(ctx: JaxContext, op: ops.Ppermute, x: Any) -> Any:
    return lax.ppermute(x, op.axes, op.perm)


@to_jax_rule(ops.AxisIndex)
def axis_index(ctx: JaxContext, op: ops.AxisIndex) -> Any:
    return lax.axis_index(op.axes)


def _has_loops(graph: Graph) -> bool:
    """Whether choices or loops are inside, whose types say nothing of what differs by shard."""
    return any(
        isinstance(node.op, Cond | Scan | While)
        for inner in graph.all_graphs()
        for node in inner.nodes()
    )


def _mesh(axes: MeshAxes) -> jax.sharding.Mesh:
    """JAX's default devices as a mesh.

    Raises:
        TraceError: there are too few.
    """
    mesh = Mesh(axes)
    devices = jax.devices()
    if len(devices) < mesh.size:
        raise TraceError(
            f"to_jax: {mesh} requires {mesh.size} devices; JAX has {len(devices)}. Start JAX with "
            "more devices, or take the shardings from the graph."
        )
    return placement.device_mesh(devices[: mesh.size], axes)


def _entries(found: Placement) -> list[Any]:
    """The entries of JAX's spec."""
    free = jax.sharding.PartitionSpec.UNCONSTRAINED
    return [free if OPEN in names else names or None for names in found]
