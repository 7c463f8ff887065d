"""What fusions look for: products, biases, activations, halves; and who uses a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value, inner_graphs, make_node
from rlx.ir.op import Op
from rlx.ir.rewrite import with_graphs
from rlx.ops.activation import Gelu, Relu, Silu
from rlx.ops.activation_kinds import Activation
from rlx.ops.arithmetic import Mul
from rlx.ops.control_flow import Call, Cond, Scan, While
from rlx.ops.dot import DotGeneral, Matmul
from rlx.ops.dot.general import DEFAULT_PRECISION
from rlx.ops.fused.operands import DTYPES
from rlx.ops.shape import BroadcastInDim, Expand, Narrow, Reshape, Slice, Split
from rlx.ops.transcendental import Logistic, Tanh

NESTING = (Call, Cond, Scan, While)
"""Ops in whose bodies fusions are looked for too."""


@final
class Uses:
    """How often each value of a graph is read, by nodes and as an output."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs = set(graph.outputs) | set(graph.effects)
        self._users: dict[Value, list[Node]] = {}
        for node in graph.nodes():
            for value in node.inputs:
                self._users.setdefault(value, []).append(node)

    def users(self, value: Value) -> list[Node]:
        """The nodes that read a value, once for each operand that it is."""
        return self._users.get(value, [])

    def only(self, value: Value) -> bool:
        """Whether one node reads a value, once, and it is no output: it may be absorbed."""
        return len(self.users(value)) == 1 and value not in self.outputs


@final
@dataclass(frozen=True)
class Fused:
    """What stands for a node.

    Attributes:
        op: the fused op.
        inputs: values of the source graph.
        make: builds the result from the inputs' counterparts instead of ``op`` alone.
    """

    op: Op
    inputs: tuple[Value, ...]
    make: Callable[[Sequence[Value]], Value] | None = None

    def build(self, inputs: Sequence[Value]) -> Value:
        """The result over counterparts of the inputs."""
        if self.make is not None:
            return self.make(inputs)
        return make_node(self.op, inputs).results[0]


Matcher = Callable[[Uses, Node], "Fused | None"]


@final
@dataclass(frozen=True)
class Product:
    """x [..., K] times weight [K, N], as one node.

    Attributes:
        value: the result [..., N].
        x: the left operand.
        weight: the right one.
    """

    value: Value
    x: Value
    weight: Value


def product_of(value: Value) -> Product | None:
    """The plain product that a value is: one dtype, no batch, nothing said about precision."""
    node = value.node
    op = node.op
    if isinstance(op, Matmul):
        x, weight = node.inputs
    elif isinstance(op, DotGeneral):
        x, weight = node.inputs
        plain = (
            op.lhs_contracting == (x.rank - 1,)
            and op.rhs_contracting == (0,)
            and not op.lhs_batch
            and op.precision == DEFAULT_PRECISION
            and op.algorithm is None
            and op.preferred_element_type in (None, x.dtype)
        )
        if not plain:
            return None
    else:
        return None
    sound = weight.rank == 2 and x.rank >= 1 and x.dtype is weight.dtype and x.dtype in DTYPES
    return Product(value, x, weight) if sound else None


def is_product(op: Op) -> bool:
    """Whether an op counts as a matmul in reports."""
    return isinstance(op, Matmul | DotGeneral)


def vector_along(value: Value, axis: int) -> Value | None:
    """The vector that a value repeats along every other axis; None when it is no such thing."""
    if not value.rank:
        return None
    if not 0 <= axis < value.rank:
        return None
    size = value.shape[axis]
    while value.rank != 1:
        node = value.node
        op = node.op
        if isinstance(op, BroadcastInDim):
            source = node.inputs[0]
            if axis not in op.broadcast_dimensions:
                return None
            axis = op.broadcast_dimensions.index(axis)
        elif isinstance(op, Expand):
            source = node.inputs[0]
            axis -= value.rank - source.rank
            if axis < 0:
                return None
        elif isinstance(op, Reshape):
            source = node.inputs[0]
            if sum(d != 1 for d in source.shape) != 1:
                return None
            axis = next(i for i, d in enumerate(source.shape) if d != 1)
        else:
            return None
        others = (d for i, d in enumerate(source.shape) if i != axis)
        if source.shape[axis] != size or any(d != 1 for d in others):
            return None
        value = source
    return value


