"""Gradients of attention: the products in which the derivative of a softmax ends.

dq = dS k, dk = dSᵀ q and dv = Pᵀ dy are matched together or not at all, and with the result of
attention: what is left of them would keep the scores in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ops.arithmetic import Add, Div, IntegerPow, Max, Mul, Neg, OneMinusSquare, Sub
from rlx.ops.attention import DTYPES, MaskKind
from rlx.ops.backward import AttentionBackward, AttentionBackwardAll, AttentionBackwardWrt
from rlx.ops.compare import Select
from rlx.ops.convert import Convert, StopGradient
from rlx.ops.dot import DotGeneral
from rlx.ops.reduction import ReduceMax, ReduceSum
from rlx.ops.shape import BroadcastInDim, Reshape, Transpose
from rlx.ops.transcendental import Exp, Tanh
from rlx.passes.recognize.attention import Reading, Scores, plain_product, scores_of
from rlx.passes.recognize.attention_axes import Roles, layout_of, mask_value
from rlx.passes.recognize.matcher import Match, Matcher, Search, View, all_static, near
from rlx.passes.recognize.softened import Atom, Softened, softened
from rlx.passes.recognize.softmax import shifted_exp

MIN_SCORES = 2**15
"""Fewest scores of a head for which making the weights again costs less than keeping them."""

_MAX_NODES = 200
_BETWEEN = (
    Add, BroadcastInDim, Convert, Div, Exp, IntegerPow, Max, Mul, Neg, OneMinusSquare, ReduceMax,
    ReduceSum, Reshape, Select, StopGradient, Sub, Tanh, Transpose,
)  # fmt: skip
"""What lies between scores and the products that end them."""


@final
@dataclass(frozen=True)
class Named:
    """An operand of a product, with the role of each axis: b0, b1, … h, g, s, t or d."""

    value: Value
    names: tuple[str, ...]

    def roles(self, place: str) -> Roles | None:
        """The same by role; ``place`` is s or t."""
        names = self.names
        batch = sorted(name for name in names if name.startswith("b"))
        allowed = {*batch, "h", "g", place, "d"}
        if len(set(names)) != len(names) or not {place, "d"} <= set(names) <= allowed:
            return None

        def at(name: str) -> int:
            return names.index(name) if name in names else -1

        return Roles(tuple(at(b) for b in batch), at("h"), at("g"), at(place), at("d"))


@final
@dataclass
class Cluster:
    """All that is made of the scores of one attention, with its derivative.

    Attributes:
        scores: how the scores are made.
        reading: the axes of the scores.
        query: q, k, v and dy.
        key: see query.
        value: see query.
        upstream: see query.
        ends: products that end the scores, by what they are; with the roles of their axes.
        result: the product that is the result of attention, if it is there.
    """

    scores: Scores
    reading: Reading
    query: Named
    key: Named
    value: Named | None = None
    upstream: Named | None = None
    ends: dict[Node, tuple[AttentionBackwardWrt, tuple[str, ...]]] = field(
        default_factory=dict[Node, "tuple[AttentionBackwardWrt, tuple[str, ...]]"]
    )
    result: Node | None = None


def cluster_of(search: Search, exp: Value) -> Cluster | None:
    """Everything that reads scores, where all of it is attention and its gradients.

    Args:
        search: the search in the graph.
        exp: the exponentials of a softmax.
    """
    found = shifted_exp(search, exp)
    if found is None:
        return None
    logits, largest = found
    scores = scores_of(search, exp.node, logits)
    if isinstance(scores, str):
        return None
    reading = Reading(search, exp.node, 0, scores, largest.axes[0], logits)
    first = reading.first()
    if first is None or len(largest.axes) != 1 or not plain_product(scores.dot.op):
        return None
    q, k, q_roles, k_roles = first
    query, key = Named(q, _names(q_roles, q.rank, "s")), Named(k, _names(k_roles, k.rank, "t"))
    cluster = Cluster(scores, reading, query, key)
    products: list[tuple[Node, int, Softened]] = []
    if not _walk(search, scores.dot.value, products):
        return None
    # The gradients of the scores first: they name v and dy.
    products.sort(key=lambda found: found[2].product is None)
    for node, side, soft in products:
        if soft.exp.value is not exp or not _take(search, cluster, node, side, soft):
            return None
    return cluster if cluster.ends else None


def _walk(search: Search, start: Value, products: list[tuple[Node, int, Softened]]) -> bool:
    """Follow a value to the products that end it; False where it goes elsewhere."""
    seen = {start}
    pending = [start]
    while pending:
        value = pending.pop()
        slots = 0
        for node in search.readers(value):
            slots += sum(v is value for v in node.inputs)
            if isinstance(node.op, DotGeneral):
                side = 0 if node.inputs[0] is value else 1
                soft = softened(search, value)
                if soft is None or node.inputs[0] is node.inputs[1]:
                    return False
                products.append((node, side, soft))
            elif not isinstance(node.op, _BETWEEN) or len(seen) > _MAX_NODES:
                return False
            elif node.results[0] not in seen:
                seen.add(node.results[0])
                pending.append(node.results[0])
        if slots != search.uses(value):  # a result of the graph
            return False
    return True


def _take(search: Search, cluster: Cluster, node: Node, side: int, soft: Softened) -> bool:
    """Add one product to what is known; False where it fits nowhere."""
    op = node.op
    assert isinstance(op, DotGeneral)
    if not plain_product(op):
        return False
    role_at = {axis: role for role, axis in cluster.reading.axis_of.items() if axis >= 0}
    role_of = {
        name: role_at[axis]
        for axis, name in enumerate(soft.exp.axes)
        if name >= 0 and axis in role_at
    }
    if role_of.get(soft.key) != "t":
        return False
    mine = _completed(
        [role_of.get(axis, "") for axis in range(node.inputs[side].rank)],
        node.inputs[side],
        tuple(cluster.reading.axis_of),
    )
    if mine is None:
        return False
    batch, summed = (
        (op.lhs_batch, op.lhs_contracting) if side == 0 else (op.rhs_batch, op.rhs_contracting)
    )
    _exchange_ones(mine, node.inputs[side], summed)
    contracted = [mine[axis] for axis in summed]
    free = [mine[axis] for axis in range(len(mine)) if axis not in (*batch, *summed)]
    order = [*free, "d"] if side == 0 else ["d", *free]
    result = (*(mine[axis] for axis in batch), *order)
    other = Named(node.inputs[1 - side], _operand_names(node, result, contracted)[1 - side])
    by_key = set(contracted) == {"s", *({"g"} & set(mine))}
    if not by_key and set(contracted) != {"t"}:
        return False
    if soft.product is None:
        if by_key:
            cluster.ends[node] = (AttentionBackwardWrt.VALUE, result)
            return cluster.upstream is not None and _same(search, other, cluster.upstream)
        cluster.result, before = node, cluster.result
        return before is None and cluster.value is not None and _same(search, other, cluster.value)
    if not _upstream(search, cluster, soft.product, role_of):
        return False
    masks = {search.innermost(view).value for view, _ in cluster.scores.masks}
    if masks != set(soft.hidden) or not near(soft.factor, cluster.scores.scale, 64):
        return False
    if not _has_slope(search, cluster, soft):
        return False
    wrt = AttentionBackwardWrt.KEY if by_key else AttentionBackwardWrt.QUERY
    cluster.ends[node] = (wrt, result)
    return _same(search, other, cluster.query if by_key else cluster.key)


def _has_slope(search: Search, cluster: Cluster, soft: Softened) -> bool:
    """Whether the gradient is multiplied by the slope of the scores' own cap, if they have one."""
    curve = cluster.scores.curve
    if curve is None or soft.curve is None:
        return curve is None and soft.curve is None
    if soft.curve.value is not curve.value:
        return False
    # Both lie in the scores: the slope as it is named there, the cap as it lies in the logits.
    names = dict(zip(range(len(soft.exp.axes)), soft.exp.axes, strict=True))
    sizes = zip(curve.axes, curve.value.shape, strict=True)
    wanted = tuple(-1 if size == 1 else names.get(axis, -1) for axis, size in sizes)
    return soft.curve.axes == wanted


