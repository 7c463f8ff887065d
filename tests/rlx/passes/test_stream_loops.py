"""Loops that count: which become scans, what they read and write, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.ir.graph import Graph
from rlx.ir.text import parse
from rlx.ops.control_flow import Scan, While
from rlx.passes.base import PassContext
from rlx.passes.stream_loops import StreamLoops


def _streamed(text: str) -> tuple[Graph, Graph, list[str]]:
    graph = parse(text)
    ctx = PassContext()
    made = StreamLoops().run(graph, ctx)
    assert StreamLoops().run(made, PassContext()) is made
    return graph, made, ctx.notes


def _assert_same(graph: Graph, made: Graph, rng: np.random.Generator) -> None:
    feeds: dict[str, Any] = {}
    for value in graph.inputs:
        shape = tuple(int(str(d)) for d in value.type.shape)
        kind = value.dtype.numpy
        drawn = rng.integers(-3, 9, shape) if value.dtype.is_integer else rng.normal(size=shape)
        feeds[value.name] = np.asarray(drawn).astype(kind)
    for got, want in zip(rlx.interpret(made, feeds), rlx.interpret(graph, feeds), strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype


LOOP = """
graph @cond "cond" {
  input %i "i": i32[]
  input %h "h": f32[3]
  input %ys "ys": f32[6, 3]
  %0 = constant 6: i32[]
  %1 = compare(%i, %0) {direction = Direction.LT}: bool[]
  return %1
}

graph @body "body" {
  input %xs "xs": f32[6, 3]
  input %i "i": i32[]
  input %h "h": f32[3]
  input %ys "ys": f32[6, 3]
  %0 = constant 0: i32[]
  %1 = dynamic_slice(%xs, %i, %0) {sizes = (1, 3)}: f32[1, 3]
  %2 = reshape(%1) {shape = (3,)}: f32[3]
  %3 = sub(%2, %h): f32[3]
  %4 = reshape(%3) {shape = (1, 3)}: f32[1, 3]
  %5 = dynamic_update_slice(%ys, %4, %i, %0): f32[6, 3]
  %6 = constant 1: i32[]
  %7 = add(%i, %6): i32[]
  return %7, %3, %5
}

graph "loop" {
  input %xs "xs": f32[6, 3]
  input %h "h": f32[3]
  input %ys "ys": f32[6, 3]
  %0 = constant 0: i32[]
  %1:3 = while(%xs, %0, %h, %ys) {cond = @cond, body = @body, body_consts = 1}: (i32[], f32[3], f32[6, 3])
  return %1#0, %1#1, %1#2
}
"""  # noqa: E501

SCAN = """
graph @body "body" {
  input %h "h": f32[3]
  input %row_0 "row_0": f32[3]
  %0 = sub(%row_0, %h): f32[3]
  return %0, %0
}