def biased(node: Node, axis: int) -> tuple[Value, Value] | None:
    """An addend and the vector added to it along an axis, the addends in either order."""
    for index in (0, 1):
        vector = vector_along(node.inputs[1 - index], axis)
        if vector is not None and node.inputs[index].shape == node.types[0].shape:
            return node.inputs[index], vector
    return None


def activation_of(op: Op) -> Activation | None:
    """The activation that an op is, of those that fused ops take on."""
    if isinstance(op, Gelu):
        return Activation.GELU_APPROX if op.approximate else Activation.GELU
    if isinstance(op, Silu):
        return Activation.SILU
    return Activation.RELU if isinstance(op, Relu) else None


def other_activation(op: Op) -> str:
    """The name of an activation that fused ops do not take on, or an empty text."""
    family = type(op).__module__ == "rlx.ops.activation"
    if activation_of(op) is None and (family or isinstance(op, Tanh | Logistic)):
        return op.op_name
    return ""


def gate_of(node: Node) -> tuple[Value, Value, Value] | None:
    """silu(gate) · up: the silu's value, gate and up; also gate · logistic(gate) · up."""
    if not isinstance(node.op, Mul):
        return None
    for index in (0, 1):
        silu, up = node.inputs[index], node.inputs[1 - index]
        if isinstance(silu.node.op, Silu):
            return silu, silu.node.inputs[0], up
    return None


def half_of(value: Value) -> tuple[Value, int] | None:
    """The value of whose last axis this is one half, and which."""
    node = value.node
    op = node.op
    if not node.inputs or not isinstance(op, Narrow | Slice | Split):
        return None
    x = node.inputs[0]
    if x.rank != value.rank or x.rank < 1:
        return None
    half, whole = value.shape[-1], x.shape[-1]
    if not isinstance(half, int) or whole != 2 * half or x.shape[:-1] != value.shape[:-1]:
        return None
    if isinstance(op, Split):
        same_axis = op.axis == x.rank - 1 and len(op.sizes) == 2
        return (x, value.index) if same_axis else None
    if isinstance(op, Narrow):
        start = op.start if op.axis == x.rank - 1 else None
    else:
        start = op.start_indices[-1] if all(s == 1 for s in op.strides) else None
    places = {0: 0, half: 1}
    return (x, places[start]) if isinstance(start, int) and start in places else None


def rounds_once(node: Node) -> bool:
    """Whether fusing changes no rounding: the steps compute in the dtype that they give."""
    return node.types[0].dtype in (DType.F32, DType.F64)


def replace_everywhere(graph: Graph, start: Callable[[Graph], Matcher]) -> tuple[Graph, int]:
    """Put fused ops in place of what a matcher finds, in the graph and in bodies; count them.

    ``start`` gives the matcher of one graph. A matcher looks at nodes of the source graph, so that
    it sees who uses what; what it absorbs is left without users.
    """
    count = 0
    done: dict[Graph, Graph] = {}
    everything = graph.all_graphs()
    nesting = (n.op for g in everything for n in g.nodes() if isinstance(n.op, NESTING))
    bodies = {body for op in nesting for body in inner_graphs(op)}
    for inner in everything:
        if inner is not graph and inner not in bodies:
            continue
        current = with_graphs(inner, done) if done else inner
        made, found = _replace(current, start(current))
        count += found
        if made is not inner:
            done[inner] = made
    return done.get(graph, graph), count


def _replace(graph: Graph, matcher: Matcher) -> tuple[Graph, int]:
    uses = Uses(graph)
    new: dict[Value, Value] = {}
    count = 0
    for node in graph.nodes():
        found = matcher(uses, node)
        if found is not None:
            made = found.build([new.get(v, v) for v in found.inputs])
            new[node.results[0]] = Node(
                made.node.op, made.node.inputs, made.node.types, node.location
            ).results[made.index]
            count += 1
            continue
        inputs = tuple(new.get(v, v) for v in node.inputs)
        if inputs != node.inputs:
            rebuilt = Node(node.op, inputs, node.types, node.location)
            new.update(zip(node.results, rebuilt.results, strict=True))
    if not count:
        return graph, 0
    outputs = [new.get(v, v) for v in graph.outputs]
    effects = [new.get(v, v) for v in graph.effects]
    return Graph(graph.inputs, graph.params, outputs, effects, name=graph.name), count
