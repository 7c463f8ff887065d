"""Products with bias, activation and residual; products that share what they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ops.activation_kinds import Activation
from rlx.ops.arithmetic import Add
from rlx.ops.convolution import Conv, ConvGeneralDilated
from rlx.ops.dot.general import DEFAULT_PRECISION
from rlx.ops.fused import (
    FusedConvBiasAct,
    FusedMatmulBiasAct,
    FusedMatmulResidual,
    FusedSwiglu,
)
from rlx.ops.fused.operands import DTYPES
from rlx.ops.io import Constant, Param
from rlx.ops.shape import Concatenate, Narrow
from rlx.passes.fuse.forms import (
    Fused,
    Matcher,
    Product,
    Uses,
    activation_of,
    biased,
    gate_of,
    half_of,
    product_of,
)


def matmul_bias_act(uses: Uses, node: Node) -> Fused | None:
    """act(x · w + bias), where nothing else reads what is absorbed."""
    add, activation = _epilogue(uses, node)
    if add is None:
        return None
    found = biased(add, add.types[0].rank - 1)
    product = product_of(found[0]) if found else None
    if found is None or product is None or not uses.only(product.value):
        return None
    if found[1].dtype is not product.x.dtype:
        return None
    op = FusedMatmulBiasAct(activation=activation)
    return Fused(op, (product.x, product.weight, found[1]))


def conv_bias_act(uses: Uses, node: Node) -> Fused | None:
    """act(conv(x, w) + bias) with channels first, one group and a kernel larger than 1."""
    add, activation = _epilogue(uses, node)
    if add is None or add.types[0].rank < 3:
        return None
    found = biased(add, 1)
    if found is None or not uses.only(found[0]):
        return None
    conv = found[0].node
    op = _channels_first(conv)
    if op is None or op.groups != 1 or conv.inputs[0].dtype not in DTYPES:
        return None
    kernel = conv.inputs[1].shape[2:]
    if all(size == 1 for size in kernel) or found[1].dtype is not conv.inputs[0].dtype:
        return None
    fused = FusedConvBiasAct(
        stride=op.stride,
        padding=op.padding,
        dilation=op.dilation,
        groups=op.groups,
        activation=activation,
    )
    return Fused(fused, (*conv.inputs, found[1]))


def _channels_first(node: Node) -> Conv | None:
    """The plain convolution that a node is, with channels before the spatial axes."""
    op = node.op
    if isinstance(op, Conv):
        return op
    if not isinstance(op, ConvGeneralDilated) or node.inputs[0].dtype is not node.types[0].dtype:
        return None
    padding = [low for low, high in op.padding if low == high and isinstance(low, int) and low >= 0]
    plain = (
        op.lhs_spec == op.rhs_spec == op.out_spec == tuple(range(node.inputs[0].rank))
        and len(padding) == len(op.padding)
        and all(d == 1 for d in op.lhs_dilation)
        and op.batch_group_count == 1
        and op.precision == DEFAULT_PRECISION
        and node.inputs[1].dtype is node.inputs[0].dtype
    )
    if not plain:
        return None
    return Conv(
        stride=op.window_strides,
        padding=tuple(padding),
        dilation=op.rhs_dilation,
        groups=op.feature_group_count,
    )


def matmul_residual(uses: Uses, node: Node) -> Fused | None:
    """A product plus a residual, the residual of the product's shape."""
    if not isinstance(node.op, Add):
        return None
    for index in (0, 1):
        product, residual = product_of(node.inputs[index]), node.inputs[1 - index]
        fits = product is not None and residual.type == product.value.type
        if product is not None and fits and uses.only(product.value):
            return Fused(FusedMatmulResidual(), (product.x, product.weight, residual))
    return None