graph "loop" {
  input %xs "xs": f32[6, 3]
  input %h "h": f32[3]
  input %ys "ys": f32[6, 3]
  %0 = constant 6: i32[]
  %1:2 = scan(%h, %xs) {body = @body, length = 6, num_carry = 1}: (f32[3], f32[6, 3])
  return %0, %1#0, %1#1
}
"""


def test_a_while_is_a_scan_of_what_it_reads_and_writes(rng: np.random.Generator) -> None:
    graph, made, notes = _streamed(LOOP)
    wanted = rlx.passes.run(parse(SCAN), [])
    assert rlx.same(rlx.passes.run(made, [rlx.passes.Canonicalize()]), wanted)
    assert notes == [
        "1 loops that count are scans; 1 reads and 1 writes at a counter are rows of theirs"
    ]
    _assert_same(graph, made, rng)


@pytest.mark.parametrize(
    ("start", "step", "test", "steps"),
    [
        (0, 1, "compare(%i, %0) {direction = Direction.LE}", 7),
        (0, 2, "compare(%i, %0) {direction = Direction.LT}", 3),
        (1, 2, "compare(%i, %0) {direction = Direction.LT}", 3),
        (0, 3, "compare(%i, %0) {direction = Direction.NE}", 2),
        (0, 4, "compare(%0, %i) {direction = Direction.GT}", 2),
        (0, 1, "compare(%0, %i) {direction = Direction.GE}", 7),
        (9, -1, "compare(%i, %0) {direction = Direction.GT}", 3),
        (9, -1, "compare(%i, %0) {direction = Direction.GE}", 4),
        (9, -2, "compare(%0, %i) {direction = Direction.LE}", 2),
        # No end, none that is known, or no step at all.
        (0, 4, "compare(%i, %0) {direction = Direction.NE}", None),
        (9, 1, "compare(%i, %0) {direction = Direction.GE}", None),
        (5, 1, "compare(%i, %0) {direction = Direction.EQ}", None),
        (9, 1, "compare(%i, %0) {direction = Direction.LT}", None),
        (5, -1, "compare(%i, %0) {direction = Direction.NE}", None),
        (7, -1, "compare(%i, %0) {direction = Direction.NE}", 1),
    ],
)
def test_the_number_of_steps(
    start: int, step: int, test: str, steps: int | None, rng: np.random.Generator
) -> None:
    text = LOOP.replace("compare(%i, %0) {direction = Direction.LT}", test)
    text = text.replace("constant 1: i32[]", f"constant {step}: i32[]")
    text = text.replace("%0 = constant 0: i32[]\n  %1:3", f"%0 = constant {start}: i32[]\n  %1:3")
    graph, made, _ = _streamed(text)
    found = [n.op for n in made.nodes() if isinstance(n.op, Scan)]
    assert [op.length for op in found] == ([] if steps is None else [steps])
    if steps is not None:
        _assert_same(graph, made, rng)
    else:
        assert made is graph


def test_an_end_that_is_carried_or_given(rng: np.random.Generator) -> None:
    """Loops of ``fori_loop`` carry their end, which no step changes."""
    text = LOOP.replace("%0 = constant 6: i32[]", "%0 = convert(%h) {dtype = i32}: i32[]")
    text = text.replace('"h": f32[3]', '"h": i32[]').replace(
        "sub(%2, %h): f32[3]", "neg(%2): f32[3]"
    )
    text = text.replace("return %7, %3, %5", "return %7, %h, %5").replace(
        "(i32[], f32[3], f32[6, 3])", "(i32[], i32[], f32[6, 3])"
    ).replace("%0 = convert(%h) {dtype = i32}: i32[]", "%0 = constant 6: i32[]").replace(
        "compare(%i, %0)", "compare(%i, %h)"
    ).replace("while(%xs, %0, %h, %ys)", "while(%xs, %0, %n, %ys)").replace(
        "%1:3", "%n = constant 6: i32[]\n  %1:3"
    )  # fmt: skip
    graph, made, _ = _streamed(text)
    (scan,) = [n.op for n in made.nodes() if isinstance(n.op, Scan)]
    assert (scan.length, scan.num_carry) == (6, 0)
    _assert_same(graph, made, rng)
    given, left, _ = _streamed(
        text.replace("%n = constant 6: i32[]", "%n = reduce_sum(%h) {axes = ()}: i32[]")
    )
    assert left is given


@pytest.mark.parametrize(
    ("old", "new", "reads", "writes"),
    [
        ("", "", 1, 1),
        # A row further on, which is clamped in the last step.
        ("dynamic_slice(%xs, %i, %0)", "dynamic_slice(%xs, %7, %0)", 0, 1),
        # What has been written is read again.
        ("return %7, %3, %5", "return %7, %8, %5", 1, 0),
        # Each row is read before it is written.
        ("dynamic_slice(%xs, %i, %0)", "dynamic_slice(%ys, %i, %0)", 1, 1),
        # One of the rows is read after it has been.
        ("dynamic_slice(%xs, %i, %0)", "dynamic_slice(%ys, %9, %0)", 0, 0),
    ],
)
def test_what_is_streamed(
    old: str, new: str, reads: int, writes: int, rng: np.random.Generator
) -> None:
    body = "  %6 = constant 1: i32[]\n  %7 = add(%i, %6): i32[]\n"
    text = LOOP.replace(body, "").replace(
        "  %0 = constant 0: i32[]\n  %1 = dynamic",
        f"  %0 = constant 0: i32[]\n{body}  %9 = sub(%i, %6): i32[]\n  %1 = dynamic",
    )
    last = "  %8 = reduce_max(%5) {axes = (0,)}: f32[3]\n  return"
    text = text.replace("  return %7, %3", f"{last} %7, %3") if "%8" in new else text
    graph, made, notes = _streamed(text.replace(old, new) if old else text)
    assert notes == [
        f"1 loops that count are scans; {reads} reads and {writes} writes at a counter are rows "
        "of theirs"
    ]
    _assert_same(graph, made, rng)


def test_a_part_of_an_array_is_streamed_beside_a_product_alone(rng: np.random.Generator) -> None:
    """It is copied, for which a step that does little would pay."""
    text = LOOP.replace("constant 6: i32[]", "constant 5: i32[]")
    graph, made, notes = _streamed(text)
    assert "0 reads and 0 writes" in notes[0]
    _assert_same(graph, made, rng)
    product = (
        "dot_general(%1, %1) {lhs_contracting = (0,), rhs_contracting = (0,)}: f32[3, 3]\n"
        "  %10 = reduce_sum(%9) {axes = (0,)}: f32[3]\n  %3 = sub(%10, %h): f32[3]"
    )
    graph, made, notes = _streamed(text.replace("%3 = sub(%2, %h): f32[3]", f"%9 = {product}"))
    assert "1 reads and 1 writes" in notes[0]
    _assert_same(graph, made, rng)


def test_loops_of_many_steps_are_scans_that_read_as_they_did() -> None:
    text = LOOP.replace("%0 = constant 6: i32[]", "%0 = constant 1000000: i32[]")
    _, made, notes = _streamed(text)
    (scan,) = [n.op for n in made.nodes() if isinstance(n.op, Scan)]
    assert scan.length == 1_000_000
    assert notes[0].startswith("1 loops that count are scans; 0 reads and 0 writes")


def test_a_counter_that_leaves_its_type_is_no_counter() -> None:
    text = LOOP.replace("i32", "i8").replace("constant 6: i8[]", "constant 127: i8[]")
    graph, made, _ = _streamed(text.replace("constant 1: i8[]", "constant 100: i8[]"))
    assert made is graph
    assert [n for n in made.nodes() if isinstance(n.op, While)]


@pytest.mark.parametrize(
    ("dtype", "start", "step"),
    [("u64", 2**64 - 4, 1), ("u64", 2**63 + 9, -3), ("i64", -(2**63), 2**61), ("i4", -8, 5),
     ("u2", 0, 1), ("i8", -128, 85)],
)  # fmt: skip
def test_counters_at_the_ends_of_their_types(
    dtype: str, start: int, step: int, rng: np.random.Generator
) -> None:
    text = LOOP.replace('"i": i32[]', f'"i": {dtype}[]').replace("(i32[],", f"({dtype}[],")
    text = text.replace("%0 = constant 6: i32[]", f"%0 = constant {start + 3 * step}: {dtype}[]")
    text = text.replace("Direction.LT", "Direction.NE").replace("i32", dtype)
    text = text.replace(f"constant 1: {dtype}", f"constant {abs(step)}: {dtype}")
    if step < 0:
        text = text.replace("%7 = add", "%7 = sub")
    head, loop = text.split('graph "loop"')
    loop = loop.replace(f"%0 = constant 0: {dtype}[]", f"%0 = constant {start}: {dtype}[]")
    graph, made, notes = _streamed(head + 'graph "loop"' + loop)
    assert notes
    _assert_same(graph, made, rng)


def test_constants_that_wrap_on_their_way(rng: np.random.Generator) -> None:
    """300 as an i8 is 44: a step that comes through it is 44, or no step that is known."""
    text = LOOP.replace("%6 = constant 1: i32[]", """%8 = constant 300: i32[]
  %9 = convert(%8): i8[]
  %6 = convert(%9): i32[]""").replace("constant 6: i32[]", "constant 440: i32[]")  # fmt: skip
    text = text.replace("convert(%8)", "convert(%8) {dtype = i8}")
    graph, made, _ = _streamed(text.replace("convert(%9)", "convert(%9) {dtype = i32}"))
    _assert_same(graph, made, rng)


PRODUCT = (
    "%9 = dot_general(%1, %1) {lhs_contracting = (0,), rhs_contracting = (0,)}: f32[3, 3]\n"
    "  %10 = reduce_sum(%9) {axes = (0,)}: f32[3]\n  %3 = sub(%10, %h): f32[3]"
)
"""Beside a product, a step reads rows that are put together for it."""


@pytest.mark.parametrize(
    ("place", "reads", "writes"),
    [
        ("%p = sub(%five, %i): i32[]", 1, 1),
        # Clamped in the first step, and in the last.
        ("%p = sub(%i, %one): i32[]", 1, 0),
        ("%p = add(%i, %one): i32[]", 1, 0),
        # Every second row, twice: the last one is clamped.
        ("%m = mul(%i, %two): i32[]\n  %l = compare(%i, %three) {direction = Direction.LT}: bool[]"
         "\n  %k = sub(%m, %five): i32[]\n  %p = select(%l, %m, %k): i32[]", 1, 0),
        # 0, 1, 4 and then 5 again and again.
        ("%p = mul(%i, %i): i32[]", 0, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("written", [False, True])
def test_rows_in_other_orders(
    place: str, reads: int, writes: int, written: bool, rng: np.random.Generator
) -> None:
    numbers = "".join(f"  %{name} = constant {n}: i32[]\n" for name, n in
                      (("one", 1), ("two", 2), ("three", 3), ("five", 5)))  # fmt: skip
    text = LOOP.replace("%3 = sub(%2, %h): f32[3]", PRODUCT)
    zero, read = "  %0 = constant 0: i32[]\n", "  %1 = dynamic"
    text = text.replace(f"{zero}{read}", f"{zero}{numbers}  {place}\n{read}")
    old, new = (("(%ys, %4, %i, %0)", "(%ys, %4, %p, %0)") if written
                else ("dynamic_slice(%xs, %i, %0)", "dynamic_slice(%xs, %p, %0)"))  # fmt: skip
    graph, made, notes = _streamed(text.replace(old, new))
    found = (1, writes) if written else (reads, 1)
    assert notes == [f"1 loops that count are scans; {found[0]} reads and {found[1]} writes at a "
                     "counter are rows of theirs"]  # fmt: skip
    _assert_same(graph, made, rng)


def test_loops_that_only_fall_go_backwards(rng: np.random.Generator) -> None:
    """Then nothing is turned around."""
    text = LOOP.replace("constant 6: i32[]", "constant -1: i32[]").replace("LT", "GT")
    text = text.replace("constant 1: i32[]", "constant -1: i32[]")
    text = text.replace("%0 = constant 0: i32[]\n  %1:3", "%0 = constant 5: i32[]\n  %1:3")
    graph, made, _ = _streamed(text)
    (scan,) = [n for n in made.nodes() if isinstance(n.op, Scan)]
    assert isinstance(scan.op, Scan)
    assert scan.op.reverse
    assert scan.inputs[-1] in made.inputs
    _assert_same(graph, made, rng)


NUMBERED = """
graph @body "body" {
  input %xs "xs": f32[6, 3]
  input %h "h": f32[3]
  input %t "t": i32[]
  %0 = constant 0: i32[]
  %1 = dynamic_slice(%xs, %t, %0) {sizes = (1, 3)}: f32[1, 3]
  %2 = reshape(%1) {shape = (3,)}: f32[3]
  %3 = sub(%2, %h): f32[3]
  return %3, %2
}