def _completed(names: list[str], value: Value, every: Sequence[str]) -> list[str] | None:
    """Names for axes of size 1 that have none: those that are left over, in order."""
    missing = iter([role for role in every if role not in names])
    for axis, name in enumerate(names):
        if not name:
            names[axis] = next(missing, "") if value.shape[axis] == 1 else ""
    return None if "" in names else names


def _exchange_ones(names: list[str], value: Value, summed: Sequence[int]) -> None:
    """Let a summed axis of size 1 be the group of heads: which axis of size 1 is which is free."""
    ones = [axis for axis in range(len(names)) if value.shape[axis] == 1]
    groups = [axis for axis in ones if names[axis] == "g" and axis not in summed]
    others = [axis for axis in ones if axis in summed and names[axis] not in ("g", "s", "t")]
    for group, other in zip(groups, others, strict=False):
        names[group], names[other] = names[other], names[group]


def _upstream(search: Search, cluster: Cluster, product: Atom, role_of: dict[int, str]) -> bool:
    """Take v and dy from dP, or see that they are those that are known."""
    node = product.value.node
    op = node.op
    assert isinstance(op, DotGeneral)
    if len(op.lhs_contracting) != 1 or not plain_product(op):
        return False
    names = _completed(
        [role_of.get(name, "") for name in product.axes],
        product.value,
        tuple(cluster.reading.axis_of),
    )
    if names is None:
        return False
    sides = _operand_names(node, names, ["d"])
    pair = [Named(v, names) for v, names in zip(node.inputs, sides, strict=True)]
    if "t" in sides[0]:
        pair.reverse()
    upstream, value = pair
    if cluster.upstream is None or cluster.value is None:
        cluster.upstream, cluster.value = upstream, value
        return True
    return _same(search, upstream, cluster.upstream) and _same(search, value, cluster.value)