def swiglu(uses: Uses, node: Node) -> Fused | None:
    """silu(gate) · up over the two halves of one value, in either order."""
    found = gate_of(node)
    if found is None:
        return None
    silu, gate, up = found
    halves = half_of(gate), half_of(up)
    if halves[0] is None or halves[1] is None or not uses.only(silu):
        return None
    (x, first), (other, second) = halves[0], halves[1]
    if x is not other or first == second or x.dtype not in DTYPES:
        return None
    return Fused(FusedSwiglu(gate_first=first == 0), (x,))


@final
class MergeWeights:
    """Products of one x: their weights side by side, one product, and its parts.

    Only where the joined weight is made once: its parts are constants, or params that a first
    stage prepares.
    """

    def __init__(self, *, staged: bool) -> None:
        self._staged = staged

    def swiglu(self, graph: Graph) -> Matcher:
        """silu(x · gate) · (x · up) as one product and a gated unit."""
        del graph

        def match(uses: Uses, node: Node) -> Fused | None:
            found = gate_of(node)
            if found is None or not uses.only(found[0]):
                return None
            _, gate, up = found
            first, second = product_of(up), product_of(gate)
            if first is None or second is None or first.x is not second.x:
                return None
            lone = uses.only(first.value) and uses.only(second.value)
            alike = first.weight.type == second.weight.type
            if not lone or not alike or not self._once(first, second):
                return None

            def make(inputs: Sequence[Value]) -> Value:
                joined = make_node(Concatenate(axis=1), inputs[1:]).results[0]
                product = make_node(first.value.node.op, [inputs[0], joined]).results[0]
                return make_node(FusedSwiglu(), [product]).results[0]

            return Fused(FusedSwiglu(), (first.x, first.weight, second.weight), make)

        return match

    def shared_input(self, graph: Graph) -> Matcher:
        """Every product of a group becomes a part of one product."""
        place: dict[Value, tuple[list[Product], int]] = {}
        for group in shared_groups(graph):
            if self._once(*group):
                place.update({p.value: (group, i) for i, p in enumerate(group)})
        made: dict[Value, Value] = {}

        def match(uses: Uses, node: Node) -> Fused | None:
            found = place.get(node.results[0]) if node.results else None
            if found is None:
                return None
            group, index = found
            sizes = [int(str(p.weight.shape[1])) for p in group]

            def make(inputs: Sequence[Value]) -> Value:
                whole = made.get(group[0].value)
                if whole is None:
                    joined = make_node(Concatenate(axis=1), inputs[1:]).results[0]
                    op = group[0].value.node.op
                    whole = make_node(op, [inputs[0], joined]).results[0]
                    made[group[0].value] = whole
                part = Narrow(axis=whole.rank - 1, start=sum(sizes[:index]), length=sizes[index])
                return make_node(part, [whole]).results[0]

            inputs = (group[0].x, *(p.weight for p in group))
            return Fused(node.op, inputs, make)

        return match

    def _once(self, *products: Product) -> bool:
        kinds = (Constant, Param) if self._staged else (Constant,)
        return all(isinstance(p.weight.node.op, kinds) for p in products)


def shared_groups(graph: Graph) -> list[list[Product]]:
    """Products by their x, where there are several of one op, with sizes that are known."""
    groups: dict[tuple[Value, object], list[Product]] = {}
    for node in graph.nodes():
        product = product_of(node.results[0]) if len(node.results) == 1 else None
        if product is not None and isinstance(product.weight.shape[1], int):
            groups.setdefault((product.x, node.op), []).append(product)
    return [group for group in groups.values() if len(group) > 1]


def _epilogue(uses: Uses, node: Node) -> tuple[Node | None, Activation | None]:
    """The sum that a node is, or the one under the activation that it is."""
    if isinstance(node.op, Add):
        return node, None
    activation = activation_of(node.op)
    if activation is None or not uses.only(node.inputs[0]):
        return None, None
    below = node.inputs[0].node
    return (below, activation) if isinstance(below.op, Add) else (None, None)
