"""Sequence models against PyTorch, and against loops written from their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.dtypes import DType
from rlx.ir.graph import Graph
from rlx.ops.io import Input
from rlx.ops.sequence import GatedDeltaNet, Gru, Lstm, Mamba2, Rnn, SelectiveScan

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn", "relu"])
def test_recurrent_networks_are_those_of_torch(
    kind: str, layers: int, bidirectional: bool, rng: np.random.Generator
) -> None:
    torch = pytest.importorskip("torch")
    batch, length, width, hidden = 3, 6, 5, 4
    ways = 2 if bidirectional else 1
    shared = {"num_layers": layers, "bidirectional": bidirectional}
    attributes: dict[str, Any] = {"hidden_size": hidden, "carry": True, **shared}
    common = {"batch_first": True, "dtype": torch.float64, **shared}
    if kind == "lstm":
        op, theirs = Lstm(**attributes), torch.nn.LSTM(width, hidden, **common)
    elif kind == "gru":
        op, theirs = Gru(**attributes), torch.nn.GRU(width, hidden, **common)
    else:
        op = Rnn(**attributes, relu=kind == "relu")
        theirs = torch.nn.RNN(
            width, hidden, nonlinearity="relu" if kind == "relu" else "tanh", **common
        )
    x = rng.uniform(-2, 2, (batch, length, width))
    states = [rng.uniform(-1, 1, (layers * ways, batch, hidden)) for _ in op.operands[-1:]]
    if kind == "lstm":
        states.append(rng.uniform(-1, 1, states[0].shape))
    given = [torch.from_numpy(s) for s in states]
    with torch.no_grad():
        y, last = theirs(torch.from_numpy(x), tuple(given) if kind == "lstm" else given[0])
    last = last if kind == "lstm" else (last,)
    weights = _weights(theirs, layers, ways)
    if kind == "gru":
        biases = [weights["bias_ih"], weights["bias_hh"]]
    else:
        biases = [weights["bias_ih"] + weights["bias_hh"]]
    packed = np.concatenate([w.ravel() for w in weights["weight_ih"]])
    found = op.evaluate(x, packed, weights["weight_hh"], *biases, *states)
    for got, want in zip(found, (y, *last), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-10, atol=1e-12)
    if kind != "lstm":
        return
    alone = op.replace(carry=False).evaluate(x, packed, weights["weight_hh"], *biases)
    with torch.no_grad():
        y, _ = theirs(torch.from_numpy(x))
    np.testing.assert_allclose(alone, y.numpy(), rtol=1e-10, atol=1e-12)


def _weights(network: Any, layers: int, ways: int) -> dict[str, Any]:
    """PyTorch's weights, layer-major then direction; the input weights as a list."""
    suffixes = [f"_l{i}{'_reverse' * d}" for i in range(layers) for d in range(ways)]
    made: dict[str, Any] = {
        name: [getattr(network, name + s).detach().numpy() for s in suffixes]
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    return made | {n: np.stack(made[n]) for n in ("weight_hh", "bias_ih", "bias_hh")}


def test_selective_scan(rng: np.random.Generator) -> None:
    x, delta = rng.uniform(-1, 1, (2, 2, 7, 3))
    a, (b, c) = rng.uniform(-1, 0, (3, 5)), rng.uniform(-1, 1, (2, 2, 7, 5))
    wanted, state = np.zeros_like(x), np.zeros((2, 3, 5))
    for t in range(7):
        for n in range(5):
            decay = np.exp(delta[:, t] * a[:, n])
            state[..., n] = decay * state[..., n] + delta[:, t] * b[:, t, n : n + 1] * x[:, t]
            wanted[:, t] += c[:, t, n : n + 1] * state[..., n]
    found = SelectiveScan(state_size=5).evaluate(x, delta, a, b, c)
    np.testing.assert_allclose(found, wanted, rtol=1e-11)


def test_mamba2(rng: np.random.Generator) -> None:
    x, dt, a = rng.uniform(-1, 1, (7, 3)), rng.uniform(0, 1, 7), -0.7
    b, c = rng.uniform(-1, 1, (2, 7, 4))
    state, wanted = np.zeros((3, 4)), []
    for t in range(7):
        state = np.exp(dt[t] * a) * state + dt[t] * np.outer(x[t], b[t])
        wanted.append(state @ c[t])
    op = Mamba2(head_dim=3, state_size=4)
    found = op.evaluate(
        x[None, :, None], dt[None, :, None], np.full(1, a), b[None, :, None], c[None, :, None]
    )
    np.testing.assert_allclose(found[0, :, 0], wanted, rtol=1e-11)


@pytest.mark.parametrize("per_channel", [False, True])
def test_gated_delta_net(per_channel: bool, rng: np.random.Generator) -> None:
    q, k, v = rng.uniform(-1, 1, (3, 7, 4))
    g, beta = rng.uniform(-1, 0, (7, 4)), rng.uniform(0, 1, 7)
    start = state = rng.uniform(-1, 1, (4, 4))
    wanted = []
    for t in range(7):
        decay = np.exp(g[t])[:, None] if per_channel else np.exp(g[t, 0])
        state = decay * state
        correction = (v[t] - state.T @ k[t]) * beta[t]
        state = state + np.outer(k[t], correction)
        wanted.append(state.T @ q[t] / 2.0)
    op = GatedDeltaNet(state_size=4, carry_state=True, gate_per_channel=per_channel)
    gate = g[None, :, None] if per_channel else g[None, :, None, 0]
    tokens = (x[None, :, None] for x in (q, k, v))
    y, last = op.evaluate(*tokens, gate, beta[None, :, None], start[None, None])
    np.testing.assert_allclose(y[0, :, 0], wanted, rtol=1e-10)
    np.testing.assert_allclose(last[0, 0], state, rtol=1e-10)


def test_a_state_carried_over_continues_the_sequence(rng: np.random.Generator) -> None:
    op = Gru(hidden_size=4, carry=True)
    x = rng.uniform(-1, 1, (2, 6, 3))
    weights = [rng.uniform(-1, 1, s) for s in ((36,), (1, 12, 4), (1, 12), (1, 12))]
    start = np.zeros((1, 2, 4))
    whole, last = op.evaluate(x, *weights, start)
    first, middle = op.evaluate(x[:, :2], *weights, start)
    second, end = op.evaluate(x[:, 2:], *weights, middle)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, rtol=1e-12)
    np.testing.assert_allclose(end, last, rtol=1e-12)


