"""Text of graphs: what it looks like, that it parses back, and what is refused where."""

from __future__ import annotations

import enum
import struct
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlx import dims
from rlx.dtypes import BY_LABEL, DType
from rlx.errors import ParseError
from rlx.ir import op as op_module
from rlx.ir.attributes import Literal
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, make_node, same
from rlx.ir.op import Op, define_op
from rlx.ir.text import parse, print_graph
from rlx.ops.arithmetic import Neg
from rlx.ops.control_flow import Call, CallKind, Cond
from rlx.ops.io import Constant, Input
from rlx.types import Dim, Shape, TensorType

F32 = DType.F32


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def round_trip(graph: Graph) -> Graph:
    text = print_graph(graph, locations=True)
    read = parse(text)
    assert same(read, graph)
    assert print_graph(read, locations=True) == text
    return read


def refused(text: str) -> ParseError:
    with pytest.raises(ParseError) as caught:
        parse(text)
    return caught.value


def body(lines: str) -> str:
    return f'graph "g" {{\n  input %x "x": f32[4]\n{lines}\n}}'


@pytest.fixture
def sample_op() -> Iterator[type[Op]]:
    """An op with an attribute of every kind, of version 2, that is gone after the test."""

    @define_op("test.kinds", version=2)
    class Kinds(Op):
        flag: bool = False
        count: int = 0
        eps: float = 0.0
        name: str = ""
        data: bytes = b""
        maybe: int | None = None
        colour: Colour = Colour.RED
        dtype: DType = F32
        dim: Dim = 1
        shape: Shape = ()
        value: Literal | None = None
        nested: tuple[tuple[Colour, ...], ...] = ()

        def infer(self, x: TensorType) -> TensorType:
            return x

        def evaluate(self, x: Any) -> Any:
            return x

    yield Kinds
    del op_module._OPS["test.kinds"]


def test_the_form() -> None:
    b = GraphBuilder("mlp")
    x = b.input("x", TensorType(F32, (dims.symbol("batch", 2, 512), 64)))
    w = b.param("params/x", "f32[64]")
    graph = b.build(Neg()(x), w, b.constant([1.5, -0.0]))
    assert (
        str(graph)
        == """graph "mlp" {
  where batch >= 2, batch <= 512
  input %x "x": f32[batch, 64]
  param %x_1 "params/x": f32[64]
  %0 = neg(%x): f32[batch, 64]
  %1 = constant [1.5, -0.0]: f32[2]
  return %0, %x_1, %1
}"""
    )
    round_trip(graph)


def test_attributes_of_every_kind(sample_op: type[Op]) -> None:
    x = Input(name="x", dtype=F32, shape=(4,))()
    payload = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
    op = sample_op(
        flag=True,
        count=-(2**63),
        eps=payload,
        name='quote " back \\ line\n\t\x00\u2028é😀\ud800',
        data=bytes(range(40)),
        maybe=3,
        colour=Colour.BLUE,
        dtype=DType.BF16,
        dim=dims.parse("b*2 + min(s, 4)"),
        shape=(dims.symbol("b"), 7),
        value=Literal(np.arange(3, dtype=np.int8)),
        nested=((), (Colour.RED,), (Colour.BLUE, Colour.RED)),
    )
    graph = Graph([x], (), [op(x), sample_op()(x), sample_op(eps=-0.0)(x)])
    text = str(graph)
    assert "test.kinds.v2(%x): f32[4]" in text
    assert "eps = nan(0xfff8000000000001)" in text
    assert "{eps = -0.0}" in text
    assert "(%x) {}" not in text
    assert round_trip(graph).outputs[0].node.op == op


def test_versions(sample_op: type[Op]) -> None:
    del sample_op
    error = refused(body("  %0 = test.kinds(%x): f32[4]\n  return %0"))
    assert "version 2 of op 'test.kinds' is required; got version 1" in str(error)
    assert (error.line, error.column) == (3, 8)
    assert "format 1 is required; got 7" in str(refused("format 7\n" + body("return %x")))
    assert same(parse("format 1\n" + body("return %x")), parse(body("return %x")))


