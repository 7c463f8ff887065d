"""Samples of sequence models: lengths from 0, layers, directions, carried states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ir.op import Op
from rlx.ops.sequence import GatedDeltaNet, Gru, Lstm, Mamba2, Rnn, SelectiveScan
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw

LENGTHS = (0, 1, 7, 65)
GATES: dict[type[Op], int] = {Lstm: 4, Gru: 3, Rnn: 1}


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        for length in LENGTHS:
            label = f"{dtype} length {length}"
            shapes = ((2, length, 3), (2, length, 3), (3, 5), (2, length, 5), (2, length, 5))
            x, delta, a, b, c = (draw(rng, dtype, s, low=-1.0, high=1.0) for s in shapes)
            yield Sample(SelectiveScan(state_size=5), (x, abs(delta), -abs(a), b, c), label)
            shapes = ((1, length, 2, 3), (1, length, 2), (2,), (1, length, 2, 5))
            x, dt, a, b = (draw(rng, dtype, s, low=-1.0, high=1.0) for s in shapes)
            c = draw(rng, dtype, b.shape, low=-1.0, high=1.0)
            yield Sample(Mamba2(head_dim=3, state_size=5), (x, abs(dt), -abs(a), b, c), label)
            for per_channel in (False, True):
                yield _delta(rng, dtype, length, per_channel)
            if length == 65 and dtype is not DType.F32:
                continue
            for kind in (Lstm, Gru, Rnn):
                yield _recurrent(rng, kind, dtype, (2, length, 3), hidden_size=4)
                op = {"hidden_size": 3, "num_layers": 2, "bidirectional": True, "carry": True}
                yield _recurrent(rng, kind, dtype, (1, length, 5), **op)
            yield _recurrent(rng, Gru, dtype, (2, length, 3), hidden_size=4, reset_after=False)
    for kind in (Lstm, Gru, Rnn):
        op = {"hidden_size": 3, "num_layers": 2, "bidirectional": True, "carry": True}
        yield _recurrent(rng, kind, DType.F32, (3, 6, 2), masked=True, **op)
        yield _recurrent(rng, kind, DType.BF16, (2, 4, 3), masked=True, hidden_size=4, carry=True)
    yield _recurrent(rng, Rnn, DType.F32, (3, 5, 1), hidden_size=1, relu=True, num_layers=3)
    yield _recurrent(rng, Gru, DType.F32, (0, 3, 2), hidden_size=2, carry=True)
    op = {"hidden_size": 3, "num_layers": 2, "bidirectional": True, "carry": True}
    yield _recurrent(rng, Gru, DType.F32, (1, 6, 5), **op, reset_after=False)
    yield _recurrent(rng, Lstm, DType.F32, (2, 3, 0), hidden_size=2)
    yield _recurrent(rng, Lstm, DType.F32, (3, 6, 2), masked=True, **op, cells=True)
    yield _recurrent(rng, Lstm, DType.BF16, (2, 5, 3), hidden_size=4, cells=True)


def _delta(rng: np.random.Generator, dtype: DType, length: int, per_channel: bool) -> Sample:
    tokens = (2, length, 2, 4)
    q, k, v, g = (draw(rng, dtype, tokens, low=-1.0, high=1.0) for _ in range(4))
    beta = draw(rng, dtype, tokens[:3], low=0.0, high=1.0)
    k = (k.astype(np.float64) / 2).astype(k.dtype)
    g = -abs(g if per_channel else g[..., 0])
    carry = length % 2 == 1
    op = GatedDeltaNet(state_size=4, carry_state=carry, gate_per_channel=per_channel)
    state = [draw(rng, dtype, (2, 2, 4, 4), low=-1.0, high=1.0)] if carry else []
    return Sample(op, (q, k, v, g, beta, *state), f"{dtype} length {length} {per_channel}")


def _recurrent(
    rng: np.random.Generator,
    kind: type[Op],
    dtype: DType,
    shape: tuple[int, int, int],
    masked: bool = False,
    **attributes: Any,
) -> Sample:
    op = kind(**attributes)
    hidden, layers = attributes["hidden_size"], attributes.get("num_layers", 1)
    ways = 2 if attributes.get("bidirectional") else 1
    rows, stacked = GATES[kind] * hidden, layers * ways
    packed = ways * rows * (shape[2] + (layers - 1) * ways * hidden)
    shapes: list[tuple[int, ...]] = [shape, (packed,), (stacked, rows, hidden), (stacked, rows)]
    if kind is Gru:
        shapes.append((stacked, rows))
    if attributes.get("carry"):
        shapes += [(stacked, shape[0], hidden)] * (2 if kind is Lstm else 1)
    # Weights below one keep the network contracting, so that roundings do not grow with steps.
    arrays = tuple(draw(rng, dtype, s, low=-0.5, high=0.5) for s in shapes)
    masks = (rng.integers(0, 2, shape[:2]).astype(bool),) if masked else ()
    return Sample(op, (*arrays, *masks), f"{dtype} {shape} {attributes}{' masked' * masked}")


def error_samples() -> Iterator[ErrorSample]:
    scanned = ("f32[1, 4, 3]", "f32[1, 4, 3]", "f32[3, 2]", "f32[1, 4, 2]", "f32[1, 4, 2]")
    scan = _make(SelectiveScan, state_size=2)
    wrong = (*scanned[:2], "f32[4, 2]", *scanned[3:])
    yield ErrorSample(scan, wrong, ShapeError, "C1", "H = 3")
    yield ErrorSample(_make(SelectiveScan, state_size=3), scanned, ShapeError, "C1", "N = 3")
    yield ErrorSample(scan, ("f32[4, 3]", *scanned[1:]), ShapeError, "C1", "[B, S, H]")
    symbolic = (scanned[0], "f32[1, s, 3]", *scanned[2:])
    yield ErrorSample(scan, symbolic, InconclusiveDimError, "C1", "delta")
    yield ErrorSample(scan, (*scanned[:4], "f16[1, 4, 2]"), DTypeError, "C2", "c: f16")
    yield ErrorSample(_make(SelectiveScan, state_size=0), scanned, ShapeError, "C3", "state_size")
    heads = ("f32[1, 4, 2, 3]", "f32[1, 4, 2]", "f32[2]", "f32[1, 4, 2, 5]", "f32[1, 4, 2, 5]")
    mamba = _make(Mamba2, head_dim=3, state_size=5)
    yield ErrorSample(mamba, (*heads[:2], "f32[3]", *heads[3:]), ShapeError, "C1", "H = 2")
    yield ErrorSample(mamba, (*heads[:2], "f64[2]", *heads[3:]), DTypeError, "C2", "a: f64")
    none = _make(Mamba2, head_dim=0, state_size=5)
    yield ErrorSample(none, heads, ShapeError, "C3", "head_dim")
    yield from _delta_errors()
    for kind in (Lstm, Gru, Rnn):
        yield from _recurrent_errors(kind)


def _delta_errors() -> Iterator[ErrorSample]:
    token, gate, state = "f32[1, 4, 2, 3]", "f32[1, 4, 2]", "f32[1, 2, 3, 3]"
    good = (token, token, token, gate, gate)
    delta = _make(GatedDeltaNet, state_size=3)
    carried = _make(GatedDeltaNet, state_size=3, carry_state=True)
    yield ErrorSample(delta, (token, "f32[1, 4, 2, 4]", *good[2:]), ShapeError, "C1", "k is")
    channels = _make(GatedDeltaNet, state_size=3, gate_per_channel=True)
    yield ErrorSample(channels, good, ShapeError, "C1", "g is")
    yield ErrorSample(carried, (*good, "f32[1, 2, 3, 4]"), ShapeError, "C1", "state is")
    yield ErrorSample(delta, (*good[:4], "bf16[1, 4, 2]"), DTypeError, "C2", "beta: bf16")
    yield ErrorSample(_make(GatedDeltaNet, state_size=0), good, ShapeError, "C3", "got 0")
    yield ErrorSample(delta, (*good, state), ShapeError, "C4", "carry_state=False")
    yield ErrorSample(carried, good, ShapeError, "C4", "got none")


def _recurrent_errors(kind: type[Op]) -> Iterator[ErrorSample]:
    rows = GATES[kind] * 2
    biases = [f"f32[1, {rows}]"] * (2 if kind is Gru else 1)
    good = ("f32[1, 4, 3]", f"f32[{rows * 3}]", f"f32[1, {rows}, 2]", *biases)
    states = ["f32[1, 1, 2]"] * (2 if kind is Lstm else 1)
    op, carried = _make(kind, hidden_size=2), _make(kind, hidden_size=2, carry=True)
    yield ErrorSample(op, ("f32[4, 3]", *good[1:]), ShapeError, "C1", "[B, S, I]")
    yield ErrorSample(op, ("f32[1, 4, i]", *good[1:]), ShapeError, "C1", "known I")
    wrong = ["f32[1, 3, 2]", *states[1:]]
    yield ErrorSample(carried, (*good, *wrong), ShapeError, "C1", "h0")
    yield ErrorSample(op, (good[0], "f32[5]", *good[2:]), ShapeError, "C2", f"P = {rows * 3}")
    yield ErrorSample(op, (*good[:2], f"f32[2, {rows}, 2]", *biases), ShapeError, "C2", "w_hh")
    last = f"f32[1, {rows + 1}]"
    yield ErrorSample(op, (*good[:-1], last), ShapeError, "C2", f"G·H = {rows}")
    yield ErrorSample(op, (*good[:-1], f"f16[1, {rows}]"), DTypeError, "C3", "f16")
    yield ErrorSample(_make(kind, hidden_size=0), good, ShapeError, "C4", "hidden_size")
    none = _make(kind, hidden_size=2, num_layers=0)
    yield ErrorSample(none, good, ShapeError, "C4", "num_layers")
    yield ErrorSample(op, (*good, *states), ShapeError, "C5", "carry=False")
    yield ErrorSample(carried, good, ShapeError, "C5", "got none")
    whole = (*good, *states)
    yield ErrorSample(carried, (*whole, "f32[1, 4]"), ShapeError, "C6", "got f32[1, 4]. Convert")
    yield ErrorSample(carried, (*whole, "bool[4]"), ShapeError, "C6", "got bool[4]. Convert")
    yield ErrorSample(
        carried, (*whole, "bool[1, 5]"), ShapeError, "C6", "mask is required to have the axes"
    )


def symbolic_samples() -> Iterator[SymbolicSample]:
    binding = {"b": 2, "s": 3}
    tokens = ("f32[b, s, 3]", "f32[b, s, 3]", "f32[3, 2]", "f32[b, s, 2]", "f32[b, s, 2]")
    yield SymbolicSample(SelectiveScan(state_size=2), tokens, binding)
    heads = ("f32[b, s, 2, 3]", "f32[b, s, 2]", "f32[2]", "f32[b, s, 2, 5]", "f32[b, s, 2, 5]")
    yield SymbolicSample(Mamba2(head_dim=3, state_size=5), heads, binding)
    token, gate = "bf16[b, s, h, 3]", "bf16[b, s, h]"
    op = GatedDeltaNet(state_size=3, carry_state=True)
    types = (token, token, token, gate, gate, "bf16[b, h, 3, 3]")
    yield SymbolicSample(op, types, {**binding, "h": 2})
    for kind, gates in GATES.items():
        rows = gates * 2
        biases = [f"f32[2, {rows}]"] * (2 if kind is Gru else 1)
        states = ["f32[2, b, 2]"] * (2 if kind is Lstm else 1)
        op = _make(kind, hidden_size=2, bidirectional=True, carry=True)()
        types = ("f32[b, s, 3]", f"f32[{2 * rows * 3}]", f"f32[2, {rows}, 2]", *biases, *states)
        yield SymbolicSample(op, types, binding)
        yield SymbolicSample(op, (*types, "bool[b, s]"), binding)
        if kind is Lstm:
            yield SymbolicSample(op.replace(cells=True), types, binding)


def _make(op: type[Op], **attributes: Any) -> Callable[[], Op]:
    return lambda: op(**attributes)
