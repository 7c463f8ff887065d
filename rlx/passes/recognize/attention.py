"""Attention: scores, mask, softmax and the weighted sum, in any order of axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

from rlx.dtypes import DType
from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ops.arithmetic import Add, Div, Mul, Sub
from rlx.ops.attention import DTYPES, Attention, MaskKind
from rlx.ops.compare import Select
from rlx.ops.dot import DotAlgorithm, DotGeneral
from rlx.ops.dot.general import DEFAULT_PRECISION
from rlx.ops.normalization import Softmax
from rlx.ops.transcendental import Exp, Tanh
from rlx.passes.recognize.attention_axes import (
    Roles,
    layout_of,
    mask_value,
    ungrouped,
    without_group,
)
from rlx.passes.recognize.attention_near import report_near
from rlx.passes.recognize.masks import Bounds, bounds_of, smallest
from rlx.passes.recognize.matcher import (
    MAX_STEPS,
    Match,
    Matcher,
    Search,
    View,
    all_static,
    near,
)
from rlx.passes.recognize.softmax import SoftmaxOf, softmax_of

_LARGE = -1e9
"""A mask's number that is at most this hides a key as −Inf does; −1e4, say, may not."""

MAX_BIASES = 3
"""Most biases of one attention; they become one."""

_ALGORITHMS = (None, DotAlgorithm.BF16_BF16_F32)


@final
@dataclass
class Scores:
    """What lies between the product of q and k and the softmax.

    Attributes:
        dot: the product, as it lies in the logits.
        scale: factor of the scores.
        softcap: their bound, if any.
        curve: the hyperbolic tangent of that bound.
        masks: masks with whether true hides.
        fill: the number of hidden scores.
        biases: what is added, each with whether it is taken away instead.
    """

    dot: View
    scale: float = 1.0
    softcap: float | None = None
    curve: View | None = None
    masks: list[tuple[View, bool]] = field(default_factory=list["tuple[View, bool]"])
    fill: float | None = None
    biases: list[tuple[View, bool]] = field(default_factory=list["tuple[View, bool]"])

    @property
    def masked_rows(self) -> str:
        """What a query that sees no key gives."""
        if self.masks:
            return "nan" if self.fill == -math.inf else "uniform"
        return "nan" if self.biases else "zeros"


def attention(search: Search, node: Node) -> Match | None:
    """softmax(mask(scale · q kᵀ)) v."""
    op = node.op
    if not isinstance(op, DotGeneral):
        return None
    for index in (0, 1):
        weights = search.behind(node.inputs[index])
        softmax = softmax_of(search, weights)
        if softmax is not None:
            return _attention(search, node, index, weights, softmax)
        summed = op.lhs_contracting if index == 0 else op.rhs_contracting
        report_near(search, node, weights, summed)
    return None


def _attention(
    search: Search, node: Node, index: int, weights: Value, softmax: SoftmaxOf
) -> Match | None:
    op = node.op
    assert isinstance(op, DotGeneral)
    summed = op.lhs_contracting if index == 0 else op.rhs_contracting
    if search.strict or summed != (softmax.axis,):  # over queries, as in a derivative by v
        return None
    logits = softmax.x
    scores = scores_of(search, node, logits)
    if isinstance(scores, str):
        if scores:
            search.miss(node, "attention", scores)
        return None
    value = node.inputs[1 - index]
    why = _unfit(search, node, weights, scores, value)
    if why:
        search.miss(node, "attention", why)
        return None
    return Reading(search, node, index, scores, softmax.axis, logits).match()


def _unfit(search: Search, node: Node, weights: Value, scores: Scores, value: Value) -> str:
    """Why a product of a softmax cannot be one op; empty where it can."""
    exp = search.behind(weights.node.inputs[0])
    from rlx.passes.recognize.attention_backward import differentiated

    shared = isinstance(exp.node.op, Exp) and search.uses(exp) > 2
    alone = differentiated(search, node)
    if not alone and (shared or search.uses(weights) > 1):
        return "its weights are used elsewhere, by a derivative or as a result"
    first, second = scores.dot.op, node.op
    q, k = scores.dot.value.node.inputs
    assert isinstance(first, DotGeneral)
    assert isinstance(second, DotGeneral)
    if not alone and search.uses(scores.dot.value) > 2:
        return "its scores are used elsewhere, by a derivative or as a result"
    for op in (first, second):
        if not plain_product(op):
            return "its products ask for a precision of their own"
    if len({q.dtype, k.dtype, value.dtype, node.types[0].dtype}) > 1 or q.dtype not in DTYPES:
        found = ", ".join(str(v.type) for v in (q, k, value))
        return f"q, k, v and the result have several types: {found}, {node.types[0]}"
    if not all(all_static(v.shape) for v in (q, k, value, node.results[0])):
        return "sizes are not known"
    return ""