def test_graphs_in_attributes_stay_shared() -> None:
    b = GraphBuilder("body")
    inner = b.build(Neg()(b.input("x", "f32[4]")))
    x = Input(name="x", dtype=F32, shape=(4,))()
    flag = Input(name="flag", dtype=DType.BOOL)()
    (y,) = make_node(Call(body=inner, kind=CallKind.REMAT), [x]).results
    (z,) = make_node(Cond(branches=(inner, inner)), [flag, y]).results
    graph = Graph([x, flag], (), [z])
    text = str(graph)
    assert text.count("graph @body") == 1
    assert "call(%x) {body = @body, kind = CallKind.REMAT}" in text
    assert "branches = (@body, @body)" in text
    read = round_trip(graph)
    assert len(read.all_graphs()) == 2


def test_inner_graphs_of_one_name_get_two() -> None:
    def make(op: Op) -> Graph:
        x = Input(name="x", dtype=F32)()
        return Graph([x], (), make_node(op, [x]).results, name="f")

    x = Input(name="x", dtype=F32)()
    first = make_node(Call(body=make(Neg())), [x]).results
    second = make_node(Call(body=make(Neg())), first).results
    graph = Graph([x], (), second)
    assert "graph @f " in str(graph)
    assert "graph @f_1 " in str(graph)
    assert len(round_trip(graph).all_graphs()) == 3


def test_several_results_and_effects() -> None:
    text = """graph "g" {
  input %x "x": f32[4]
  %0:2 = external(%x) {name = "f", dtypes = (f32, token), shapes = ((4,), ())}: (f32[4], token)
  %1 = neg(%0#0): f32[4]
  return %1, %0#0
  effects %0#1
}"""
    graph = parse(text)
    assert str(graph) == text
    assert len(graph.effects) == 1


def test_locations() -> None:
    x = Input(name="x", dtype=F32)()
    graph = Graph([x], (), [x])
    assert 'loc("" "' in print_graph(graph, locations=True)
    text = 'graph "g" {\n  input %x "x": f32[] loc("enc/0" "a \\" b.py":12)\n  return %x\n}'
    place = parse(text).inputs[0].node.location
    assert (place.label, place.file, place.line) == ("enc/0", 'a " b.py', 12)
    assert print_graph(parse(text), locations=True) == text
    assert "loc(" not in str(parse(text))


