"""Samples for the kernels of recurrences: sizes about every tile, and decays that vanish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ir.op import Op
from rlx.ops.sequence import GatedDeltaNet, Gru, Lstm, Rnn, SelectiveScan
from rlx.tolerances import Tolerance
from tests.samples.base import Sample, draw

DTYPES = (DType.F32, DType.BF16, DType.F16, DType.F64)
GATES: dict[type[Op], int] = {Lstm: 4, Gru: 3, Rnn: 1}
# Roundings of each step stay in the state for as long as it does.
LONG = Tolerance(1e-5, 1e-4)


def selective_scan(rng: np.random.Generator) -> Iterator[Sample]:
    """Samples of the selective scan: batch, steps, channels, states."""
    for number, (batch, steps, width, states) in enumerate(
        ((1, 2, 1, 1), (2, 7, 63, 3), (1, 65, 64, 16), (1, 9, 65, 5), (0, 4, 3, 2), (1, 1000, 7, 4))
    ):
        for dtype in (DType.F32, DTYPES[1 + number % 3]):
            shapes = ((batch, steps, width),) * 2 + ((width, states),)
            x, delta, a = (draw(rng, dtype, s, low=-1.0, high=1.0) for s in shapes)
            b, c = (draw(rng, dtype, (batch, steps, states), low=-1.0, high=1.0) for _ in "bc")
            label = f"{dtype} {batch}x{steps}x{width}x{states}"
            bound = LONG if dtype is DType.F32 else None
            op = SelectiveScan(state_size=states)
            yield Sample(op, (x, abs(delta), -abs(a), b, c), label, tolerance=bound)
    x, delta, b = (draw(rng, DType.F32, (1, 6, 4), special=True) for _ in range(3))
    a = draw(rng, DType.F32, (4, 4), low=-90.0, high=-80.0)
    yield Sample(SelectiveScan(state_size=4), (x, abs(delta), a, b, b), "extremes", tolerance=LONG)


def gated_delta_net(rng: np.random.Generator) -> Iterator[Sample]:
    """Samples of the delta rule: batch, steps, heads, size."""
    for number, (batch, steps, heads, size) in enumerate(
        ((1, 1, 1, 1), (2, 7, 3, 31), (1, 9, 2, 33), (1, 65, 1, 64), (1, 3, 2, 130))
    ):
        for dtype in (DType.F32, DTYPES[1 + number % 3]):
            tokens = (batch, steps, heads, size)
            q, k, v, g = (draw(rng, dtype, tokens, low=-1.0, high=1.0) for _ in range(4))
            k = (k.astype(np.float64) / size**0.5).astype(k.dtype)
            beta = draw(rng, dtype, tokens[:3], low=0.0, high=1.0)
            per_channel, carry = number % 2 == 1, number % 3 != 0
            state = [draw(rng, dtype, (batch, heads, size, size), low=-1.0, high=1.0)] * carry
            op = GatedDeltaNet(state_size=size, carry_state=carry, gate_per_channel=per_channel)
            gate = -abs(g if per_channel else g[..., 0])
            # Results near zero are sums of `size` terms of about one.
            bound = {DType.F32: LONG, DType.BF16: Tolerance(3e-2, 1.6e-2)}.get(dtype)
            label = f"{dtype} {tokens}"
            yield Sample(op, (q, k, v, gate, beta, *state), label, tolerance=bound)


def network(kind: type[Op]) -> Callable[[np.random.Generator], Iterator[Sample]]:
    """Samples of a network: batch, steps, inputs, units."""

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for number, (batch, steps, width, hidden) in enumerate(
            ((1, 4, 1, 1), (9, 7, 5, 15), (1, 33, 63, 64), (17, 5, 16, 17), (3, 100, 2, 65))
        ):
            for dtype in (DType.F32, DTYPES[1 + number % 3]):
                layers, ways = 1 + number % 3, 1 + number % 2
                carry = number % 2 == 0
                attributes: dict[str, Any] = {
                    "hidden_size": hidden,
                    "num_layers": layers,
                    "bidirectional": ways == 2,
                    "carry": carry,
                }
                if kind is Rnn:
                    attributes["relu"] = number % 2 == 1
                if kind is Gru:
                    attributes["reset_after"] = (number + dtype.bits // 32) % 2 == 0
                rows, stacked = GATES[kind] * hidden, layers * ways
                packed = ways * rows * (width + (layers - 1) * ways * hidden)
                shapes = [(batch, steps, width), (packed,), (stacked, rows, hidden)]
                shapes += [(stacked, rows)] * (2 if kind is Gru else 1)
                shapes += [(stacked, batch, hidden)] * ((2 if kind is Lstm else 1) * carry)
                bound = 1.0 / max(hidden, 1) ** 0.5
                arrays = tuple(draw(rng, dtype, s, low=-bound, high=bound) for s in shapes)
                if carry and dtype.bits + number != 32:
                    arrays += (rng.integers(0, 2, (batch, steps)).astype(bool),)
                yield Sample(
                    kind(**attributes),
                    arrays,
                    f"{dtype} {batch}x{steps}x{width}x{hidden}",
                    tolerance=LONG if dtype is DType.F32 else None,
                )

    return samples


TABLE: dict[type[Op], Callable[[np.random.Generator], Iterator[Sample]]] = {
    SelectiveScan: selective_scan,
    GatedDeltaNet: gated_delta_net,
    Lstm: network(Lstm),
    Gru: network(Gru),
    Rnn: network(Rnn),
}
