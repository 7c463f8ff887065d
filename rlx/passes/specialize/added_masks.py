"""Attention whose bias is a causal mask, on CPUs: by the causal kernel where all is finite.

A mask that is added (``scores + jnp.triu(jnp.full(shape, -jnp.inf), k=1)``, or of −1e9 or the
lowest number) hides keys as one that chooses does, but for what counts though it is hidden: a score
of NaN or +Inf, and one as large as the mask. Where queries and keys are too small for either,
which takes two reductions to know, the causal kernel gives the same weights, those of hidden keys
exactly 0, and passes over half of the blocks. Elsewhere it stays a bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np

from rlx.dtypes import DType
from rlx.ir.attributes import Array
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.operators import constant
from rlx.ir.rewrite import Rule, rule
from rlx.ops.arithmetic import Abs
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.compare import Select
from rlx.ops.control_flow import Cond
from rlx.ops.io import Constant
from rlx.ops.reduction import ReduceMax
from rlx.ops.sequence.loops import leaf
from rlx.ops.shape import Iota
from rlx.passes.base import PassContext
from rlx.passes.recognize.masks import bounds_of
from rlx.passes.recognize.matcher import Search, View
from rlx.sharding import mesh_of

MIN_SCORES = 1 << 18
"""Fewest scores of a head that make up for looking at queries and keys."""

HIDES = -1e9
"""A number that is at most this hides, as in ``recognize``; for f16 its lowest does, too."""

_LOWEST_F16 = -65504.0

_LARGEST = 1e30
"""Products of queries and keys stay so far below the largest f32."""


def rules(graph: Graph, ctx: PassContext) -> tuple[Rule, ...]:
    """The rule for the biases of a graph, where a kernel takes causal attention."""
    kernel = ctx.has_kernel
    if kernel is None or ctx.options.strict or not any(map(_has_bias, graph.nodes())):
        return ()
    mesh = mesh_of(graph)
    if mesh is not None and mesh.size > 1:  # what is largest would be asked of all devices
        return ()
    search = Search(graph, strict=False, misses={}, platform=ctx.platform)

    @rule(Attention)
    def causal(node: Node) -> Value | None:
        """Attention with a causal mask that is added, by the causal kernel where all is finite."""
        op = node.op
        if not isinstance(op, Attention) or not _has_bias(node):
            return None
        q, k, v, mask = node.inputs
        _, queries, keys, _, _ = op.sizes(q.type, k.type, v.type)
        if not isinstance(queries, int) or not isinstance(keys, int):
            return None
        if queries * keys < MIN_SCORES or queries > keys:
            return None
        fill = hidden_number(search, mask, queries, keys)
        plain = cast("Attention", op.replace(mask_kind=MaskKind.CAUSAL))
        if fill is None or not kernel(make_node(plain, [q, k, v])):
            return None
        return _guarded(node, op, plain, (fill, queries, keys))

    return (causal,)


def _has_bias(node: Node) -> bool:
    op = node.op
    return isinstance(op, Attention) and op.mask_kind is MaskKind.BIAS and not op.causal


def hidden_number(search: Search, mask: Value, queries: int, keys: int) -> float | None:
    """What a bias adds to hidden keys, where it is a causal mask and nothing else.

    Args:
        search: the search in its graph.
        mask: the bias; its last two axes are queries and keys.
        queries: how many.
        keys: how many, at least as many as queries.

    Returns:
        None where it is another bias.
    """
    for view in search.views(search.view(mask)):
        if isinstance(view.op, Constant):
            return _of_literal(view, view.op.value.array, mask, queries, keys)
        if isinstance(view.op, Select):
            return _of_choice(search, view, mask, queries, keys)
    return None


def _of_choice(search: Search, view: View, mask: Value, queries: int, keys: int) -> float | None:
    """select(seen, 0, fill), or the other way round."""
    chosen, *branches = view.value.node.inputs
    numbers = [search.number(v) for v in branches]
    if None in numbers or numbers.count(0.0) != 1:
        return None
    hides = numbers[0] != 0
    fill = cast("float", numbers[0 if hides else 1])
    seen = bounds_of(search, View(chosen, view.axes), hides, mask.rank - 2, mask.rank - 1)
    causal = seen.kind(queries, keys) == (MaskKind.CAUSAL, None)
    return fill if causal and _hides(fill, mask.dtype) else None


def _of_literal(view: View, array: Array, mask: Value, queries: int, keys: int) -> float | None:
    """The same, written out."""
    if [axis for axis in view.axes if axis >= 0] != [mask.rank - 2, mask.rank - 1] or keys < 2:
        return None
    square = array.reshape(array.shape[-2:])
    if square.shape != (queries, keys):
        return None
    fill = float(square[0, -1])
    seen = np.tri(queries, keys, keys - queries, dtype=bool)
    same = bool(np.all(square[seen] == 0) and np.all(square[~seen] == square[0, -1]))
    return fill if same and _hides(fill, mask.dtype) else None


def _hides(fill: float, dtype: DType) -> bool:
    return fill <= HIDES or (dtype is DType.F16 and fill <= _LOWEST_F16)


def _guarded(node: Node, op: Attention, plain: Attention, mask: tuple[float, int, int]) -> Value:
    """The causal op where every score is far smaller than what is added, else the op itself."""
    q, k, v, added = node.inputs
    fill = mask[0]
    # A tenth on either side: hidden scores lie 0.8 · fill below the others, and exp of it is 0.
    largest = min(_LARGEST, -fill / 10)
    scale = op.head_dim**-0.5 if op.score_scale is None else abs(op.score_scale)
    bound = math.sqrt(largest / (op.head_dim * max(1.0, scale)))
    small = _largest(q) <= bound
    index = small & (_largest(k) <= bound)
    operands = [q, k, v]

    def as_it_was(*leaves: Value) -> Value:
        made: Value = op(*leaves, _written(mask, added.dtype))
        return made

    graphs = (_branch("as_it_was", as_it_was, operands), _branch("causal", plain, operands))
    return make_node(Cond(branches=graphs), [index, *operands]).results[0]


def _written(mask: tuple[float, int, int], dtype: DType) -> Value:
    """The mask, made where it is read, so that nothing is kept of it elsewhere."""
    fill, queries, keys = mask
    shape = (1, 1, queries, keys)
    row, column = (Iota(dtype=DType.I32, shape=shape, axis=axis)() for axis in (2, 3))
    zero, hidden = (constant(n, dtype).broadcast_to(shape) for n in (0.0, fill))
    made: Value = Select()(column <= row + (keys - queries), zero, hidden)
    return made


def _largest(x: Value) -> Value:
    """The largest magnitude, NaN where there is one."""
    found: Value = ReduceMax(axes=tuple(range(x.rank)))(Abs()(x))
    return found.convert(DType.F32)


def _branch(name: str, make: Callable[..., Value], operands: list[Value]) -> Graph:
    leaves = [leaf(f"x{i}", v.type) for i, v in enumerate(operands)]
    return Graph(leaves, (), [make(*leaves)], name=name)