@pytest.mark.parametrize("bounds", [(1, None), (2, None), (None, 5), (None, None), (-3, 4)])
def test_declared_symbols(bounds: tuple[int | None, int | None]) -> None:
    x = Input(name="x", dtype=F32, shape=(dims.symbol("b", *bounds), dims.symbol("s")))()
    (dim, _) = round_trip(Graph([x], (), [x])).inputs[0].type.shape
    assert dim == dims.symbol("b", *bounds)


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.TOKEN], ids=str)
def test_every_bit_pattern(dtype: DType) -> None:
    size = dtype.itemsize
    if dtype is DType.BOOL:
        raw = np.array([0, 1], np.uint8)
    elif size == 1:
        raw = np.arange(256, dtype=np.uint8)
    else:
        raw = np.random.default_rng(0).integers(0, 256, 64 * size, dtype=np.uint8)
        raw[: 4 * size] = 0
        raw[size - 1], raw[2 * size] = 0x80, 1  # −0 and the least subnormal number
    every = raw.view(dtype.numpy)
    parts = [every[i : i + 8] for i in range(0, len(every), 8)]
    values = [Constant(value=Literal(p))() for p in [*parts, every, every[:1].reshape(())]]
    graph = Graph((), (), values)
    read = parse(str(graph))
    for found, wanted in zip(read.outputs, graph.outputs, strict=True):
        assert found.node.op.attributes()["value"].tobytes() == (
            wanted.node.op.attributes()["value"].tobytes()
        )


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (np.float32(0.1), "0.1: f32[]"),
        (np.float32(1e-45), "1.4e-45: f32[]"),
        (np.array([np.nan, np.inf, -np.inf], np.float32), "[nan, inf, -inf]: f32[3]"),
        (np.array([[1, 2], [3, 4]], np.int8), "[[1, 2], [3, 4]]: i8[2, 2]"),
        (np.array([True, False]), "[true, false]: bool[2]"),
        (np.complex64(complex(1, -0.0)), "(1.0, -0.0): c64[]"),
        (np.zeros((0, 3), np.float32), "[]: f32[0, 3]"),
        (np.frombuffer(b"\x01\x00\xc0\x7f", np.float32), "[0x7fc00001]: f32[1]"),
        (np.zeros(33, np.int8), f'b64"{"A" * 44}": i8[33]'),
        (np.zeros(17, np.int8), f'x"{"00" * 17}": i8[17]'),
    ],
)
def test_arrays_are_readable(array: Any, shown: str) -> None:
    graph = Graph((), (), [Constant(value=Literal(array))()])
    assert f"constant {shown}" in str(graph)
    round_trip(graph)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "'graph' is required; got the end of the text"),
        ("graph 3", 1, 7, "the graph's name, in quotes, is required; got '3'"),
        ('graph "g" { $', 1, 13, "a name, a number or a sign is required; got '$'"),
        ('graph "g', 1, 7, "no closing quote"),
        ('graph "g" { return } x', 1, 22, "the end of the text"),
        ('graph "\\q" { return }', 1, 8, "an escape"),
        (body("  %0 = soft_max(%x): f32[4]\n  return %0"), 3, 8, "'soft_max' is not registered"),
        (body("  %0 = ngg(%x): f32[4]\n  return %0"), 3, 8, "Did you mean 'neg'?"),
        (body("  %0 = neg(%y): f32[4]\n  return %0"), 3, 12, "defined above is required"),
        (body("  %0 = neg(%x): f32[5]\n  return %0"), 3, 17, "f32[4] is required; got f32[5]"),
        (body("  %0 = neg(%x): g32[5]\n  return %0"), 3, 17, "a type such as"),
        (body("  %0 = neg(%x): f32[5\n  return %0"), 3, 17, "']' at its end"),
        (body("  %0 = neg(%x): f32[a b]\n  return %0"), 3, 17, "dims.parse"),
        (body("  %0 = neg(%x): f32[9999999999, 9999999999]\n return %0"), 3, 17, "2^62 bytes"),
        (body("  %0 = neg(%x, %x): f32[4]\n  return %0"), 3, 8, "required 1 inputs"),
        (body("  %0:2 = neg(%x): f32[4]\n  return %0"), 3, 6, "1 results are required"),
        (body("  %x = neg(%x): f32[4]\n  return %x"), 3, 3, "'%x' is defined on line 2"),
        (body('  input %y "x": f32[]\n  return %x'), 1, 7, "names are unique"),
        (body("  %0 = neg(%x#1): f32[4]\n  return %0"), 3, 12, "has 1 results"),
        (body("  %0 = neg(%x) {axis = 1}: f32[4]\n  return %0"), 3, 17, "has no attribute 'axis'"),
        (body("  %0 = constant 1.5: i32[]\n  return %0"), 3, 17, "an integer of i32"),
        (body("  %0 = constant 300: i8[]\n  return %0"), 3, 17, "in the range of i8"),
        (body("  %0 = constant 1e39: f32[]\n  return %0"), 3, 17, "in the range of f32"),
        (body("  %0 = constant [1, 2]: i8[3]\n  return %0"), 3, 17, "nested as (3,)"),
        (body("  %0 = constant [[1], [2, 3]]: i8[3]\n  return %0"), 3, 28, "a row of 1 elements"),
        (body("  %0 = constant [1, [2]]: i8[3]\n  return %0"), 3, 21, "as deep in brackets"),
        (body('  %0 = constant x"00": i8[3]\n  return %0'), 3, 17, "3 bytes are required"),
        (body('  %0 = constant x"0g": i8[1]\n  return %0'), 3, 17, "hexadecimal"),
        (body('  %0 = constant x"02": bool[1]\n  return %0'), 3, 17, "a bool of 0 or 1"),
        (body("  %0 = constant 1: f32[b]\n  return %0"), 3, 17, "fixed dims"),
        (body('  %0 = constant x"": f32[1152921504606846976]\n return %0'), 3, 17, "bytes are req"),
        (body("  where b >= 2\n  return %x"), 3, 3, "'input', 'param'"),
        ('graph "g" { where b >= 2, b <= 1 return }', 1, 13, "lower <= upper"),
        ('graph "g" { where b < 1 return }', 1, 21, "a name, a number or a sign"),
        (body("  %0 = create_token(): token\n  return %x"), 3, 3, "last token is required"),
        (body("  return %x effects %x,"), 4, 1, "a value is required"),
        ('graph @f "f" { return } graph @f "f" { return }', 1, 31, "'@f' is taken"),
        (body("  %0 = call(%x) {body = @f}: f32[4] return %0"), 3, 25, "got '@f'"),
        (body("  %0 = call(%x): f32[4] return %0"), 3, 8, "requires the attribute body"),
        (body("  %0 = call(%x) {body = 3}: f32[4] return %0"), 3, 18, "to be Graph; got int"),
        (body("  %0 = call(%x) {kind = CallKind.JITT} return"), 3, 25, "Did you mean 'JIT'?"),
        (body("  %0 = call(%x) {name = (1)} return"), 3, 27, "',' after the only item"),
        (body("  %0 = call(%x) {name = 1e999} return"), 3, 25, "64-bit floats"),
        (body(f"  %0 = call(%x) {{name = {'9' * 5000}}} return"), 3, 25, "at most 40 digits"),
    ],
)
def test_errors_point_at_their_place(text: str, line: int, column: int, message: str) -> None:
    error = refused(text)
    assert message in str(error)
    assert (error.line, error.column) == (line, column)


