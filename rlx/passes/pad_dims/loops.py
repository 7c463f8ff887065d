"""Padding of calls, choices and loops: their graphs are padded too, with the extents handed in."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ops.control_flow import Call, Cond, Scan, While
from rlx.ops.io import Input
from rlx.passes.pad_dims.context import Padding, Results, pads
from rlx.passes.pad_dims.layout import Axis, Padded, Refusal, combined


@pads(Call)
def call(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    from rlx.passes.pad_dims.walk import inlined

    op = node.op
    assert isinstance(op, Call)
    if op.body.effects:
        return Refusal("a call has effects")
    return inlined(ctx, op.body, inputs)


@pads(Cond)
def cond(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Cond)
    index, *operands = inputs
    bodies = [_body(ctx, b, operands) for b in op.branches]
    graphs: list[Graph] = []
    layouts: list[Sequence[Padded]] = []
    for body in bodies:
        if isinstance(body, Refusal):
            return body
        graphs.append(body[0])
        layouts.append(body[1])
    axes: list[list[Axis]] = []
    for results in zip(*layouts, strict=True):
        row: list[Axis] = []
        for axis in range(len(results[0].shape)):
            made = combined([r.axes[axis] for r in results])
            if isinstance(made, Refusal):
                return made
            row.append(made if made is not None else results[0].factors(axis))
        axes.append(row)
    values = [x.value for x in operands]
    made = make_node(
        op.replace(branches=tuple(graphs)),
        [index.value, *values, *ctx.extents.values()],
        node.location,
    )
    return ctx.results(node, made.results, axes)


@pads(Scan)
def scan(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Scan)
    if not isinstance(op.length, int):
        return Refusal("the loop's number of steps is a size that is padded")
    if op.body.effects:
        return Refusal("a loop has effects")
    first = op.num_consts + op.num_carry
    carry = [_settled(x) for x in inputs[op.num_consts : first]]
    given = [
        *inputs[: op.num_consts],
        *carry,
        *(Padded(x.value, x.shape[1:], x.axes[1:]) for x in inputs[first:]),
    ]
    made = _body(ctx, op.body, given, op.num_consts)
    if isinstance(made, Refusal):
        return made
    body, results = made
    clash = _clash(carry, results)
    if clash is not None:
        return clash
    values = [x.value for x in inputs]
    extents = list(ctx.extents.values())
    changed = op.replace(body=body, num_consts=op.num_consts + len(extents))
    looped = make_node(
        changed, [*values[: op.num_consts], *extents, *values[op.num_consts :]], node.location
    )
    axes = [list(c.axes) for c in carry]
    axes += [[(op.length,), *r.axes] for r in results[op.num_carry :]]
    return ctx.results(node, looped.results, axes)


@pads(While)
def while_(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, While)
    if op.body.effects:
        return Refusal("a loop has effects")
    consts = op.cond_consts + op.body_consts
    carry = [_settled(x) for x in inputs[consts:]]
    of_cond, of_body = inputs[: op.cond_consts], inputs[op.cond_consts : consts]
    asked = _body(ctx, op.cond, [*of_cond, *carry], len(of_cond))
    made = _body(ctx, op.body, [*of_body, *carry], len(of_body))
    if isinstance(asked, Refusal):
        return asked
    if isinstance(made, Refusal):
        return made
    clash = _clash(carry, made[1])
    if clash is not None:
        return clash
    extents = list(ctx.extents.values())
    changed = op.replace(
        cond=asked[0],
        body=made[0],
        cond_consts=op.cond_consts + len(extents),
        body_consts=op.body_consts + len(extents),
    )
    operands = [
        *(x.value for x in of_cond),
        *extents,
        *(x.value for x in of_body),
        *extents,
        *(x.value for x in inputs[consts:]),
    ]
    looped = make_node(changed, operands, node.location)
    return ctx.results(node, looped.results, [c.axes for c in carry])


def _body(
    ctx: Padding, graph: Graph, given: Sequence[Padded], place: int | None = None
) -> tuple[Graph, Sequence[Padded]] | Refusal:
    """A padded inner graph and its results; extents are inputs from ``place``, the end if None."""
    from rlx.passes.pad_dims.walk import walked

    inputs: list[Value] = []
    env: dict[Value, Padded] = {}
    for leaf, x in zip(graph.inputs, given, strict=True):
        type_ = leaf.type.with_shape(ctx.shape(leaf.type.shape))
        made: Value = Input(name=leaf.name, dtype=type_.dtype, shape=type_.shape)()
        inputs.append(made)
        env[leaf] = Padded(made, leaf.type.shape, x.axes)
    extents: dict[str, Value] = {
        name: Input(name=value.name or name, dtype=value.type.dtype, shape=())()
        for name, value in ctx.extents.items()
    }
    results = walked(ctx.inside(extents), graph, env)
    if isinstance(results, Refusal):
        return results
    at = len(inputs) if place is None else place
    inputs[at:at] = list(extents.values())
    return Graph(inputs, (), [r.value for r in results], name=graph.name), results


def _settled(x: Padded) -> Padded:
    return Padded(x.value, x.shape, tuple(x.factors(a) for a in range(len(x.shape))))


def _clash(carry: Sequence[Padded], results: Sequence[Padded]) -> Refusal | None:
    for before, after in zip(carry, results, strict=False):
        for axis in range(len(before.shape)):
            made = combined([before.axes[axis], after.axes[axis]])
            if isinstance(made, Refusal):
                return made
    return None