def plain_product(op: Op) -> bool:
    """Whether an op is a product that asks for nothing that the composite would not give."""
    if not isinstance(op, DotGeneral):
        return False
    return op.precision == DEFAULT_PRECISION and op.algorithm in _ALGORITHMS


def scores_of(search: Search, node: Node, logits: Value) -> Scores | str:
    """Walk from the logits to the product of q and k; a text says what stands between."""
    made = Scores(search.view(logits))
    view = made.dot
    for _ in range(2 * MAX_STEPS):
        op = view.op
        if isinstance(op, DotGeneral):
            made.dot = view
            return made
        if isinstance(op, Select):
            following = _masked(search, view, made)
        elif isinstance(op, Add | Sub):
            following = _biased(search, view, made)
        elif isinstance(op, Mul | Div):
            following = _scaled(search, view, made)
        else:
            following = search.within(view)
            if following is None:
                return ""
        if isinstance(following, str):
            return following
        view = following
    return ""


def _masked(search: Search, view: View, made: Scores) -> View | str:
    """One more mask: where(seen, scores, fill)."""
    chosen, *branches = view.value.node.inputs
    fills = [search.number(v) for v in branches]
    if (fills[0] is None) == (fills[1] is None):
        return ""
    hides = fills[0] is not None
    fill = fills[0] if hides else fills[1]
    if made.biases or fill is None:
        return "a mask lies under the bias"
    if made.scale != 1 or made.softcap is not None:
        return "its scores are scaled after the mask"
    lowest = view.value.dtype is DType.F16 and fill <= -65504
    if not fill <= _LARGE and not lowest:
        return f"hidden scores become {fill:g}, which is not below all others"
    if made.fill not in (None, fill):
        return f"two masks hide with {made.fill:g} and {fill:g}"
    made.fill = fill
    made.masks.append((View(chosen, view.axes), hides))
    return view.operand(2 if hides else 1)


def _biased(search: Search, view: View, made: Scores) -> View | str:
    """A bias: the operand that does not come from a product."""
    if made.scale != 1 or made.softcap is not None:
        return "its scores are scaled after the bias"
    less = isinstance(view.op, Sub)
    sides = [_comes_from_product(search, view.operand(index)) for index in (0, 1)]
    if sides == [True, True]:
        return "two products are added, as those of positions relative to the query are"
    if sides[0] == sides[1] or (less and not sides[0]):
        return ""
    index = 0 if sides[0] else 1
    made.biases.append((view.operand(1 - index), less))
    return view.operand(index)


def _comes_from_product(search: Search, view: View, depth: int = MAX_BIASES) -> bool:
    """Whether scaling, biases, masks and layouts lead to a product."""
    for _ in range(MAX_STEPS):
        op, inputs = view.op, view.value.node.inputs
        if isinstance(op, DotGeneral):
            return bool(op.lhs_contracting)
        if isinstance(op, Add | Sub):
            sides = (view.operand(0), view.operand(1))
            return depth > 0 and any(_comes_from_product(search, v, depth - 1) for v in sides)
        if isinstance(op, Tanh):
            view = view.operand(0)
            continue
        if isinstance(op, Mul | Div):
            known = [search.number(v) is not None for v in inputs]
            if known[0] == known[1]:
                sides = (view.operand(0), view.operand(1))
                return depth > 0 and any(_comes_from_product(search, v, depth - 1) for v in sides)
            view = view.operand(1 if known[0] else 0)
            continue
        if isinstance(op, Select):
            known = [search.number(v) is not None for v in inputs[1:]]
            if known[0] == known[1]:
                return False
            view = view.operand(2 if known[0] else 1)
            continue
        inner = search.within(view)
        if inner is None:
            return False
        view = inner
    return False


