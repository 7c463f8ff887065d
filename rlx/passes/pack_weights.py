"""Weights of products and lookups become packed ones, in nested graphs too.

Not a pass of a pipeline: it changes the params of a graph, so that whoever calls it must have their
values (`rlx.packing`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast, final

import numpy as np

from rlx import dims
from rlx.dtypes import DType
from rlx.ir import location as loc
from rlx.ir.attributes import Literal
from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.ir.op import Op
from rlx.ir.questions import still_asking
from rlx.ir.rewrite import with_inner_graphs
from rlx.ops.compare import Select
from rlx.ops.control_flow import Call, CallKind, Cond, Scan, While
from rlx.ops.convert import Convert
from rlx.ops.dot import DotGeneral, Matmul
from rlx.ops.indexing import Gather, GatherGeneral, IndexMode
from rlx.ops.io import Constant, Input, Param
from rlx.ops.quantized import DequantGather, DequantMatmul, DequantMatmulInt8
from rlx.ops.shape import BroadcastInDim
from rlx.passes.native_numbers import native_numbers
from rlx.quant.schemes import QuantScheme
from rlx.types import TensorType


@final
@dataclass(eq=False)
class Weight:
    """A param that products or lookups read.

    Attributes:
        param: the value.
        leading: axes at the front along which loops take slices.
        contracted: axes of a slice that products sum over; a lookup's row is such an axis.
        reasons: why it cannot be packed; empty where it can.
        uses: products and lookups, each counted once however often a loop runs it.
        scheme: of a param that is packed already.
    """

    param: Value
    leading: int | None = None
    contracted: tuple[int, ...] | None = None
    reasons: list[str] = field(default_factory=list[str])
    uses: int = 0
    scheme: str = ""

    @property
    def slice_shape(self) -> tuple[int, ...]:
        """Sizes of a slice."""
        return cast("tuple[int, ...]", self.param.shape[self.leading or 0 :])

    @property
    def inner(self) -> int:
        """K: how many numbers a product sums."""
        return math.prod(self.slice_shape[a] for a in self.contracted or ())

    @property
    def order(self) -> tuple[int, ...]:
        """Axes of a slice, the contracted ones first: as [K, N] when reshaped."""
        axes = self.contracted or ()
        return (*axes, *(a for a in range(len(self.slice_shape)) if a not in axes))

    def note(self, leading: int, contracted: tuple[int, ...]) -> None:
        """Count a use."""
        self.uses += 1
        if self.leading is None:
            self.leading, self.contracted = leading, contracted
        elif (self.leading, self.contracted) != (leading, contracted):
            self.reasons.append("its uses sum over different axes")


@final
@dataclass(frozen=True)
class Packed:
    """What takes a weight's place.

    Attributes:
        weight: the param that is gone.
        scheme: what the bytes mean.
        tensors: codes, and what else the scheme has, of a slice or with the loops' axes in front.
        rounded: products round their inputs to signed bytes.
    """

    weight: Weight
    scheme: QuantScheme
    tensors: tuple[Value, ...]
    rounded: bool = False


def find_weights(graph: Graph) -> list[Weight]:
    """Params of rank 2 or more that products or lookups read, in order; some may be refused."""
    found = {
        v: Weight(v) for v in graph.params if v.dtype.is_float and v.rank >= 2 and v.type.is_static
    }
    _look(graph, {v: (w, 0) for v, w in found.items()})
    return [w for w in found.values() if w.uses]


def find_packed(graph: Graph) -> list[Weight]:
    """Params of GGUF blocks that come apart (`rlx.quant.native`), read by products and lookups."""
    found = {
        v: Weight(v)
        for v in graph.params
        if v.dtype is DType.U8 and v.rank >= 2 and v.type.is_static
    }
    _look(graph, {v: (w, 0) for v, w in found.items()})
    return [w for w in found.values() if w.uses and w.scheme and not w.reasons]


def replace_weights(graph: Graph, packed: Mapping[Value, Packed]) -> Graph:
    """The graph with packed params in place of some of its weights.

    Args:
        graph: as `find_weights` saw it.
        packed: by the params that go; none of their weights has reasons against it.
    """
    params = [v for v in graph.params if v not in packed]
    params += [v for one in packed.values() for v in one.tensors]
    return still_asking(graph, _Replacing().graph(graph, packed, graph.inputs, params))


def _look(graph: Graph, held: Mapping[Value, tuple[Weight, int]]) -> None:
    """Note the uses of weights; held: value → its weight and how many axes loops have taken."""
    aliases = dict(held)
    for node in graph.nodes():
        if not any(v in aliases for v in node.inputs):
            continue
        if isinstance(node.op, Convert) and node.types[0].dtype.is_float:
            aliases[node.results[0]] = aliases[node.inputs[0]]
            continue
        insides = bodies_of(node)
        if insides is not None:
            for inner, places in insides:
                inside = {
                    inner.inputs[at]: (aliases[v][0], aliases[v][1] + sliced)
                    for at, (v, sliced) in places.items()
                    if v in aliases
                }
                if inside:
                    _look(inner, inside)
            handed = {v for _, places in insides for v, _ in places.values()}
            _refuse(node, aliases, handed)
            continue
        place = _weight_at(node)
        if place is not None and node.inputs[place[0]] in aliases:
            at, axes = place
            weight, leading = aliases[node.inputs[at]]
            weight.note(leading, axes)
            if isinstance(node.op, DequantGather | DequantMatmul | DequantMatmulInt8):
                weight.scheme = node.op.scheme
            other = node.inputs[1 - at]
            if other in aliases:
                aliases[other][0].reasons.append("a product of two params reads it")
            continue
        _refuse(node, aliases, ())
    for value in graph.outputs:
        if value in aliases:
            aliases[value][0].reasons.append("it is a result")


def _refuse(
    node: Node, aliases: Mapping[Value, tuple[Weight, int]], besides: Collection[Value]
) -> None:
    for value in node.inputs:
        if value in aliases and value not in besides:
            aliases[value][0].reasons.append(f"{node.op.op_name} reads it")


def bodies_of(node: Node) -> list[tuple[Graph, dict[int, tuple[Value, int]]]] | None:
    """Graphs in a node: place of an input → (operand, 1 where the loop takes slices of it)."""
    op, inputs = node.op, node.inputs
    match op:
        case Call() if op.kind in (CallKind.JIT, CallKind.REMAT):
            return [(op.body, {i: (v, 0) for i, v in enumerate(inputs)})]
        case Cond():
            places = {i: (v, 0) for i, v in enumerate(inputs[1:])}
            return [(branch, places) for branch in op.branches]
        case While():
            first, last = op.cond_consts, op.cond_consts + op.body_consts
            return [
                (op.cond, {i: (v, 0) for i, v in enumerate(inputs[:first])}),
                (op.body, {i: (v, 0) for i, v in enumerate(inputs[first:last])}),
            ]
        case Scan():
            first = op.num_consts + op.num_carry
            last = len(inputs) - len(op.body.effects)
            places = {i: (v, 0) for i, v in enumerate(inputs[: op.num_consts])}
            places |= {i: (inputs[i], 1) for i in range(first, last)}
            return [(op.body, places)]
        case _:
            return None


def _weight_at(node: Node) -> tuple[int, tuple[int, ...]] | None:
    """Which input of a product or lookup may be packed, and its contracted axes in order."""
    op = node.op
    if isinstance(op, DequantGather):
        return (0, ()) if len(node.inputs) == 2 else None
    if isinstance(op, DequantMatmul | DequantMatmulInt8):
        return (1, ()) if len(node.inputs) == 2 else None
    if isinstance(op, GatherGeneral | Gather):
        return (0, (1,)) if _is_lookup(node) else None
    if isinstance(op, Matmul):
        return (1, (0,)) if node.inputs[1].rank == 2 and node.inputs[0].rank >= 1 else None
    if not isinstance(op, DotGeneral) or op.lhs_batch:
        return None
    # A weight is a param, mostly by way of a conversion or a body's input; the other factor is not.
    sides = [_root(v) for v in node.inputs]
    at = 1 if isinstance(sides[1].node.op, Param | Input) and sides[1].rank >= 2 else 0
    if isinstance(sides[0].node.op, Param) and not isinstance(sides[1].node.op, Param):
        at = 0
    axes = op.rhs_contracting if at else op.lhs_contracting
    floats = all(v.dtype.is_float for v in node.inputs)
    whole = 0 < len(axes) < node.inputs[at].rank
    return (at, tuple(sorted(axes))) if floats and whole else None


def _root(value: Value) -> Value:
    while isinstance(value.node.op, Convert):
        value = value.node.inputs[0]
    return value


def _is_lookup(node: Node) -> bool:
    """Whether a gather reads whole rows of a matrix."""
    op, (table, indices) = node.op, node.inputs
    if table.rank != 2:
        return False
    if isinstance(op, Gather):
        return op.axis == 0
    return (
        isinstance(op, GatherGeneral)
        and op.slice_sizes == (1, table.shape[1])
        and op.collapsed_slice_dims == op.start_index_map == (0,)
        and op.offset_dims == (indices.rank - 1,)
        and not op.operand_batching_dims
    )


@final
class _Replacing:
    """One call of `replace_weights`; bodies that get the same packed inputs stay shared."""

    def __init__(self) -> None:
        self._made: dict[object, Graph] = {}

    def graph(
        self,
        graph: Graph,
        packed: Mapping[Value, Packed],
        inputs: Sequence[Value],
        params: Sequence[Value],
    ) -> Graph:
        held = dict(packed)
        new: dict[Value, Value] = {}
        for node in graph.nodes():
            if any(v in held for v in node.results):
                continue
            if isinstance(node.op, Convert) and node.inputs[0] in held:
                held[node.results[0]] = held[node.inputs[0]]
                continue
            inputs_now = tuple(new.get(v, v) for v in node.inputs)
            if not any(v in held for v in node.inputs):
                if inputs_now != node.inputs:
                    made = Node(node.op, inputs_now, node.types, node.location).results
                    new.update(zip(node.results, made, strict=True))
                continue
            with loc.at(node.location):
                if inner_graphs(node.op):
                    results = self._holder(node, inputs_now, held)
                else:
                    results = (_carried_out(node, inputs_now, held),)
            new.update(zip(node.results, results, strict=True))
        outputs = [new.get(v, v) for v in graph.outputs]
        effects = [new.get(v, v) for v in graph.effects]
        return Graph(inputs, params, outputs, effects, name=graph.name)

    def _holder(
        self, node: Node, inputs: Sequence[Value], held: Mapping[Value, Packed]
    ) -> tuple[Value, ...]:
        """A node with graphs inside, which now take the packed tensors."""
        insides = bodies_of(node) or []
        bodies = [
            self._body(inner, {
                at: (held[v], sliced) for at, (v, sliced) in places.items() if v in held
            })
            for inner, places in insides
        ]  # fmt: skip
        wide: list[Value] = []
        for value, now in zip(node.inputs, inputs, strict=True):
            wide += held[value].tensors if value in held else [now]
        op = with_inner_graphs(node.op, bodies)
        made = _counted(op, node, held)(*wide)
        return cast("tuple[Value, ...]", made if isinstance(made, tuple) else (made,))

    def _body(self, inner: Graph, places: Mapping[int, tuple[Packed, int]]) -> Graph:
        if not places:
            return inner
        kinds = tuple(
            (
                *(at, str(one.scheme), one.weight.contracted, one.weight.slice_shape, sliced),
                *(v.type for v in one.tensors),
            )
            for at, (one, sliced) in places.items()
        )
        key = (inner, kinds)
        if key not in self._made:
            inputs: list[Value] = []
            packed: dict[Value, Packed] = {}
            for at, value in enumerate(inner.inputs):
                if at not in places:
                    inputs.append(value)
                    continue
                one, sliced = places[at]
                tensors = tuple(
                    _input(f"{value.name}/{part}", tensor.type, sliced)
                    for part, tensor in enumerate(one.tensors)
                )
                inputs += tensors
                packed[value] = Packed(one.weight, one.scheme, tensors)
            self._made[key] = self.graph(inner, packed, inputs, inner.params)
        return self._made[key]


def _input(name: str, kind: TensorType, sliced: int) -> Value:
    made: Value = Input(name=name, dtype=kind.dtype, shape=kind.shape[sliced:])()
    return made


def _counted(op: Op, node: Node, held: Mapping[Value, Packed]) -> Op:
    """The op with as many constants as there are operands now."""

    def more(values: Sequence[Value]) -> int:
        return sum(len(held[v].tensors) - 1 for v in values if v in held)

    if isinstance(op, Scan):
        return op.replace(num_consts=op.num_consts + more(node.inputs[: op.num_consts]))
    if isinstance(op, While):
        first, last = op.cond_consts, op.cond_consts + op.body_consts
        return op.replace(
            cond_consts=first + more(node.inputs[:first]),
            body_consts=op.body_consts + more(node.inputs[first:last]),
        )
    return op


def _carried_out(node: Node, inputs: Sequence[Value], held: Mapping[Value, Packed]) -> Value:
    """A product with a packed weight, or rows of one."""
    op, result = node.op, node.types[0]
    if isinstance(op, DequantGather):
        return _native_rows(inputs[1], held[node.inputs[0]]).convert(result.dtype)
    if isinstance(op, DequantMatmul | DequantMatmulInt8):
        mine = held[node.inputs[1]]
        x = inputs[0].convert(_wider(inputs[0].dtype, DType.F32))
        dot = DotGeneral(lhs_contracting=(x.rank - 1,), rhs_contracting=(0,))
        numbers = native_numbers(mine.scheme, mine.tensors).convert(x.dtype)
        return cast("Value", dot(x, numbers)).convert(result.dtype)
    if isinstance(op, GatherGeneral | Gather):
        return _rows(node, inputs[1], held[node.inputs[0]])
    at = 1 if node.inputs[1] in held else 0
    one, x = held[node.inputs[at]], inputs[1 - at]
    if isinstance(op, Matmul):
        pairs = [(x.rank - 1, 0)]
    else:
        dot = cast("DotGeneral", op)
        right, left = dot.rhs_contracting, dot.lhs_contracting
        pairs = list(zip(left, right, strict=True) if at else zip(right, left, strict=True))
    summed = [axis for axis, _ in sorted(pairs, key=lambda pair: pair[1])]
    free = [axis for axis in range(x.rank) if axis not in summed]
    sizes = [x.shape[axis] for axis in free]
    if [*free, *summed] != list(range(x.rank)):
        x = x.transpose(*free, *summed)
    if len(summed) > 1:
        x = x.reshape((*sizes, one.weight.inner))
    # A product is rounded to the dtype of x: it must not be narrower than the result.
    x = x.convert(_wider(x.dtype, result.dtype))
    kind = DequantMatmulInt8 if one.rounded else DequantMatmul
    product: Value = kind(scheme=str(one.scheme))(x, *one.tensors)
    outer = [one.weight.slice_shape[a] for a in one.weight.order[len(summed) :]]
    if len(outer) != 1:
        product = product.reshape((*sizes, *outer))
    if not at and sizes:
        axes = range(product.rank)
        product = product.transpose(*axes[len(sizes) :], *axes[: len(sizes)])
    return product.convert(result.dtype)


def _native_rows(indices: Value, one: Packed) -> Value:
    """f32[..., K] of columns of codes [K, N]."""
    chosen = indices.reshape((dims.product(indices.shape),))
    columns: list[Value] = [Gather(axis=1)(t, chosen) for t in one.tensors]
    numbers = native_numbers(one.scheme, columns)
    return numbers.T.reshape((*indices.shape, numbers.shape[0]))


def _wider(given: DType, result: DType) -> DType:
    return result if result.itemsize > given.itemsize else given


def _rows(node: Node, indices: Value, one: Packed) -> Value:
    op, result = node.op, node.types[0]
    if isinstance(op, GatherGeneral):
        indices = indices.reshape(indices.shape[:-1])
    weight, *rest = one.tensors
    lookup = DequantGather(scheme=str(one.scheme), size=one.weight.inner, dtype=result.dtype)
    rows: Value = lookup(weight, indices, *rest)
    if not isinstance(op, GatherGeneral) or op.mode is not IndexMode.FILL_OR_DROP:
        return rows
    count = one.weight.slice_shape[0]
    inside = (indices >= 0) & (indices <= count - 1)
    number = float("nan") if op.fill_value is None else float(op.fill_value.array)
    # One truth for each row, repeated along it.
    wide = BroadcastInDim(shape=rows.shape, broadcast_dimensions=tuple(range(indices.rank)))
    fill: Value = Constant(value=Literal(np.asarray(number, result.dtype.numpy)))()
    filled = BroadcastInDim(shape=rows.shape, broadcast_dimensions=())(fill)
    return cast("Value", Select()(wide(inside), rows, filled))
