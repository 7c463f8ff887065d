"""Shardings and manual computations as Shardy, collectives as StableHLO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ops import collective as ops
from rlx.sharding import MeshAxes, axes_size
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import dense_elements as dense
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext, i64
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules.arithmetic import compare, compare_kind


@lowers(ops.ShardingConstraint)
def sharding_constraint(ctx: LoweringContext, op: ops.ShardingConstraint, x: ir.Value) -> ir.Value:
    if ctx.portable or axes_size(op.mesh) == 1:  # it says where a value lies, not what it is
        return x
    attributes = {"sharding": ctx.module.meshes.sharding(op.mesh, op.sharding)}
    made = ir.Operation.create(
        "sdy.sharding_constraint", results=ctx.result_types, operands=[x], attributes=attributes
    )
    return made.results[0]


@lowers(ops.ShardMap)
def shard_map(ctx: LoweringContext, op: ops.ShardMap, *operands: ir.Value) -> Sequence[ir.Value]:
    if axes_size(op.mesh) == 1:
        return ctx.inline(op.body, operands)
    if ctx.portable:
        raise ctx.refuse(
            "portable StableHLO is for one device; got a shard_map. Lower it without portable."
        )
    meshes = ctx.module.meshes
    manual = ", ".join(f'"{name}"' for name, _ in op.mesh if name in op.manual)
    made = ir.Operation.create(
        "sdy.manual_computation",
        results=ctx.result_types,
        operands=list(operands),
        attributes={
            "in_shardings": meshes.shardings(op.mesh, op.in_shardings),
            "out_shardings": meshes.shardings(op.mesh, op.out_shardings),
            "manual_axes": ir.Attribute.parse(f"#sdy<manual_axes{{{manual}}}>"),
        },
        regions=1,
    )
    types = [ctx.mlir_type(v.type) for v in op.body.inputs]
    where = ctx.module.location(ctx.node.location)
    block = made.regions[0].blocks.append(*types, arg_locs=[where] * len(types))
    with ir.InsertionPoint(block):
        results = ctx.inline(op.body, list(block.arguments))
        ir.Operation.create("sdy.return", operands=results)
    return list(made.results)


@lowers(ops.Psum)
def psum(ctx: LoweringContext, op: ops.Psum, x: ir.Value) -> ir.Value:
    return _all_reduce(ctx, op.mesh, op.axes, x, stablehlo.add)


@lowers(ops.Pmax)
def pmax(ctx: LoweringContext, op: ops.Pmax, x: ir.Value) -> ir.Value:
    return _extreme(ctx, op, x, stablehlo.maximum)


@lowers(ops.Pmin)
def pmin(ctx: LoweringContext, op: ops.Pmin, x: ir.Value) -> ir.Value:
    return _extreme(ctx, op, x, stablehlo.minimum)


@lowers(ops.AllGather)
def all_gather(ctx: LoweringContext, op: ops.AllGather, x: ir.Value) -> ir.Value:
    if _alone(op.mesh, op.axes):
        return x
    if 0 in ctx.output_types[0].shape:  # StableHLO gathers along no axis of size 0
        return ctx.full(0, ctx.output_types[0])
    attributes = {"all_gather_dim": i64(op.axis), **_groups(ctx, op.mesh, op.axes)}
    made = ir.Operation.create(
        "stablehlo.all_gather", results=ctx.result_types, operands=[x], attributes=attributes
    )
    return made.results[0]


@lowers(ops.ReduceScatter)
def reduce_scatter(ctx: LoweringContext, op: ops.ReduceScatter, x: ir.Value) -> ir.Value:
    if _alone(op.mesh, op.axes):
        return x
    return _reducing(
        ctx,
        "stablehlo.reduce_scatter",
        x,
        {"scatter_dimension": i64(op.axis), **_groups(ctx, op.mesh, op.axes)},
        stablehlo.add,
    )


@lowers(ops.AllToAll)
def all_to_all(ctx: LoweringContext, op: ops.AllToAll, x: ir.Value) -> ir.Value:
    groups = replica_groups(op.mesh, op.axes)
    if len(groups[0]) == 1:
        return x
    made = ir.Operation.create(
        "stablehlo.all_to_all",
        results=ctx.result_types,
        operands=[x],
        attributes={
            "split_dimension": i64(op.split_axis),
            "concat_dimension": i64(op.concat_axis),
            "split_count": i64(len(groups[0])),
            "replica_groups": _dense(groups),
            "channel_handle": _channel(ctx),
        },
    )
    return made.results[0]


@lowers(ops.Ppermute)
def ppermute(ctx: LoweringContext, op: ops.Ppermute, x: ir.Value) -> ir.Value:
    groups = replica_groups(op.mesh, op.axes)
    pairs = [[group[source], group[target]] for group in groups for source, target in op.perm]
    if not pairs:
        return ctx.full(0, ctx.output_types[0])
    made = ir.Operation.create(
        "stablehlo.collective_permute",
        results=ctx.result_types,
        operands=[x],
        attributes={"source_target_pairs": _dense(pairs), "channel_handle": _channel(ctx)},
    )
    return made.results[0]


@lowers(ops.AxisIndex)
def axis_index(ctx: LoweringContext, op: ops.AxisIndex) -> ir.Value:
    if _alone(op.mesh, op.axes):
        return ctx.constant(0, DType.I32)
    device = stablehlo.partition_id()
    position: ir.Value | None = None
    for name in op.axes:
        names = [known for known, _ in op.mesh]
        sizes = [size for _, size in op.mesh]
        place = names.index(name)
        stride = int(np.prod(sizes[place + 1 :], dtype=np.int64))
        there = stablehlo.divide(device, ctx.constant(stride, DType.U32))
        there = stablehlo.remainder(there, ctx.constant(sizes[place], DType.U32))
        if position is not None:
            position = stablehlo.multiply(position, ctx.constant(sizes[place], DType.U32))
            there = stablehlo.add(position, there)
        position = there
    assert position is not None
    return stablehlo.convert(ctx.mlir_type(TensorType(DType.I32)), position)


def replica_groups(mesh: MeshAxes, axes: Sequence[str]) -> list[list[int]]:
    """Devices, by their number in the mesh, that differ along some axes alone.

    Each group is in the order of ``axes``, the first the slowest.
    """
    names = [name for name, _ in mesh]
    sizes = [size for _, size in mesh]
    numbers = np.arange(int(np.prod(sizes, dtype=np.int64))).reshape(sizes)
    moved = numbers.transpose(
        [i for i, name in enumerate(names) if name not in axes] + [names.index(a) for a in axes]
    )
    count = int(np.prod([sizes[names.index(a)] for a in axes], dtype=np.int64))
    return moved.reshape(-1, count).tolist()


def _all_reduce(
    ctx: LoweringContext,
    mesh: MeshAxes,
    axes: Sequence[str],
    x: ir.Value,
    combine: Callable[[Any, Any], Any],
) -> ir.Value:
    if _alone(mesh, axes):
        return x
    return _reducing(ctx, "stablehlo.all_reduce", x, _groups(ctx, mesh, axes), combine)


def _extreme(
    ctx: LoweringContext, op: ops.Pmax | ops.Pmin, x: ir.Value, combine: Callable[[Any, Any], Any]
) -> ir.Value:
    """The largest or smallest of the shards, NaN where one of them has NaN."""
    made = _all_reduce(ctx, op.mesh, op.axes, x, combine)
    type_ = ctx.input_types[0]
    if ctx.platform != "cpu" or not type_.dtype.is_float or _alone(op.mesh, op.axes):
        return made
    kind = compare_kind(type_.dtype)
    # XLA:CPU's own exchange passes over NaN; a sum of what is NaN carries it.
    marks = stablehlo.select(compare(x, x, "NE", kind), x, ctx.full(0, type_))
    found = _all_reduce(ctx, op.mesh, op.axes, marks, stablehlo.add)
    return stablehlo.select(compare(found, found, "NE", kind), found, made)


def _reducing(
    ctx: LoweringContext,
    name: str,
    x: ir.Value,
    attributes: dict[str, ir.Attribute],
    combine: Callable[[Any, Any], Any],
) -> ir.Value:
    made = ir.Operation.create(
        name, results=ctx.result_types, operands=[x], attributes=attributes, regions=1
    )
    scalar = ctx.mlir_type(TensorType(ctx.input_types[0].dtype))
    ctx.region(made.regions[0], [scalar, scalar], combine)
    return made.results[0]


def _alone(mesh: MeshAxes, axes: Sequence[str]) -> bool:
    """Whether each group is one device, which exchanges nothing."""
    sizes = dict(mesh)
    return all(sizes[name] == 1 for name in axes)


def _groups(ctx: LoweringContext, mesh: MeshAxes, axes: Sequence[str]) -> dict[str, ir.Attribute]:
    return {
        "replica_groups": _dense(replica_groups(mesh, axes)),
        "channel_handle": _channel(ctx),
        "use_global_device_ids": ir.UnitAttr.get(),
    }


def _dense(numbers: list[list[int]]) -> ir.Attribute:
    return dense(np.asarray(numbers, np.int64))


def _channel(ctx: LoweringContext) -> ir.Attribute:
    """A channel between devices; each collective has one of its own."""
    ctx.module.channels += 1
    number = ctx.module.channels
    return ir.Attribute.parse(f"#stablehlo.channel_handle<handle = {number}, type = 1>")