def _operand_names(
    node: Node, result: Sequence[str], contracted: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The role of each axis of both operands of a product, of those of its result."""
    op = node.op
    assert isinstance(op, DotGeneral)
    lhs, rhs = node.inputs
    sides = ([""] * lhs.rank, [""] * rhs.rank)
    names = iter(result)
    for left, right in zip(op.lhs_batch, op.rhs_batch, strict=True):
        sides[0][left] = sides[1][right] = next(names)
    for side, free in zip(sides, (op.lhs_free(lhs.rank), op.rhs_free(rhs.rank)), strict=True):
        for axis in free:
            side[axis] = next(names)
    for left, right, name in zip(op.lhs_contracting, op.rhs_contracting, contracted, strict=True):
        sides[0][left] = sides[1][right] = name
    return tuple(sides[0]), tuple(sides[1])


def _names(roles: Roles, rank: int, place: str) -> tuple[str, ...]:
    """The names of the axes of an operand."""
    names = [""] * rank
    for n, axis in enumerate(roles.batch):
        names[axis] = f"b{n}"
    for name, axis in (("h", roles.head), ("g", roles.group), (place, roles.place)):
        if axis >= 0:
            names[axis] = name
    names[roles.depth] = "d"
    return tuple(names)


def _same(search: Search, one: Named, two: Named) -> bool:
    """Whether two operands are one value, with its axes in the same roles."""
    found: list[tuple[View, list[str]]] = []
    for named in (one, two):
        view = search.innermost(search.view(named.value))
        found.append((view, [named.names[axis] if axis >= 0 else "" for axis in view.axes]))
    (first, names), (second, others) = found
    if first.value is not second.value:
        return False
    sizes = first.value.shape
    return all(a == b or n == 1 for a, b, n in zip(names, others, sizes, strict=True))


def _clusters(search: Search) -> dict[Node, Cluster]:
    """The cluster of each product that ends one, where all its gradients can be matched."""
    found: dict[Node, Cluster] = {}
    for node in search.nodes():
        if not isinstance(node.op, Exp):
            continue
        cluster = cluster_of(search, node.results[0])
        if cluster is None or any(_match(cluster, end) is None for end in cluster.ends):
            continue
        found.update(dict.fromkeys(cluster.ends, cluster))
        if cluster.result is not None:
            found[cluster.result] = cluster
    return found


def differentiated(search: Search, node: Node) -> bool:
    """Whether all else that is made of an attention's scores becomes its gradients."""
    if search.strict or search.platform != "cpu":
        return False
    cluster = search.once(_clusters).get(node)
    return cluster is not None and cluster.result is node


def gradient(search: Search, node: Node) -> Match | None:
    """Match dS k · scale, dSᵀ q · scale, or Pᵀ dy."""
    if search.strict or search.platform != "cpu":
        return None
    cluster = search.once(_clusters).get(node)
    return None if cluster is None or node is cluster.result else _match(cluster, node)


def _match(cluster: Cluster, node: Node) -> Match | None:
    value, upstream = cluster.value, cluster.upstream
    assert value is not None
    assert upstream is not None
    operands = (cluster.query, cluster.key, value, upstream)
    roles = [one.roles(place) for one, place in zip(operands, "stts", strict=True)]
    if None in roles or len({one.value.dtype for one in operands}) > 1:
        return None
    known = [r for r in roles if r is not None]
    if operands[0].value.dtype not in DTYPES or not all(
        all_static(one.value.shape) for one in operands
    ):
        return None
    sizes = [
        part.sizes(tuple(int(s) for s in one.value.shape))
        for one, part in zip(operands, known, strict=True)
    ]
    (_, queries, heads, width), (_, keys, kv_heads, _), (*_, v_width), _ = sizes
    if heads % kv_heads or sizes[2][:3] != sizes[1][:3] or queries * keys < MIN_SCORES:
        return None
    scores, reading = cluster.scores, cluster.reading
    found = reading.mask(queries, keys)
    if found is None:
        return None
    kind, window, mask, causal = found
    layout = layout_of(known[0])
    attributes: dict[str, Any] = {
        "num_heads": heads,
        "head_dim": width,
        "mask_kind": kind,
        "window": window,
        "score_scale": None if near(scores.scale, width**-0.5, 64) else scores.scale,
        "softcap": scores.softcap,
        "layout": layout,
        "masked_rows": scores.masked_rows,
        "causal": causal,
    }
    wrt, result = cluster.ends[node]
    q = cluster.query.value
    batch = [int(q.shape[axis]) for axis in known[0].batch]
    split = (heads,) if known[0].group < 0 else (kv_heads, heads // kv_heads)
    split = () if known[0].head < 0 else split
    names = [f"b{n}" for n in range(len(batch))]
    head_names = [n for n in ("h", "g") if n in cluster.query.names]
    order = (*names, *head_names, "s", "t")
    score_sizes = (*batch, *split, queries, keys)
    together = sizes[0] == sizes[1] == sizes[2] and kv_heads == heads
    by_query = wrt is AttentionBackwardWrt.QUERY
    shape, dtype = node.types[0].shape, node.types[0].dtype

    def build(*values: Value) -> Value:
        parts = [part.arranged(v, layout) for v, part in zip(values[:4], known, strict=True)]
        if mask is not None:
            axes = dict(reading.axis_of)
            steps = (names, head_names)
            adds = kind is MaskKind.BIAS
            parts.append(mask_value(values[4:], mask, axes, order, score_sizes, steps, adds=adds))
        if together:  # one node, which all three gradients are parts of
            whole: Value = AttentionBackwardAll(**attributes)(*parts)
            made = whole.narrow(0, list(AttentionBackwardWrt).index(wrt) * sizes[0][0], sizes[0][0])
        else:
            made = AttentionBackward(wrt=wrt, **attributes)(*parts)
        middle = split if by_query else (split[:1] if split else ())
        inner = head_names if by_query else head_names[:1]
        place, length = ("s", queries) if by_query else ("t", keys)
        depth = v_width if wrt is AttentionBackwardWrt.VALUE else width
        first = layout == "bshd"
        made = made.reshape(*batch, *((length, *middle) if first else (*middle, length)), depth)
        have = [*names, *((place, *inner) if first else (*inner, place)), "d"]
        permutation = [have.index(name) for name in result]
        if permutation != list(range(len(have))):
            made = made.transpose(*permutation)
        return made.reshape(*shape).convert(dtype)

    if sorted(result) != sorted(
        [*names, *(head_names if by_query else head_names[:1]), "s" if by_query else "t", "d"]
    ):
        return None
    read = () if mask is None else tuple(view.value for view, _ in mask)
    what = f"attention_backward ({wrt.value})"
    return Match(what, (*(one.value for one in operands), *read), build)


TABLE: dict[type[Op], tuple[Matcher, ...]] = {DotGeneral: (gradient,)}

NEEDS: tuple[type[Op], ...] = (Exp,)
"""Ops without any of which there is nothing to find."""
