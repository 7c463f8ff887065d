"""Samples of calls, choices and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Op
from rlx.ops.arithmetic import Add
from rlx.ops.control_flow import Call, CallKind, Cond, PlatformIndex, Scan, While
from rlx.ops.effect import CreateToken
from rlx.ops.io import Input, Param
from rlx.types import as_type
from tests.samples.base import ErrorSample, Sample, SymbolicSample, draw

DTYPES = (DType.F32, DType.BF16, DType.I32)


def graph(
    types: Sequence[str], fn: Callable[..., Any], *, name: str = "body", effects: int = 0
) -> Graph:
    """A graph of a Python function on values."""
    leaves = [
        Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)()
        for i, t in enumerate(map(as_type, types))
    ]
    made = fn(*leaves)
    outputs = (made,) if isinstance(made, Value) else tuple(made)
    return Graph(leaves, (), outputs, [CreateToken()() for _ in range(effects)], name=name)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in DTYPES:
        for size in (0, 1, 63):
            yield from _calls(rng, dtype, size)
            yield from _whiles(rng, dtype, size)
        for length in (0, 1, 2, 7):
            for reverse in (False, True):
                for unroll in (1, 3, 10):
                    yield _scan(rng, dtype, length, reverse, unroll)
    yield Sample(_nothing(), (), "nothing carried")
    for groups in ((("cpu",),), (("tpu",), ("gpu",), ()), (("cuda", "rocm"), ("tpu", "cpu"))):
        yield Sample(PlatformIndex(platforms=groups), (), f"{groups}")


def _calls(rng: np.random.Generator, dtype: DType, size: int) -> Iterator[Sample]:
    type_ = f"{dtype}[{size}]"
    x, y = (draw(rng, dtype, (size,)) for _ in range(2))
    body = graph((type_, type_), lambda a, b: (a + b, a * b, a))
    for kind in CallKind:
        yield Sample(Call(body=body, name="f", kind=kind), (x, y), f"{type_} {kind.value}")
    branches = tuple(
        graph((type_, type_), fn) for fn in (lambda a, b: a + b, lambda a, b: a * b, lambda a, b: b)
    )
    for index in (-3, 0, 1, 2, 5):
        given = np.asarray(index, np.int32)
        yield Sample(Cond(branches=branches), (given, x, y), f"{type_} index {index}")
    yield Sample(Cond(branches=branches[:1]), (np.asarray(4, np.int32), x, y), "one branch")
    for truth in (False, True):
        yield Sample(Cond(branches=branches[:2]), (np.asarray(truth), x, y), f"{type_} {truth}")


def _whiles(rng: np.random.Generator, dtype: DType, size: int) -> Iterator[Sample]:
    type_ = f"{dtype}[{size}]"
    loop = While(
        cond=graph(("i32[]", "i32[]", type_), lambda limit, i, x: i < limit),
        body=graph((type_, "i32[]", type_), lambda step, i, x: (i + 1, x + step)),
        cond_consts=1,
        body_consts=1,
    )
    step, start = (draw(rng, dtype, (size,)) for _ in range(2))
    for turns in (0, 1, 5):
        limit, zero = np.asarray(turns, np.int32), np.asarray(0, np.int32)
        yield Sample(loop, (limit, step, zero, start), f"{type_} {turns} turns")


def _nothing() -> While:
    return While(cond=graph((), lambda: Add()(*[_false()] * 2)), body=graph((), lambda: ()))


def _false() -> Value:
    from rlx.ir.operators import constant

    return constant(False)


def _scan(
    rng: np.random.Generator, dtype: DType, length: int, reverse: bool, unroll: int
) -> Sample:
    small = f"{dtype}[3]"
    body = graph(
        (small, "i32[]", small, small, f"{dtype}[]", f"{dtype}[0]"),
        lambda c, i, s, x, z, e: (i + 1, s + x, s * c, z, i, e),
    )
    op = Scan(body=body, length=length, reverse=reverse, num_consts=1, num_carry=2, unroll=unroll)
    arrays = (
        draw(rng, dtype, (3,)),
        np.asarray(0, np.int32),
        draw(rng, dtype, (3,)),
        draw(rng, dtype, (length, 3)),
        draw(rng, dtype, (length,)),
        draw(rng, dtype, (length, 0)),
    )
    return Sample(op, arrays, f"{dtype} length {length} reverse {reverse} unroll {unroll}")


def _with_param() -> Graph:
    x = Input(name="x", dtype=DType.F32, shape=())()
    w = Param(name="w", dtype=DType.F32, shape=())()
    return Graph((x,), (w,), (x + w,))


def error_samples() -> Iterator[ErrorSample]:
    f32, two = "f32[]", ("f32[]", "f32[]")
    same = graph((f32,), lambda x: x)
    adds = graph(two, lambda x, y: x + y)
    yield ErrorSample(lambda: PlatformIndex(platforms=()), (), ShapeError, "C1", "got ()")
    bad = (("cpu",), (), ("tpu",))
    yield ErrorSample(lambda: PlatformIndex(platforms=bad), (), ShapeError, "C1", "only the last")
    yield from _call_errors(same)
    yield from _cond_errors(same, adds)
    yield from _while_errors(same)
    yield from _scan_errors(adds)


def _call_errors(same: Graph) -> Iterator[ErrorSample]:
    yield ErrorSample(
        lambda: Call(body=same), ("f32[]", "f32[]"), ShapeError, "C1", "(f32[], f32[])"
    )
    yield ErrorSample(lambda: Call(body=_with_param()), ("f32[]",), ShapeError, "C1", "'w'")
    yield ErrorSample(lambda: Call(body=same), ("f32[2]",), ShapeError, "C2", "f32[2]")
    yield ErrorSample(lambda: Call(body=same), ("f16[]",), DTypeError, "C2", "f16[]")
    symbolic = graph(("f32[b]",), lambda x: x)
    yield ErrorSample(
        lambda: Call(body=symbolic), ("f32[s]",), InconclusiveDimError, "C2", "f32[s]"
    )


def _cond_errors(same: Graph, adds: Graph) -> Iterator[ErrorSample]:
    def cond(*branches: Graph) -> Callable[[], Op]:
        return lambda: Cond(branches=branches)

    yield ErrorSample(cond(same), ("f32[]", "f32[]"), ShapeError, "C1", "f32[]")
    yield ErrorSample(cond(same), ("i32[1]", "f32[]"), ShapeError, "C1", "i32[1]")
    yield ErrorSample(cond(), ("i32[]",), ShapeError, "C2", "got 0")
    yield ErrorSample(cond(same, same, same), ("bool[]", "f32[]"), ShapeError, "C2", "got 3")
    yield ErrorSample(cond(same, adds), ("i32[]", "f32[]"), ShapeError, "C3", "branches[1]")
    yield ErrorSample(cond(same), ("i32[]", "f32[3]"), ShapeError, "C4", "operands[0]: f32[3]")
    half = graph(("f32[]",), lambda x: x.convert(DType.F16))
    yield ErrorSample(cond(same, half), ("i32[]", "f32[]"), DTypeError, "C5", "branches[1]")
    pair = graph(("f32[]",), lambda x: (x, x))
    yield ErrorSample(cond(same, pair), ("i32[]", "f32[]"), ShapeError, "C5", "(f32[], f32[])")


def _while_errors(same: Graph) -> Iterator[ErrorSample]:
    small = graph(("f32[]",), lambda x: x < 1.0)

    def loop(cond: Graph, body: Graph, **counts: int) -> Callable[[], Op]:
        return lambda: While(cond=cond, body=body, **counts)

    one = ("f32[]",)
    yield ErrorSample(loop(small, same, body_consts=2), one, ShapeError, "C1", "at most 1")
    yield ErrorSample(loop(small, same, cond_consts=-1), one, ShapeError, "C1", "got -1")
    yield ErrorSample(loop(small, same), ("f32[2]",), ShapeError, "C2", "carry[0]: f32[2]")
    noisy = graph(("f32[]",), lambda x: x < 1.0, effects=1)
    yield ErrorSample(loop(noisy, same), one, ShapeError, "C2", "no effects")
    yield ErrorSample(loop(same, same), one, ShapeError, "C3", "returns (f32[])")
    wide = graph(("f32[]", "f32[]"), lambda x, y: x)
    yield ErrorSample(loop(small, wide), one, ShapeError, "C4", "body is required")
    grown = graph(("f32[]",), lambda x: x.reshape(1))
    yield ErrorSample(loop(small, grown), one, ShapeError, "C5", "carry[0] f32[] -> f32[1]")
    double = graph(("f32[]",), lambda x: x.convert(DType.F64))
    yield ErrorSample(loop(small, double), one, DTypeError, "C5", "carry[0] f32[] -> f64[]")
    none = graph(("f32[]",), lambda x: ())
    yield ErrorSample(loop(small, none), one, ShapeError, "C5", "returns ()")


def _scan_errors(adds: Graph) -> Iterator[ErrorSample]:
    def scan(body: Graph, **attributes: Any) -> Callable[[], Op]:
        return lambda: Scan(**{"body": body, "length": 3, "num_carry": 1, **attributes})

    good = ("f32[]", "f32[3]")
    yield ErrorSample(scan(adds, num_carry=3), good, ShapeError, "C1", "num_carry=3")
    yield ErrorSample(scan(adds, unroll=0), good, ShapeError, "C1", "unroll=0")
    yield ErrorSample(scan(adds, length=-1), good, ShapeError, "C1", "length=-1")
    yield ErrorSample(scan(adds), ("f32[]", "f32[4]"), ShapeError, "C2", "xs[0]")
    yield ErrorSample(scan(adds), ("f32[]", "f32[]"), ShapeError, "C2", "got f32[]")
    yield ErrorSample(scan(adds), ("f32[]", "f32[b]"), InconclusiveDimError, "C2", "f32[b]")
    yield ErrorSample(scan(adds), ("f32[]", "f32[3, 2]"), ShapeError, "C3", "slice of xs[0]")
    grown = graph(("f32[]", "f32[]"), lambda c, x: (c + x).reshape(1))
    yield ErrorSample(scan(grown), good, ShapeError, "C4", "carry[0] f32[] -> f32[1]")
    half = graph(("f32[]", "f32[]"), lambda c, x: c.convert(DType.F16))
    yield ErrorSample(scan(half), good, DTypeError, "C4", "carry[0] f32[] -> f16[]")


def symbolic_samples() -> Iterator[SymbolicSample]:
    two = ("f32[b, 4]", "f32[b, 4]")
    adds = graph(two, lambda x, y: x + y)
    yield SymbolicSample(Call(body=adds), two, {"b": 3})
    swap = graph(two, lambda x, y: y)
    yield SymbolicSample(Cond(branches=(adds, swap)), ("bool[]", *two), {"b": 3})
    yield SymbolicSample(
        While(cond=graph(("f32[b, 4]",), lambda x: _false()), body=graph(two[:1], lambda x: x)),
        two[:1],
        {"b": 3},
    )
    from rlx import dims

    body = graph(("f32[4]", "f32[4]"), lambda c, x: (c + x, c))
    yield SymbolicSample(
        Scan(body=body, length=dims.symbol("b"), num_carry=1), ("f32[4]", "f32[b, 4]"), {"b": 3}
    )