def test_a_gru_that_resets_its_state_first(rng: np.random.Generator) -> None:
    """As ONNX has it with linear_before_reset=0, step by step."""
    op = Gru(hidden_size=4, carry=True, reset_after=False)
    x, h = rng.uniform(-1, 1, (2, 6, 3)), rng.uniform(-1, 1, (2, 4))
    w, u = rng.uniform(-1, 1, (12, 3)), rng.uniform(-1, 1, (12, 4))
    b, c = rng.uniform(-1, 1, (2, 12))
    y, last = op.evaluate(x, w.reshape(-1), u[None], b[None], c[None], h[None])
    for t in range(6):
        early = 1 / (1 + np.exp(-(x[:, t] @ w[:8].T + b[:8] + h @ u[:8].T + c[:8])))
        r, z = early[:, :4], early[:, 4:]
        n = np.tanh(x[:, t] @ w[8:].T + b[8:] + (r * h) @ u[8:].T + c[8:])
        h = (1 - z) * n + z * h
        np.testing.assert_allclose(y[:, t], h, rtol=1e-12)
    np.testing.assert_allclose(last[0], h, rtol=1e-12)
    other, _ = op.replace(reset_after=True).evaluate(x, w.reshape(-1), u[None], b[None], c[None],
                                                     h[None])  # fmt: skip
    assert np.abs(other - y).max() > 1e-4


def test_the_number_of_nodes_does_not_grow_with_steps() -> None:
    def size(length: int) -> int:
        shapes = ((1, length, 3), (1, length, 3), (3, 2), (1, length, 2), (1, length, 2))
        leaves = [
            Input(name=f"x{i}", dtype=DType.F32, shape=shape)() for i, shape in enumerate(shapes)
        ]
        made = SelectiveScan(state_size=2).decompose(*leaves)
        graph = Graph(leaves, (), (made,))
        return sum(len(list(g.nodes())) for g in graph.all_graphs())

    assert size(3) == size(3000)
