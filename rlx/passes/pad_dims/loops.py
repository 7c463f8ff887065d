"""Padding of calls, choices and loops: their graphs are padded too, with the extents handed in."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.operators import broadcast_to
from rlx.ops.compare import Select
from rlx.ops.control_flow import Call, Cond, Scan, While
from rlx.ops.external import External
from rlx.ops.io import Input
from rlx.passes.pad_dims.context import Padding, Results, as_padded, pads, scalar
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
    if op.body.effects:
        return Refusal("a loop has effects")
    first = op.num_consts + op.num_carry
    for x in inputs[first:]:
        clash = x.clashing([0])
        if clash is not None:
            return clash
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
    if not isinstance(op.length, int):  # steps in the padding keep the carry
        body = _stopping(body, op.num_carry, op.num_consts + len(extents))
        count = ctx.size(op.length)
        line = broadcast_to(scalar(0, DType.I32), (count,))
        inside = ctx.mask(as_padded(line, (op.length,)), [0])
        assert inside is not None
        values.append(inside)
    changed = op.replace(
        body=body, num_consts=op.num_consts + len(extents), length=ctx.size(op.length)
    )
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


def _stopping(body: Graph, count: int, first: int) -> Graph:
    """A loop's body with one more input, which is false for steps that are not to be done.

    Args:
        body: its ``count`` first results are the carry.
        count: number of carried values.
        first: place of the carry among the inputs.
    """
    inside: Value = Input(name="__rlx_inside", dtype=DType.BOOL, shape=())()
    carry = body.inputs[first : first + count]
    results = list(body.outputs)
    if any(isinstance(n.op, While | External) for g in body.all_graphs() for n in g.nodes()):
        # On what is no element a loop may never end, and a function of the user's may fail.
        nothing = [broadcast_to(scalar(0, v.type.dtype), v.shape) for v in results[count:]]
        skip = Graph(body.inputs, (), [*carry, *nothing], name="skip")
        given = [Input(name=v.name, dtype=v.dtype, shape=v.shape)() for v in body.inputs]
        chosen = make_node(Cond(branches=(skip, body)), [inside, *given]).results
        return Graph([*given, inside], (), chosen, name=body.name)
    for index, (new, old) in enumerate(zip(results[:count], carry, strict=True)):
        results[index] = Select()(broadcast_to(inside, new.shape), new, old)
    return Graph([*body.inputs, inside], (), results, name=body.name)


def _settled(x: Padded) -> Padded:
    return Padded(x.value, x.shape, tuple(x.factors(a) for a in range(len(x.shape))))


def _clash(carry: Sequence[Padded], results: Sequence[Padded]) -> Refusal | None:
    for before, after in zip(carry, results, strict=False):
        for axis in range(len(before.shape)):
            made = combined([before.axes[axis], after.axes[axis]])
            if isinstance(made, Refusal):
                return made
    return None
