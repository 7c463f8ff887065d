"""Random small graphs, with ordinary and extreme inputs, for properties of passes and text.

A graph grows one node at a time from values that exist: every op is drawn with attributes that
its inputs allow. Constants are often 0, −0 and 1, chains of layouts are likely, and so are nodes
that occur twice, since passes look for these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlx.dtypes import DType
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, Value
from rlx.ir.rewrite import splice
from rlx.ops.arithmetic import Add, Clamp, Div, IntegerPow, Max, Min, Mul, Neg, Sub
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.control_flow import Call, Cond, Scan, While
from rlx.ops.convert import Convert, Copy
from rlx.ops.dot import DotGeneral, Matmul
from rlx.ops.indexing import DynamicSlice, DynamicUpdateSlice, GatherGeneral, ScatterGeneral
from rlx.ops.indexing.scatters import ScatterKind
from rlx.ops.reduction import Argmax, Mean, ReduceMax, ReduceMin, ReduceProd, ReduceSum
from rlx.ops.shape import (
    BroadcastInDim,
    Concatenate,
    Iota,
    Narrow,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Split,
    Tile,
    Transpose,
)
from rlx.types import TensorType
from tests.samples.base import draw

DTYPES = (DType.F32, DType.F32, DType.I32, DType.BF16, DType.BOOL)
SHAPES = ((), (1,), (3,), (1, 3), (2, 3), (2, 1, 3))


@dataclass(frozen=True)
class Drawn:
    """A graph and arrays for its inputs, NaN, Inf and −0 among them."""

    graph: Graph
    feeds: dict[str, np.ndarray[Any, Any]]


@dataclass
class _Growth:
    """The values so far and where choices come from."""

    choose: Callable[[st.SearchStrategy[Any]], Any]
    values: list[Value]
    depth: int

    def one_of(self, items: Any) -> Any:
        return self.choose(st.sampled_from(list(items)))

    def like(self, type_: TensorType) -> Value:
        """A value of a type: one that exists, or a constant."""
        found = [v for v in self.values if v.type == type_]
        if found and self.choose(st.booleans()):
            return self.one_of(found)
        number = self.one_of((0.0, -0.0, 1.0, 2.0) if type_.dtype.is_float else (0, 1, 1))
        scalar = GraphBuilder().constant(np.asarray(number).astype(type_.dtype.numpy))
        if not type_.shape:
            return scalar
        return BroadcastInDim(shape=type_.shape, broadcast_dimensions=())(scalar)


@st.composite
def graphs(draw_one: Any, max_nodes: int = 12) -> Drawn:
    """Static graphs of up to ``max_nodes`` drawn nodes, with feeds."""
    b = GraphBuilder("drawn")
    rng = np.random.default_rng(draw_one(st.integers(0, 2**16)))
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for position in range(draw_one(st.integers(1, 3))):
        dtype, shape = draw_one(st.sampled_from(DTYPES)), draw_one(st.sampled_from(SHAPES))
        value = b.input(f"x{position}", TensorType(dtype, shape))
        feeds[value.name] = draw(rng, dtype, shape, special=draw_one(st.booleans()))
        rng.shuffle(feeds[value.name].reshape(-1))
    growth = _Growth(draw_one, list(b.build().inputs), depth=0)
    _grow(growth, draw_one(st.integers(1, max_nodes)))
    last = growth.values[-draw_one(st.integers(1, 3)) :]
    return Drawn(b.build(last), feeds)


def _grow(growth: _Growth, count: int) -> None:
    for _ in range(count):
        x = growth.one_of(growth.values)
        step = growth.one_of(_STEPS)
        made = step(growth, x)
        if made is not None:
            growth.values.extend(made if isinstance(made, tuple) else (made,))


def _unary(g: _Growth, x: Value) -> Any:
    if x.dtype is DType.BOOL:
        return Copy()(x)
    op = g.one_of((Neg(), Neg(), IntegerPow(exponent=1), IntegerPow(exponent=2), Copy()))
    return op(x)


def _binary(g: _Growth, x: Value) -> Any:
    if x.dtype is DType.BOOL:
        return g.one_of((Max(), Min()))(x, g.like(x.type))
    ops = [Add(), Sub(), Mul(), Max(), Min()] + ([Div()] if x.dtype.is_float else [])
    pair = [x, g.like(x.type)]
    if g.choose(st.booleans()):
        pair.reverse()
    return g.one_of(ops)(*pair)


def _choice(g: _Growth, x: Value) -> Any:
    kind = g.one_of(("compare", "select", "clamp"))
    if kind == "compare":
        return Compare(direction=g.one_of(Direction))(x, g.like(x.type))
    if kind == "select":
        pred = g.like(TensorType(DType.BOOL, g.one_of(((), x.shape))))
        return Select()(pred, x, g.like(x.type))
    scalar = TensorType(x.dtype)
    return Clamp()(g.like(scalar), x, g.like(scalar))


def _convert(g: _Growth, x: Value) -> Any:
    return Convert(dtype=g.one_of((*DTYPES, DType.F64, DType.I8, DType.U8, DType.F16)))(x)


def _layout(g: _Growth, x: Value) -> Any:
    axes = tuple(range(x.rank))
    kind = g.one_of(("reshape", "transpose", "broadcast", "reverse", "tile"))
    if kind == "reshape":
        size = int(np.prod(x.shape))
        return Reshape(shape=g.one_of(((size,), (1, size), (size, 1), x.shape)))(x)
    if kind == "transpose":
        return Transpose(permutation=tuple(g.choose(st.permutations(axes))))(x)
    if kind == "broadcast":
        wider = tuple(g.one_of((d, 2)) if d == 1 else d for d in x.shape)
        lead = g.one_of(((), (2,))) if x.rank < 3 else ()
        places = tuple(range(len(lead), len(lead) + x.rank))
        return BroadcastInDim(shape=(*lead, *wider), broadcast_dimensions=places)(x)
    if kind == "reverse":
        return Reverse(axes=tuple(a for a in axes if g.choose(st.booleans())))(x)
    return Tile(reps=tuple(g.one_of((1, 1, 2)) for _ in axes))(x)


def _part(g: _Growth, x: Value) -> Any:
    if not x.rank:
        return Iota(dtype=DType.I32, shape=(3,))()
    axis = g.one_of(range(x.rank))
    size = x.shape[axis]
    start = g.choose(st.integers(0, size))
    kind = g.one_of(("slice", "narrow", "split", "pad", "concatenate", "dynamic"))
    if kind == "slice":
        starts = tuple(start if a == axis else 0 for a in range(x.rank))
        strides = tuple(g.one_of((1, 1, 2)) for _ in range(x.rank))
        return Slice(start_indices=starts, limit_indices=x.shape, strides=strides)(x)
    if kind == "narrow":
        return Narrow(axis=axis, start=0, length=g.one_of((size, size - start)))(x)
    if kind == "split":
        return Split(axis=axis, sizes=(start, size - start))(x)
    if kind == "pad":
        amounts = tuple(g.one_of((0, 0, 1)) for _ in range(x.rank))
        zeros = (0,) * x.rank
        return Pad(low=amounts, high=zeros, interior=zeros)(x, g.like(TensorType(x.dtype)))
    if kind == "concatenate":
        others = [g.like(x.type) for _ in range(g.one_of((0, 1)))]
        return Concatenate(axis=axis)(x, *others)
    index = TensorType(DType.I32)
    boxes = tuple(g.one_of((d, max(d - 1, 0))) for d in x.shape)
    return DynamicSlice(sizes=boxes)(x, *(g.like(index) for _ in x.shape))


def _indexed(g: _Growth, x: Value) -> Any:
    """Rows that are gathered from places, or scattered to them."""
    if not x.rank or x.shape[0] == 0:
        return None
    count = g.one_of((1, 2))
    places = g.like(TensorType(DType.I32, (count, 1)))
    inner = tuple(range(1, x.rank))
    if g.choose(st.booleans()):
        sizes = (1, *x.shape[1:])
        return GatherGeneral(
            slice_sizes=sizes, offset_dims=inner, collapsed_slice_dims=(0,), start_index_map=(0,)
        )(x, places)
    kinds = [ScatterKind.SET] + ([ScatterKind.MAX] if x.dtype is not DType.BOOL else [])
    op = ScatterGeneral(
        kind=g.one_of(kinds),
        update_window_dims=inner,
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )
    return op(x, places, g.like(TensorType(x.dtype, (count, *x.shape[1:]))))


def _reduction(g: _Growth, x: Value) -> Any:
    axes = tuple(a for a in range(x.rank) if g.choose(st.booleans()))
    if x.dtype is DType.BOOL:
        return g.one_of((ReduceMax, ReduceMin))(axes=axes)(x)
    if x.rank and x.shape[-1] and g.choose(st.booleans()):
        return Argmax(axis=x.rank - 1)(x)
    ops = [ReduceMax, ReduceMin, ReduceSum, ReduceProd] + ([Mean] if x.dtype.is_float else [])
    return g.one_of(ops)(axes=axes)(x)


def _product(g: _Growth, x: Value) -> Any:
    if x.rank != 2 or x.dtype is DType.BOOL:
        return None
    other = Transpose(permutation=(1, 0))(x)
    if g.choose(st.booleans()):
        return Matmul()(x, other)
    inner = g.one_of((0, 1))
    return DotGeneral(lhs_contracting=(inner,), rhs_contracting=(1 - inner,))(x, other)


def _inner(g: _Growth, x: Value) -> Any:
    """A call, a choice or a loop whose bodies are drawn too."""
    if g.depth >= 2:
        return None
    kind = g.one_of(("call", "twice", "cond", "scan", "counts"))
    if kind == "counts":
        return _counting(g, x)
    if kind == "cond":
        index = g.like(TensorType(DType.I32))
        return Cond(branches=(_body(g, x), _body(g, x)))(index, x)
    body = _body(g, x)
    if kind == "scan":
        return Scan(body=body, length=2, num_carry=1)(x)
    made = Call(body=body)(x)
    return (made, Call(body=body)(made)) if kind == "twice" else made


def _counting(g: _Growth, x: Value) -> Any:
    """A loop by numbers that reads and writes rows, maybe not one after the other."""
    length, start, step = g.one_of((1, 2, 4)), g.one_of((0, 1, 3)), g.one_of((1, 1, -1, 2))
    table = TensorType(x.dtype, (4, *x.shape))
    first = [GraphBuilder().constant(np.int32(start)), x, g.like(table)]
    given = g.like(table)
    b = GraphBuilder("counting")
    names = ("rows", "i", "h", "ys")
    leaves = [b.input(n, v.type) for n, v in zip(names, (given, *first), strict=True)]
    rows, i, h, ys = leaves
    zeros = [GraphBuilder().constant(np.int32(0)) for _ in x.shape]
    row = DynamicSlice(sizes=(1, *x.shape))(g.one_of((rows, ys)), i, *zeros)
    new = Max()(h, Reshape(shape=x.shape)(row))
    new = splice(_body(g, x), [new])[0]
    at = g.one_of((i, Add()(i, GraphBuilder().constant(np.int32(1)))))
    ys = DynamicUpdateSlice()(ys, Reshape(shape=(1, *x.shape))(new), at, *zeros)
    i = Add()(i, GraphBuilder().constant(np.int32(step)))
    body = b.build([i, new, ys])
    if g.choose(st.booleans()):
        return Scan(body=body, length=length, num_consts=1, num_carry=3)(given, *first)
    c = GraphBuilder("condition")
    counter, *_ = (c.input(n, v.type) for n, v in zip(names[1:], first, strict=True))
    bound = GraphBuilder().constant(np.int32(start + step * length))
    direction = g.one_of((Direction.NE, Direction.LT if step > 0 else Direction.GT))
    cond = c.build([Compare(direction=direction)(counter, bound)])
    return While(cond=cond, body=body, body_consts=1)(given, *first)


def _body(g: _Growth, x: Value) -> Graph:
    b = GraphBuilder("body")
    leaf = b.input("x", x.type)
    inner = _Growth(g.choose, [leaf], g.depth + 1)
    _grow(inner, g.choose(st.integers(1, 5)))
    same_type = [v for v in inner.values if v.type == x.type]
    return b.build(same_type[-1])


_STEPS = (
    _unary, _binary, _binary, _choice, _convert, _layout, _layout, _part, _reduction, _product,
    _inner, _indexed,
)  # fmt: skip
