"""Printing then parsing gives the same graph, whatever its arrays, strings and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rlx import dims
from rlx.dtypes import DType, Kind
from rlx.errors import ParseError
from rlx.ir.attributes import Literal
from rlx.ir.graph import Graph, Value, make_node, same
from rlx.ir.location import Location
from rlx.ir.scanner import Scanner, quoted
from rlx.ir.text import parse, print_graph
from rlx.ir.verify import verify
from rlx.ops.arithmetic import Add, Mul, Neg
from rlx.ops.control_flow import Call
from rlx.ops.external import External
from rlx.ops.io import Constant, Input, Param
from rlx.types import TensorType

DTYPES = [d for d in DType if d is not DType.TOKEN]


@st.composite
def literals(draw: st.DrawFn) -> Literal:
    """Arrays of random bits."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    if dtype.kind is Kind.BOOL:
        raw = raw & 1
    return Literal(raw.view(dtype.numpy).reshape(shape))


def check(graph: Graph) -> None:
    text = print_graph(graph, locations=True)
    read = parse(text)
    assert same(read, graph)
    assert print_graph(read, locations=True) == text
    verify(read)


@given(literals())
@example(Literal(np.zeros((0, 2, 0), np.float32)))
def test_arrays(literal: Literal) -> None:
    check(Graph((), (), [Constant(value=literal)()]))


@given(st.text(alphabet=st.characters(), max_size=30))
def test_strings(text: str) -> None:
    scan = Scanner(quoted(text))
    assert scan.string("a string") == text
    assert scan.kind == "end"
    leaf = Input(name=text, dtype=DType.F32)()
    place = Location(text, 3, text)
    (value,) = make_node(
        External(name=text, dtypes=(DType.F32,), shapes=((),)), [leaf], place
    ).results
    check(Graph([leaf], (), [value], name=text))


def outcome(text: str) -> Graph | ParseError:
    try:
        return parse(text)
    except ParseError as error:
        return error


@st.composite
def sizes(draw: st.DrawFn) -> dims.Dim:
    """Dims, some symbolic, over symbols with bounds."""
    b, s = dims.symbol("b", 2, 512), dims.symbol("s")
    a, c = draw(st.integers(0, 9)), draw(st.integers(1, 9))
    return draw(st.sampled_from([a, b, s * c, b * s + a, b // c + 1, dims.min_(b, s), s % c]))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Elementwise graphs over one shape, with calls of inner graphs."""
    shape = tuple(draw(st.lists(sizes(), max_size=3)))
    dtype = draw(st.sampled_from([DType.F32, DType.BF16, DType.I32]))
    names = draw(st.lists(st.text(max_size=8), min_size=2, max_size=5, unique=True))
    values: list[Value] = [Input(name=names[0], dtype=dtype, shape=shape)()]
    values += [Param(name=name, dtype=dtype, shape=shape)() for name in names[1:]]
    inputs, params = values[:1], values[1:]
    leaf = Input(name="x", dtype=dtype, shape=shape)()
    inner = Graph([leaf], (), [Neg()(leaf), leaf], name=draw(st.text(max_size=5)))
    for _ in range(draw(st.integers(0, 12))):
        x, y = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        made: Any = draw(st.sampled_from(["neg", "add", "mul", "call"]))
        if made == "call":
            values.extend(make_node(Call(body=inner), [x]).results)
        else:
            values.append(Neg()(x) if made == "neg" else {"add": Add, "mul": Mul}[made]()(x, y))
    outputs = draw(st.lists(st.sampled_from(values), max_size=4))
    return Graph(inputs, params, outputs, name=draw(st.text(max_size=8)))


@given(graphs())
def test_graphs(graph: Graph) -> None:
    check(graph)


@given(graphs(), st.data())
def test_changed_text_is_refused_or_a_graph(graph: Graph, data: st.DataObject) -> None:
    text = print_graph(graph, locations=True)
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 3))
    added = data.draw(
        st.text(alphabet='%@#"{}()[],:=.<>x0 1ab\\\n', max_size=3) | st.text(max_size=2)
    )
    read = outcome(text[:at] + added + text[at + cut :])
    if isinstance(read, ParseError):
        assert read.line >= 1
        assert read.column >= 1
    else:
        assert same(parse(str(read)), read)


@given(st.text(alphabet='graph "{}()%@=:,[]<>0123.x\n\\return', max_size=60))
def test_any_text(text: str) -> None:
    read = outcome(text)
    assert isinstance(read, Graph) or read.line >= 1


def test_a_type_is_part_of_the_text() -> None:
    x = Input(name="x", dtype=DType.F32, shape=(dims.parse("b*2"),))()
    assert parse(str(Graph([x], (), [x]))).inputs[0].type == TensorType(
        DType.F32, (dims.parse("b*2"),)
    )