def _scaled(search: Search, view: View, made: Scores) -> View | str:
    """A factor, or softcap · tanh(scores / softcap)."""
    inputs = view.value.node.inputs
    numbers = [search.number(v) for v in inputs]
    if isinstance(view.op, Div):
        if not numbers[1]:
            return ""
        factor, inner = 1 / numbers[1], view.operand(0)
    else:
        index = 0 if numbers[0] is not None else 1
        found = numbers[index]
        if found is None:
            return "its scores are multiplied by a tensor, as by a dropout"
        factor, inner = found, view.operand(1 - index)
    curve = next((v for v in search.views(inner) if isinstance(v.op, Tanh)), None)
    if curve is not None:
        return _capped(search, curve, factor, made)
    made.scale *= factor
    return inner


def _capped(search: Search, curve: View, cap: float, made: Scores) -> View | str:
    """Under tanh, scores over the cap."""
    if made.softcap is not None or made.scale != 1 or not cap > 0:
        return "its scores are scaled after the soft cap"
    inner = curve.operand(0)
    factor = 1.0
    for current in search.views(inner):
        node = current.value.node
        numbers = [search.number(v) for v in node.inputs]
        if isinstance(current.op, Div) and numbers[1]:
            factor, inner = 1 / numbers[1], current.operand(0)
        elif isinstance(current.op, Mul) and any(n is not None for n in numbers):
            index = 0 if numbers[0] is not None else 1
            factor, inner = numbers[index] or 0.0, current.operand(1 - index)
        else:
            continue
        break
    made.softcap, made.curve = cap, curve
    if near(factor * cap, 1.0, 32):
        return inner
    made.scale = factor * cap
    return inner


