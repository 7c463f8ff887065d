"""Random loops of cells: masks, rows in other orders, what is stacked; and trees of products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

from rlx.dtypes import DType
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, Value
from rlx.ir.operators import constant
from rlx.ops.arithmetic import Abs
from rlx.ops.bitwise import Not
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.dot import DotGeneral
from rlx.ops.indexing import DynamicSlice
from rlx.ops.sequence.loops import Values, scan, spread, zeros
from rlx.ops.shape import Concatenate, Reshape
from rlx.ops.transcendental import Logistic
from rlx.types import TensorType

ROWS = ("next", "next", "last to first", "before", "after", "every second")
MASKS = ("none", "rows", "rows", "lengths", "inverted")
CHOICES = ("stays", "stays", "stays", "begins anew", "first state")
SHOWN = ("kept", "zeros", "new", "nothing")
GATES = {"rnn": 1, "relu": 1, "lstm": 4, "gru": 3}


@dataclass(frozen=True)
class Loop:
    """A loop with arrays for its inputs.

    Attributes:
        graph: the loop.
        feeds: by name, NaN and Inf among them.
        found: the op that it is; empty where it may be any or none.
    """

    graph: Graph
    feeds: dict[str, np.ndarray[Any, Any]]
    found: str = ""


def _product(x: Value, w: Value) -> Value:
    op = DotGeneral(lhs_contracting=(x.rank - 1,), rhs_contracting=(0,))
    return cast("Value", op(x, w))


def _split(x: Value, count: int) -> list[Value]:
    size = int(str(x.shape[1])) // count
    return [x.narrow(1, size * i, size) for i in range(count)]


def _sigmoid(x: Value) -> Value:
    return cast("Value", Logistic()(x))


def _cell(kind: str, x: Value, states: Values, w: Value, u: Value) -> list[Value]:
    """The new states of a cell of some kind, the hidden one first."""
    entering, kept = _product(x, w), _product(states[0], u)
    if kind == "lstm":
        i, f, g, o = _split(entering + kept, 4)
        c = _sigmoid(f) * states[1] + _sigmoid(i) * g.tanh()
        return [_sigmoid(o) * c.tanh(), c]
    if kind == "gru":
        (r, z, n), (s, t, m) = _split(entering, 3), _split(kept, 3)
        n = (n + _sigmoid(r + s) * m).tanh()
        z = _sigmoid(z + t)
        return [(1.0 - z) * n + z * states[0]]
    return [(entering + kept).relu() if kind == "relu" else (entering + kept).tanh()]


@st.composite
def loops(draw_one: Any) -> Loop:
    """Cells in a scan, with masks and rows of all sorts."""

    def one_of(items: Any) -> Any:
        return draw_one(st.sampled_from(list(items)))

    kind, rows, masks = one_of(GATES), one_of(ROWS), one_of(MASKS)
    choice, shown = one_of(CHOICES), one_of(SHOWN)
    batch, steps, width, hidden = one_of((1, 2, 3)), one_of((1, 2, 5)), one_of((1, 3)), 2
    reverse, count = draw_one(st.booleans()), 2 if kind == "lstm" else 1
    rng = np.random.default_rng(draw_one(st.integers(0, 2**16)))
    feeds: dict[str, Any] = {
        "x": rng.uniform(-1, 1, (steps, batch, width)).astype(np.float32),
        "w": rng.uniform(-1, 1, (width, GATES[kind] * hidden)).astype(np.float32),
        "u": rng.uniform(-1, 1, (hidden, GATES[kind] * hidden)).astype(np.float32),
        "mask": rng.integers(0, 2, (steps, batch)).astype(bool),
        "lengths": rng.integers(0, steps + 1, batch).astype(np.int32),
    }
    if kind != "gru" and draw_one(st.booleans()):
        place = tuple(int(rng.integers(0, size)) for size in feeds["x"].shape)
        feeds["x"][place] = one_of((np.nan, np.inf, -0.0, 1e4))
    b = GraphBuilder("loop")
    x, w, u, mask, lengths = (b.input(n, TensorType(_dtype(v), v.shape)) for n, v in feeds.items())
    counts = rows != "next" or masks == "lengths"

    def step(consts: Values, carry: Values, now: Values) -> tuple[Values, Values]:
        w, u, lengths, table = consts
        t, old = carry[0], list(carry[len(carry) - count :])
        row = _row(table, t, rows, steps) if rows != "next" else now[0]
        new = _cell(kind, row, old, w, u)
        shape = old[0].shape
        if masks == "none":
            return [*_next(carry, count), *new], [] if shown == "nothing" else [new[0]]
        goes = now[-1]
        if masks == "lengths":
            goes = Compare(direction=Direction.LT)(spread(t, (batch,)), lengths)
        if masks == "inverted":
            goes = Not()(goes)
        pred = spread(cast("Value", goes), shape, 0)
        none = zeros(DType.F32, shape)
        kept = [_select(pred, a, none if choice == "begins anew" else old[i])
                if choice != "first state" or i == 0 else a for i, a in enumerate(new)]  # fmt: skip
        y = {"kept": kept[0], "zeros": _select(pred, new[0], none), "new": new[0]}
        return [*_next(carry, count), *kept], [] if shown == "nothing" else [y[shown]]

    start = [zeros(DType.F32, (batch, hidden))] * count
    numbers = [constant(0, "i32")] if counts else []
    last, ys = scan(step, [*numbers, *start], [x, mask], consts=[w, u, lengths, x],
                    reverse=reverse)  # fmt: skip
    masked = masks != "none"
    plain = not masked or (shown != "new" and (choice == "stays" or (
        choice == "first state" and count == 1)))  # fmt: skip
    known = plain and rows != "every second" and steps > 1
    name = {"relu": "rnn"}.get(kind, kind)
    return Loop(b.build([*last, *ys]), feeds, name if known else "")


def _dtype(array: np.ndarray[Any, Any]) -> DType:
    return {"f": DType.F32, "b": DType.BOOL, "i": DType.I32}[array.dtype.kind]


def _next(carry: Values, count: int) -> list[Value]:
    """The number of the next step, where steps are counted."""
    return [carry[0] + 1] if len(carry) > count else []


def _row(table: Value, t: Value, rows: str, steps: int) -> Value:
    place = {
        "last to first": lambda: constant(steps - 1, "i32") - t,
        "before": lambda: t - 1,
        "after": lambda: t + 1,
        "every second": lambda: t * 2,
    }[rows]()
    others = [constant(0, "i32")] * (table.rank - 1)
    row = DynamicSlice(sizes=(1, *table.shape[1:]))(table, place, *others)
    return cast("Value", Reshape(shape=table.shape[1:])(cast("Value", row)))


def _select(pred: Value, on_true: Value, on_false: Value) -> Value:
    return cast("Value", Select()(pred, on_true, on_false))


@st.composite
def trees(draw_one: Any) -> Loop:
    """A selective scan by products put together in a drawn order, and maybe in a wrong one."""
    steps = draw_one(st.sampled_from((2, 3, 5, 8)))
    wrong = draw_one(st.sampled_from(("", "", "", "turned", "late", "left out")))
    rng = np.random.default_rng(draw_one(st.integers(0, 2**16)))
    shapes = {"x": (2, steps, 3), "delta": (2, steps, 3), "a": (3, 2), "b": (2, steps, 2),
              "c": (2, steps, 2)}  # fmt: skip
    feeds: dict[str, Any] = {n: rng.uniform(-1, 1, s).astype(np.float32) for n, s in shapes.items()}
    if draw_one(st.booleans()):
        feeds["x"][0, int(rng.integers(0, steps)), 1] = np.nan
    g = GraphBuilder("tree")
    x, delta, a, b, c = (g.input(n, TensorType(DType.F32, s)) for n, s in shapes.items())
    shape = (2, steps, 3, 2)
    size = cast("Value", Abs()(delta))
    decay = (spread(size, shape, 0, 1, 2) * spread(-a.exp(), shape, 2, 3)).exp()
    entering = spread(size * x, shape, 0, 1, 2) * spread(b, shape, 0, 1, 3)
    parts = [(decay.narrow(1, t, 1), entering.narrow(1, t, 1)) for t in range(steps)]
    fault = draw_one(st.integers(1, steps - 1)) if wrong else 0

    def joined(first: int, last: int) -> tuple[Value, Value]:
        """Steps first to last as one."""
        if first == last:
            return parts[first]
        middle = draw_one(st.integers(first, last - 1))
        (f, s), (d, e) = joined(first, middle), joined(middle + 1, last)
        if last == fault and wrong == "late":
            return f * d, (s + e) * d
        if last == fault and wrong == "left out":
            return f * d, e * d + s
        if last == fault and wrong == "turned":
            return f * d, s * d + s
        return d * f, d * s + e

    states = [joined(0, t)[1] for t in range(steps)]
    h = cast("Value", Concatenate(axis=1)(*states))
    y = (h * spread(c, shape, 0, 1, 3)).sum(3)
    return Loop(g.build([y]), feeds, "" if wrong else "selective_scan")