graph "loop" {
  input %xs "xs": f32[6, 3]
  input %h "h": f32[3]
  %0 = iota() {dtype = i32, shape = (6,)}: i32[6]
  %1:2 = scan(%xs, %h, %0) {body = @body, length = 6, num_consts = 1, num_carry = 1}: (f32[3], f32[6, 3])
  return %1#0, %1#1
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("numbers", "reads"),
    [
        ("", 1),
        ("  %2 = reverse(%0) {axes = (0,)}: i32[6]\n", 0),
        ("  %3 = constant [0, 1, 2, 3, 4, 5]: i32[6]\n  %2 = add(%0, %3): i32[6]\n", 0),
        ("  %3 = constant [0, 0, 0, 0, 0, 9]: i32[6]\n  %2 = add(%0, %3): i32[6]\n", 1),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_numbers_that_a_scan_reads(
    numbers: str, reads: int, reverse: bool, rng: np.random.Generator
) -> None:
    text = NUMBERED.replace("  %1:2", f"{numbers}  %1:2")
    text = text.replace("scan(%xs, %h, %0)", "scan(%xs, %h, %2)") if numbers else text
    if reverse:
        text = text.replace("num_consts = 1", "reverse = true, num_consts = 1")
    graph, made, notes = _streamed(text)
    assert notes == ([f"0 loops that count are scans; {reads} reads and 0 writes at a counter are "
                      "rows of theirs"] if reads else [])  # fmt: skip
    if reads:
        (scan,) = [n for n in made.nodes() if isinstance(n.op, Scan)]
        assert scan.inputs == (made.inputs[1], made.inputs[0])
    _assert_same(graph, made, rng)