@final
class Reading:
    """The axes of a match by their roles, and what is built of them."""

    def __init__(
        self, search: Search, node: Node, index: int, scores: Scores, key: int, logits: Value
    ) -> None:
        self._search = search
        self._node = node
        self._index = index
        self._scores = scores
        self._key = key
        self._logits = logits

    def match(self) -> Match | None:
        """The match, or None where the axes are not those of attention."""
        first = self.first()
        if first is None:
            return None
        q, k, query_roles, key_roles = first
        second = self._second(query_roles, key_roles)
        if second is None:
            return None
        v, value_roles, result = second
        layout = layout_of(query_roles)
        return self._build((q, k, v), (query_roles, key_roles, value_roles), layout, result)

    def first(self) -> tuple[Value, Value, Roles, Roles] | None:
        """Find q and k with their roles; also where each axis lies in the logits."""
        view = self._scores.dot
        op = view.op
        assert isinstance(op, DotGeneral)
        lhs, rhs = view.value.node.inputs
        batch = len(op.lhs_batch)
        left = op.lhs_free(lhs.rank)
        if len(op.lhs_contracting) != 1 or self._key not in view.axes:
            return None
        place = view.axes.index(self._key)
        self.axis_of: dict[str, int] = {}
        if batch <= place < batch + len(left):
            q, k, k_free = rhs, lhs, left
            sides = (op.rhs_batch, op.lhs_batch, op.rhs_contracting[0], op.lhs_contracting[0])
            q_free, start = op.rhs_free(rhs.rank), batch + len(left)
        elif place >= batch + len(left):
            q, k, k_free = lhs, rhs, op.rhs_free(rhs.rank)
            sides = (op.lhs_batch, op.rhs_batch, op.lhs_contracting[0], op.rhs_contracting[0])
            q_free, start = left, batch
        else:
            return None
        q_batch, k_batch, q_depth, k_depth = sides
        if len(k_free) != 1 or not 1 <= len(q_free) <= 2:
            return None
        ranked = sorted(range(batch), key=lambda i: q_batch[i])
        query, group = q_free[0], -1
        if len(q_free) == 2:
            if not ranked:
                return None
            head = q_batch[ranked[-1]]
            # Beside the heads, behind them first: which of both is which changes no score.
            group = head + 1 if head + 1 in q_free else head - 1
            if group not in q_free:
                return None
            query = q_free[0] if q_free[1] == group else q_free[1]
        heads = len(ranked) >= 2 or (len(ranked) == 1 and (group >= 0 or q_batch[0] > query))
        leading, last = (ranked[:-1], ranked[-1]) if heads else (ranked, -1)

        def roles(batch: tuple[int, ...], place: int, group: int, depth: int) -> Roles:
            head = batch[last] if last >= 0 else -1
            return Roles(tuple(batch[i] for i in leading), head, group, place, depth)

        # Where each role lies in the logits; −1 where an axis of size 1 has been left out.
        dot_axis = {f"b{n}": i for n, i in enumerate(leading)}
        if last >= 0:
            dot_axis["h"] = last
        dot_axis["t"] = place
        dot_axis["s"] = start + q_free.index(query)
        if group >= 0:
            dot_axis["g"] = start + q_free.index(group)
        self.axis_of = {role: view.axes[axis] for role, axis in dot_axis.items()}
        q_roles = roles(q_batch, query, group, q_depth)
        return q, k, q_roles, roles(k_batch, k_free[0], -1, k_depth)

    def _second(self, q: Roles, k: Roles) -> tuple[Value, Roles, list[str]] | None:
        """Find v with its roles, and the roles of the result's axes."""
        del k
        node, op = self._node, self._node.op
        assert isinstance(op, DotGeneral)
        weights, v = node.inputs[self._index], node.inputs[1 - self._index]
        on_left = self._index == 0
        w_batch, v_batch = (op.lhs_batch, op.rhs_batch) if on_left else (op.rhs_batch, op.lhs_batch)
        w_sum, v_sum = (
            (op.lhs_contracting, op.rhs_contracting)
            if on_left
            else (op.rhs_contracting, op.lhs_contracting)
        )
        w_free, v_free = op.lhs_free(weights.rank), op.rhs_free(v.rank)
        if not on_left:
            w_free, v_free = op.rhs_free(weights.rank), op.lhs_free(v.rank)
        role_of = {axis: role for role, axis in self.axis_of.items() if axis >= 0}
        units = [r for r, axis in self.axis_of.items() if axis < 0]

        def role(axis: int) -> str:
            return role_of.get(axis, "1")

        if len(w_sum) != 1 or role(w_sum[0]) != "t" or len(v_free) != 1:
            return None
        places = {role(w): axis for w, axis in zip(w_batch, v_batch, strict=True)}
        if set(places) - {"1"} - {r for r in self.axis_of if r[0] in "bh"}:
            return None
        wanted = [f"b{n}" for n in range(len(q.batch))] + (["h"] if q.head >= 0 else [])
        missing = [r for r in wanted if r not in places]
        extra = [axis for w, axis in zip(w_batch, v_batch, strict=True) if role(w) == "1"]
        # Axes of size 1 whose way through the layouts is not known: any of them will do.
        if any(r not in units for r in missing) or len(missing) > len(extra):
            return None
        places.update(zip(missing, extra, strict=False))
        if len(extra) > len(missing) or any(v.shape[axis] != 1 for axis in extra):
            return None
        head = places["h"] if q.head >= 0 else -1
        batch = tuple(places[f"b{n}"] for n in range(len(q.batch)))
        result = [role(axis) for axis in w_batch]
        free = [role(axis) for axis in w_free]
        if any(r == "t" for r in free):
            return None
        result += [*free, "d"] if on_left else ["d", *free]
        return v, Roles(batch, head, -1, v_sum[0], v_free[0]), result

    def _build(
        self,
        operands: tuple[Value, Value, Value],
        roles: tuple[Roles, Roles, Roles],
        layout: str,
        result: list[str],
    ) -> Match | None:
        search, scores = self._search, self._scores
        sizes = [
            part.sizes(tuple(int(s) for s in v.shape))
            for v, part in zip(operands, roles, strict=True)
        ]
        (_, queries, heads, width), (_, keys, kv_heads, _), (*_, v_width) = sizes
        plain = list(operands)
        plain[1:] = [ungrouped(v, part) for v, part in zip(operands[1:], roles[1:], strict=True)]
        if plain[1].shape[roles[1].head] != plain[2].shape[roles[2].head] or roles[1].head < 0:
            plain[1:] = operands[1:]
        elif plain[1].shape != operands[1].shape:
            kv_heads = int(plain[1].shape[roles[1].head])
        if heads % kv_heads:
            return None
        scale = scores.scale
        for position in (0, 1):
            inner, factor = _unscaled(search, plain[position])
            plain[position], scale = inner, scale * factor
        found = self.mask(queries, keys)
        if found is None:
            return None
        kind, window, mask, causal = found
        axes = dict(self.axis_of)
        op = Attention(
            num_heads=heads,
            head_dim=width,
            mask_kind=kind,
            window=window,
            score_scale=None if near(scale, width**-0.5, 64) else scale,
            softcap=scores.softcap,
            layout=layout,
            masked_rows=scores.masked_rows,
            causal=causal,
        )
        shape = self._node.types[0].shape
        full = self._node.types[0].dtype
        batch = [int(operands[0].shape[axis]) for axis in roles[0].batch]
        split = (heads,) if roles[0].group < 0 else (kv_heads, heads // kv_heads)
        if roles[0].head < 0:
            split = ()
        score_sizes = (*batch, *split, queries, keys)
        names = [f"b{n}" for n in range(len(batch))]
        names += ([] if roles[0].head < 0 else ["h"]) + (["g"] if roles[0].group >= 0 else [])
        places = names
        order = (*names, "s", "t")
        steps = (names[: len(batch)], names[len(batch) :])
        ranks = [v.rank for v in operands]

        def build(q: Value, k: Value, v: Value, *masks: Value) -> Value:
            parts = [
                part.arranged(without_group(value, part, rank), layout)
                for value, part, rank in zip((q, k, v), roles, ranks, strict=True)
            ]
            if mask is not None:
                adds = kind is MaskKind.BIAS
                parts.append(mask_value(masks, mask, axes, order, score_sizes, steps, adds=adds))
            made: Value = op(*parts)
            middle = (queries, *split) if layout == "bshd" else (*split, queries)
            made = made.reshape(*batch, *middle, v_width)
            inner = (
                ["s", *places[len(batch) :]] if layout == "bshd" else [*places[len(batch) :], "s"]
            )
            have = [*places[: len(batch)], *inner, "d"]
            wanted = [r for r in result if r != "1"]
            wanted += [r for r in have if r not in wanted]  # size 1, left out on the way
            permutation = [have.index(r) for r in wanted]
            if permutation != list(range(len(have))):
                made = made.transpose(*permutation)
            return made.reshape(*shape).convert(full)

        read = () if mask is None else tuple(view.value for view, _ in mask)
        name = f"{kind.value}, causal" if causal else kind.value
        return Match(f"attention ({name})", (*plain, *read), build)

    def mask(
        self, queries: int, keys: int
    ) -> tuple[MaskKind, int | None, list[tuple[View, bool]] | None, bool] | None:
        """The kind of mask, its window, tensors for it, and whether a bias is causal too.

        None where the op cannot say it.
        """
        scores, search = self._scores, self._search
        biases = [(smallest(search, view), less) for view, less in scores.biases]
        if not scores.masks:
            kind = MaskKind.BIAS if biases else MaskKind.NONE
            return kind, None, biases or None, False
        whole = Bounds([], [])
        for view, hides in scores.masks:
            part = bounds_of(search, view, hides, self.axis_of["s"], self._key)
            whole.high += part.high
            whole.low += part.low
            whole.other = whole.other or part.other
        kind = whole.kind(queries, keys)
        if biases:
            if kind == (MaskKind.CAUSAL, None):
                return MaskKind.BIAS, None, biases, True
            why = (
                "it has a bias, and a mask that is not known to be causal: the op takes one of both"
            )
            search.miss(self._node, "attention", why)
            return None
        if kind is not None:
            return *kind, None, False
        if not whole.other:
            shown = ", ".join(f"t ≤ s + {n}" for n in whole.high)
            shown = ", ".join([shown, *(f"t ≥ s + {n}" for n in whole.low)]).strip(", ")
            why = f"{shown} is not t ≤ s + {keys - queries}; it stays a mask tensor"
            search.miss(self._node, "attention (causal)", why)
        tensors = [(smallest(search, view), hides) for view, hides in scores.masks]
        return MaskKind.CUSTOM, None, tensors, False


def _unscaled(search: Search, value: Value) -> tuple[Value, float]:
    """A value before it was multiplied by a number, and the number."""
    node = value.node
    if isinstance(node.op, Div):
        number = search.number(node.inputs[1])
        return (node.inputs[0], 1 / number) if number else (value, 1.0)
    if isinstance(node.op, Mul):
        for index in (0, 1):
            number = search.number(node.inputs[index])
            if number is not None:
                return node.inputs[1 - index], number
    return value, 1.0


TABLE: dict[type[Op], tuple[Matcher, ...]] = {DotGeneral: (attention,)}

NEEDS: tuple[type[Op], ...] = (Exp, Softmax)
"""Ops without any of which there is nothing to find."""
