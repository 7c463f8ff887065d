"""Recurrent networks: LSTM, GRU and the plain one, in layers and both directions.

Weights are packed layer by layer, and in a layer first forward, then backward. One large product
gives what all steps add to the gates; only the product with the state is in the loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, final

from rlx.dtypes import DType
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.compare import Select
from rlx.ops.dot import DotGeneral
from rlx.ops.patterns import bind_axes, require_one_float, require_positive
from rlx.ops.sequence.loops import Values, scan, spread, zeros
from rlx.ops.shape import Concatenate, Split
from rlx.ops.transcendental import Logistic
from rlx.types import TensorType

Results: TypeAlias = "TensorType | tuple[TensorType, ...]"
Cell: TypeAlias = "Callable[[Value, Values, Values, Value | None], Values]"
"""(input part of the gates, weights of the state, states, hidden bias) → new states, h first."""


@final
@dataclass(frozen=True)
class _Stack:
    """The layers of a network, and the widths of its packed weights.

    Attributes:
        gates: how many gates there are.
        hidden: units of each.
        layers: how many layers there are.
        directions: 1 or 2.
        apart: how many of the last gates have a matrix of their own in the loop.
    """

    gates: int
    hidden: int
    layers: int
    directions: int
    apart: int = 0

    @property
    def rows(self) -> int:
        """Rows of a weight matrix: all gates."""
        return self.gates * self.hidden

    def packed(self, width: int) -> int:
        """Elements of the packed input weights for inputs of a width."""
        later = (self.layers - 1) * self.directions * self.hidden
        return self.directions * self.rows * (width + later)

    def run(
        self,
        x: Value,
        w_ih: Value,
        w_hh: Value,
        input_bias: Value,
        hidden_bias: Value | None,
        states: Sequence[Value | None],
        cell: Cell,
        mask: Value | None = None,
        shown: int = 1,
    ) -> Value | tuple[Value, ...]:
        """All layers, and the first so many states of all steps of the last one.

        The last states are results only where the first ones are given.
        """
        dtype = x.dtype.compute
        batch = x.shape[0]
        w_ih, w_hh, input_bias = (v.convert(dtype) for v in (w_ih, w_hh, input_bias))
        sequence = x.convert(dtype).transpose(1, 0, 2)
        last: list[list[Value]] = [[] for _ in states]
        offset, count = 0, 2 if self.apart else 1
        along: list[Value] = []
        moves = [] if mask is None else [mask.transpose(1, 0)]
        for layer in range(self.layers):
            width = int(sequence.shape[2])
            size = self.rows * width
            parts: list[list[Value]] = [[] for _ in range(shown)]
            for direction in range(self.directions):
                row = layer * self.directions + direction
                weight = w_ih.narrow(0, offset, size).reshape(self.rows, width)
                offset += size
                gates = _product(sequence, weight)
                gates = gates + spread(_row(input_bias, row), gates.shape, 2)
                weights = self._turned(_row(w_hh, row))
                consts = list(weights)
                if hidden_bias is not None:
                    consts.append(_row(hidden_bias.convert(dtype), row))
                start = [
                    zeros(dtype, (batch, self.hidden)) if s is None else _row(s.convert(dtype), row)
                    for s in states
                ]

                def step(known: Values, carry: Values, now: Values) -> tuple[Values, Values]:
                    bias = known[count] if len(known) > count else None
                    new = cell(now[0], known[:count], carry, bias)
                    for moved in now[1:]:
                        pred = spread(moved, (batch, self.hidden), 0)
                        new = [_select(pred, *pair) for pair in zip(new, carry, strict=True)]
                    return new, new[:shown]

                xs = [gates, *moves]
                carry, made = scan(step, start, xs, consts=consts, reverse=direction == 1)
                for both, value in zip(parts, made, strict=True):
                    both.append(value)
                for all_layers, value in zip(last, carry, strict=True):
                    all_layers.append(value.reshape(1, batch, self.hidden))
            along = [_joined(both, 2) for both in parts]
            sequence = along[0]
        y = [value.transpose(1, 0, 2).convert(x.dtype) for value in along]
        if states[0] is None:
            return y[0] if shown == 1 else tuple(y)
        return (*y, *(_joined(values, 0).convert(x.dtype) for values in last))

    def _turned(self, weight: Value) -> list[Value]:
        """The matrices [H, rows] of a state.

        Turned once: inside the loop nobody does it, and XLA's CPU multiplies by rows of the second
        operand slowly.
        """
        rows = (self.gates - self.apart) * self.hidden, self.apart * self.hidden
        parts = [weight] if not self.apart else list(Split(axis=0, sizes=rows)(weight))
        return [part.transpose(1, 0) for part in parts]


@define_op("lstm")
class Lstm(Op):
    """A long short-term memory network over a batch of sequences.

    i, f, g, o = x_t · W_ihᵀ + h · W_hhᵀ + bias;  c = σ(f) · c + σ(i) · tanh(g);
    h = σ(o) · tanh(c);  y_t = h

    Inputs:
        x: float[B, S, I]
        w_ih: float[P]            matrices [4·H, I], then [4·H, D·H] for further layers, flat, by
            layer, then direction; gates i, f, g, o.
        w_hh: float[L·D, 4·H, H]
        bias: float[L·D, 4·H]     the sum of both biases.
        h0: float[L·D, B, H]      the first hidden states, with carry only; 0 without.
        c0: float[L·D, B, H]      the first cell states, with carry only; 0 without.
        mask: bool[B, S]          where a sequence goes on, with carry only; states stay elsewhere.

    Attributes:
        hidden_size: H.
        num_layers: L.
        bidirectional: whether a second network reads backwards: D is 2, else 1.
        carry: whether states are taken and the last ones returned.
        cells: whether the cell states of all steps are a result, too.

    Result:
        float[B, S, D·H], forward then backward; with cells also c of the last layer at all steps,
        in the same shape; with carry also the last h and c.

    Constraints:
        C1: x, h0 and c0 have the axes above, and I is known.
        C2: w_ih, w_hh and bias have the axes above.
        C3: one floating dtype for all.
        C4: hidden_size and num_layers ≥ 1.
        C5: h0 and c0 are given with carry, and only there.
        C6: mask is bool[B, S].

    Numerics: narrower floats than f32 compute in f32, states included; results rounded once.
    Source: Hochreiter & Schmidhuber 1997; `torch.nn.LSTM`; RLX `Op::Lstm`.
    """

    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    carry: bool = False
    cells: bool = False

    def infer(
        self,
        x: TensorType,
        w_ih: TensorType,
        w_hh: TensorType,
        bias: TensorType,
        h0: TensorType | None = None,
        c0: TensorType | None = None,
        mask: TensorType | None = None,
    ) -> Results:
        biases, states = {"bias": bias}, {"h0": h0, "c0": c0}
        made = _check(self, _stack(self, 4), x, w_ih, w_hh, biases, states, self.carry, mask)
        if not self.cells:
            return made
        return (made, made) if isinstance(made, TensorType) else (made[0], *made)

    def decompose(
        self,
        x: Value,
        w_ih: Value,
        w_hh: Value,
        bias: Value,
        h0: Value | None = None,
        c0: Value | None = None,
        mask: Value | None = None,
    ) -> Value | tuple[Value, ...]:
        def cell(entering: Value, weights: Values, states: Values, _: Value | None) -> Values:
            kept = _product(states[0], weights[0], axis=0)
            i, f, g, o = _split(entering + kept, self.hidden_size)
            c = _sigmoid(f) * states[1] + _sigmoid(i) * g.tanh()
            return [_sigmoid(o) * c.tanh(), c]

        shown = 2 if self.cells else 1
        return _stack(self, 4).run(x, w_ih, w_hh, bias, None, [h0, c0], cell, mask, shown)


@define_op("gru")
class Gru(Op):
    """A gated recurrent unit network over a batch of sequences.

    r, z = σ(x_t · W_ihᵀ + b_ih + h · W_hhᵀ + b_hh);
    n = tanh(x_t · W_inᵀ + b_in + r · (h · W_hnᵀ + b_hn));  h = (1 − z) · n + z · h;  y_t = h

    Without reset_after n = tanh(x_t · W_inᵀ + b_in + (r · h) · W_hnᵀ + b_hn).

    Inputs:
        x: float[B, S, I]
        w_ih: float[P]            matrices [3·H, I], then [3·H, D·H] for further layers, flat, by
            layer, then direction; gates r, z, n.
        w_hh: float[L·D, 3·H, H]
        b_ih: float[L·D, 3·H]
        b_hh: float[L·D, 3·H]     of n: added before the reset gate, with reset_after.
        h0: float[L·D, B, H]      the first states, with carry only; 0 without.
        mask: bool[B, S]          where a sequence goes on, with carry only; states stay elsewhere.

    Attributes:
        hidden_size: H.
        num_layers: L.
        bidirectional: whether a second network reads backwards: D is 2, else 1.
        carry: whether states are taken and the last ones returned.
        reset_after: whether the reset gate multiplies the product with the state, as torch has it
            (ONNX: `linear_before_reset`); else the state before its product, as haiku has it.

    Result:
        float[B, S, D·H], forward then backward; with carry also the last h.

    Constraints:
        C1: x and h0 have the axes above, and I is known.
        C2: w_ih, w_hh, b_ih and b_hh have the axes above.
        C3: one floating dtype for all.
        C4: hidden_size and num_layers ≥ 1.
        C5: h0 is given with carry, and only there.
        C6: mask is bool[B, S].

    Numerics: narrower floats than f32 compute in f32, states included; results rounded once.
    Source: Cho et al. 2014, arXiv:1406.1078; `torch.nn.GRU`; RLX `Op::Gru`.
    """

    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    carry: bool = False
    reset_after: bool = True

    def infer(
        self,
        x: TensorType,
        w_ih: TensorType,
        w_hh: TensorType,
        b_ih: TensorType,
        b_hh: TensorType,
        h0: TensorType | None = None,
        mask: TensorType | None = None,
    ) -> Results:
        biases = {"b_ih": b_ih, "b_hh": b_hh}
        return _check(self, _stack(self, 3), x, w_ih, w_hh, biases, {"h0": h0}, self.carry, mask)

    def decompose(
        self,
        x: Value,
        w_ih: Value,
        w_hh: Value,
        b_ih: Value,
        b_hh: Value,
        h0: Value | None = None,
        mask: Value | None = None,
    ) -> Value | tuple[Value, ...]:
        hidden = self.hidden_size

        def cell(entering: Value, weights: Values, states: Values, bias: Value | None) -> Values:
            assert bias is not None
            (h,) = states
            x_r, x_z, x_n = _split(entering, hidden)
            kept = _product(h, weights[0], axis=0)
            if self.reset_after:
                h_r, h_z, h_n = _split(kept + spread(bias, kept.shape, 1), hidden)
                n = (x_n + _sigmoid(x_r + h_r) * h_n).tanh()
            else:
                early = spread(bias.narrow(0, 0, 2 * hidden), kept.shape, 1)
                h_r, h_z = _split(kept + early, hidden)
                h_n = _product(_sigmoid(x_r + h_r) * h, weights[1], axis=0)
                n = (x_n + (h_n + spread(bias.narrow(0, 2 * hidden, hidden), h_n.shape, 1))).tanh()
            z = _sigmoid(x_z + h_z)
            return [(1.0 - z) * n + z * h]

        stack = dataclasses.replace(_stack(self, 3), apart=0 if self.reset_after else 1)
        return stack.run(x, w_ih, w_hh, b_ih, b_hh, [h0], cell, mask)


@define_op("rnn")
class Rnn(Op):
    """A plain recurrent network over a batch of sequences.

    h = tanh(x_t · W_ihᵀ + h · W_hhᵀ + bias);  y_t = h

    Inputs:
        x: float[B, S, I]
        w_ih: float[P]          matrices [H, I], then [H, D·H] for further layers, flat, by layer,
            then direction.
        w_hh: float[L·D, H, H]
        bias: float[L·D, H]     the sum of both biases.
        h0: float[L·D, B, H]    the first states, with carry only; 0 without.
        mask: bool[B, S]        where a sequence goes on, with carry only; states stay elsewhere.

    Attributes:
        hidden_size: H.
        num_layers: L.
        bidirectional: whether a second network reads backwards: D is 2, else 1.
        carry: whether states are taken and the last ones returned.
        relu: max(·, 0) in place of tanh.

    Result:
        float[B, S, D·H], forward then backward; with carry also the last h.

    Constraints:
        C1: x and h0 have the axes above, and I is known.
        C2: w_ih, w_hh and bias have the axes above.
        C3: one floating dtype for all.
        C4: hidden_size and num_layers ≥ 1.
        C5: h0 is given with carry, and only there.
        C6: mask is bool[B, S].

    Numerics: narrower floats than f32 compute in f32, states included; results rounded once.
    Source: Elman 1990; `torch.nn.RNN`; RLX `Op::Rnn`.
    """

    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    carry: bool = False
    relu: bool = False

    def infer(
        self,
        x: TensorType,
        w_ih: TensorType,
        w_hh: TensorType,
        bias: TensorType,
        h0: TensorType | None = None,
        mask: TensorType | None = None,
    ) -> Results:
        biases, states = {"bias": bias}, {"h0": h0}
        return _check(self, _stack(self, 1), x, w_ih, w_hh, biases, states, self.carry, mask)

    def decompose(
        self,
        x: Value,
        w_ih: Value,
        w_hh: Value,
        bias: Value,
        h0: Value | None = None,
        mask: Value | None = None,
    ) -> Value | tuple[Value, ...]:
        def cell(entering: Value, weights: Values, states: Values, _: Value | None) -> Values:
            total = entering + _product(states[0], weights[0], axis=0)
            return [total.relu() if self.relu else total.tanh()]

        return _stack(self, 1).run(x, w_ih, w_hh, bias, None, [h0], cell, mask)


def _check(
    op: Op,
    stack: _Stack,
    x: TensorType,
    w_ih: TensorType,
    w_hh: TensorType,
    biases: dict[str, TensorType],
    states: dict[str, TensorType | None],
    carry: bool,
    mask: TensorType | None,
) -> Results:
    """Check C1 to C6, and return the result types."""
    require_positive(op, "C4", hidden_size=stack.hidden, num_layers=stack.layers)
    given = {name: t for name, t in states.items() if t is not None}
    op.require(
        "C5",
        len(given) == (len(states) if carry else 0),
        f"{', '.join(states)} are required with carry, and only there; got "
        f"{', '.join(given) or 'none'} with carry={carry}. Pass them, or change the attribute.",
    )
    op.require(
        "C1",
        x.rank == 3 and isinstance(x.shape[-1], int),
        f"x is required to be [B, S, I] with a known I; got {x}. Reshape it.",
    )
    known = {"L·D": stack.layers * stack.directions, "G·H": stack.rows, "H": stack.hidden}
    width = int(x.shape[2])
    sizes = bind_axes(
        op, "C1", known, x=(x, "B S I"), **{n: (t, "L·D B H") for n, t in given.items()}
    )
    bind_axes(
        op,
        "C2",
        {**known, "P": stack.packed(width)},
        w_ih=(w_ih, "P"),
        w_hh=(w_hh, "L·D G·H H"),
        **{n: (t, "L·D G·H") for n, t in biases.items()},
    )
    require_one_float(op, "C3", x=x, w_ih=w_ih, w_hh=w_hh, **biases, **given)
    if mask is not None:
        op.require(
            "C6",
            mask.rank == 2 and mask.dtype is DType.BOOL,
            f"mask is required to be bool[B, S]; got {mask}. Convert or reshape it.",
        )
        bind_axes(op, "C6", {"B": sizes["B"], "S": sizes["S"]}, mask=(mask, "B S"))
    y = x.with_shape((sizes["B"], sizes["S"], stack.directions * stack.hidden))
    return (y, *given.values()) if carry else y


def _stack(op: Any, gates: int) -> _Stack:
    return _Stack(gates, op.hidden_size, op.num_layers, 2 if op.bidirectional else 1)


def _product(x: Value, weight: Value, axis: int = 1) -> Value:
    """Sums over the last axis of x and an axis of a weight."""
    return DotGeneral(
        lhs_contracting=(x.rank - 1,), rhs_contracting=(axis,), lhs_batch=(), rhs_batch=()
    )(x, weight)


def _row(x: Value, row: int) -> Value:
    return x.narrow(0, row, 1).reshape(*x.shape[1:])


def _split(x: Value, size: int) -> list[Value]:
    count = int(x.shape[1]) // size
    return [x.narrow(1, i * size, size) for i in range(count)]


def _select(pred: Value, on_true: Value, on_false: Value) -> Value:
    return cast("Value", Select()(pred, on_true, on_false))


def _sigmoid(x: Value) -> Value:
    return Logistic()(x)


def _joined(values: Sequence[Value], axis: int) -> Value:
    return values[0] if len(values) == 1 else Concatenate(axis=axis)(*values)