@pytest.mark.parametrize(
    "text",
    [
        "graph " * 1_000_000,
        body("%0 = call(%x) {name = " + "(" * 1_000_000),
        body("%0 = constant " + "[" * 1_000_000),
        body("%0 = constant " + "[" * 60 + "]" * 60 + ": f32[]"),
        body("%0 = neg(%x): f32[" + "(" * 1_000_000 + "]"),
        body("%0 = neg(%x): f32[" + "1," * 1_000_000 + "1]"),
        body("%0 = constant " + "9" * 1_000_000 + ": i32[]"),
        body("%0 = constant 0." + "9" * 1_000_000 + "e: f32[]"),
        body("%" + "9" * 1_000_000 + " = neg(%x): f32[4]"),
        body("%0 = " + "a" * 1_000_000 + "(%x): f32[4]"),
        '"' + "\\" * 1_000_001,
        'graph "' + "x" * 1_000_000,
        'graph "' + '\\"' * 500_000,
        "#" * 1_000_000,
        "%#" * 500_000,
        " " * 1_000_000 + "\x00",
        body("return " + "%x, " * 300_000),
        body("  %0 = constant []: f32[0, 4611686018427387904]\n  return %0"),
    ],
    ids=range(18),
)
def test_hostile_text_is_refused_quickly(text: str) -> None:
    start = time.perf_counter()
    refused(text)
    assert time.perf_counter() - start < 60  # seconds; a quadratic way takes many minutes


def test_unused_lines_are_dropped() -> None:
    graph = parse(body("  %0 = neg(%x): f32[4]\n  return %x"))
    assert graph.node_count() == 1


def test_names_of_dtypes() -> None:
    for label in BY_LABEL:
        if label != "token":
            assert parse(f'graph "g" {{ input %x "x": {label}[2] return %x }}').inputs[
                0
            ].type == TensorType(BY_LABEL[label], (2,))


def test_what_a_traced_function_asked_of_sizes() -> None:
    n, m = dims.symbol("n", 2), dims.symbol("m")
    leaf = Input(name="x", dtype=F32, shape=(n, m))()
    graph = Graph([leaf], (), [Neg()(leaf)], asked=[n - 5, n - 2 * m], keyed=[m])
    lines = str(graph).split("\n")
    assert lines[1:4] == ["  where n >= 2", "  asked <n - 5>, <-2*m + n>", "  keyed <m>"]
    read = round_trip(graph)
    assert (read.asked, read.keyed) == (graph.asked, graph.keyed)
    plain = Graph([leaf], (), [Neg()(leaf)])
    assert "asked" not in str(plain)
    assert same(read, graph)
    assert not same(read, plain)  # it refuses sizes that the other takes


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  asked 5", "a dim with symbols, such as <n-5>, is required"),
        ("  asked <5>", "a dim with symbols, such as <n-5>, is required"),
        ("  keyed", "a dim with symbols, such as <n-5>, is required"),
        (
            "  asked <n - 5>",
            "question n - 5: symbols of inputs and params are required (there are none); got 'n'",
        ),
        ("  keyed <n>\n  asked <n>", "'input', 'param', '%value = op(…)' or 'return' is required"),
    ],
)
def test_questions_that_are_none(line: str, message: str) -> None:
    text = f'graph "g" {{\n{line}\n  input %x "x": f32[4]\n  return %x\n}}'
    assert message in str(refused(text))
