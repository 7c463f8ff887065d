"""The kernels of recurrences: what reaches them, transformations, refusals, handlers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.dtypes import as_dtype
from rlx.ir.op import Op
from rlx.ops.sequence import GatedDeltaNet, Gru, Lstm, Rnn, SelectiveScan
from rlx.types import TensorType, as_type
from rlx_xla.kernels import ffi
from rlx_xla.kernels.base import Refused
from rlx_xla.kernels.select import kernels_for


@pytest.fixture(autouse=True)
def _library() -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-0.5, 0.5, shape).astype(np.float32)


def _arrays(kind: type[Op], rng: np.random.Generator) -> tuple[Op, list[np.ndarray]]:
    """An op with inputs, the same sizes for each kind."""
    if kind is SelectiveScan:
        x, delta, b, c = (_draw(rng, 2, 9, n) for n in (5, 5, 3, 3))
        return SelectiveScan(state_size=3), [x, abs(delta), -abs(_draw(rng, 5, 3)), b, c]
    if kind is GatedDeltaNet:
        q, k, v = (_draw(rng, 2, 9, 2, 4) for _ in "qkv")
        g, beta = -abs(_draw(rng, 2, 9, 2)), abs(_draw(rng, 2, 9, 2))
        return GatedDeltaNet(state_size=4), [q, k, v, g, beta]
    rows = {Lstm: 4, Gru: 3, Rnn: 1}[kind] * 6
    biases = [_draw(rng, 1, rows) for _ in range(2 if kind is Gru else 1)]
    weights = [_draw(rng, rows * 5), _draw(rng, 1, rows, 6)]
    network: Any = kind
    return network(hidden_size=6), [_draw(rng, 2, 9, 5), *weights, *biases]


def test_a_scan_of_an_unmodified_model_runs_the_kernel(rng: np.random.Generator) -> None:
    def mamba(x: jax.Array, delta: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array) -> Any:
        def step(h: jax.Array, now: Any) -> Any:
            x_t, d_t, b_t, c_t = now
            h = jnp.exp(d_t[..., None] * a[None]) * h + (d_t * x_t)[..., None] * b_t[:, None, :]
            return h, jnp.einsum("bhn,bn->bh", h, c_t)

        first = jnp.zeros((x.shape[0], *a.shape))
        moved = [jnp.moveaxis(v, 1, 0) for v in (x, delta, b, c)]
        return jnp.moveaxis(jax.lax.scan(step, first, moved)[1], 0, 1)

    _, arrays = _arrays(SelectiveScan, rng)
    ours = rlx_xla.jit(mamba)
    np.testing.assert_allclose(ours(*arrays), jax.jit(mamba)(*arrays), rtol=1e-5, atol=1e-6)
    assert "selective_scan.cpu.ffi" in {c.implementation for c in ours.report().kernels}


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        (SelectiveScan, ("f32[", "f64["), "x is f64, and f32, bf16 and f16 are taken"),
        (SelectiveScan, ("f32[2, 9,", "f32[2, s,"), "f32[2, s, 5] is not static"),
        (SelectiveScan, ("f32[2, 9,", "f32[2, 1,"), "1 steps are fewer than 2"),
        (GatedDeltaNet, ("f32[", "f64["), "q is f64, and f32, bf16 and f16 are taken"),
        (GatedDeltaNet, ("f32[2, 9,", "f32[b, 9,"), "f32[b, 9, 2, 4] is not static"),
        (Lstm, ("f32[", "f64["), "x is f64, and f32, bf16 and f16 are taken"),
        (Gru, ("f32[2, 9,", "f32[b, 9,"), "f32[b, 9, 5] is not static"),
        (Rnn, ("f32[2, 9,", "f32[2, 3,"), "3 steps are fewer than 4"),
    ],
)
def test_what_the_kernels_do_not_take(
    kind: type[Op], change: tuple[str, str], reason: str, rng: np.random.Generator
) -> None:
    op, arrays = _arrays(kind, rng)
    (kernel,) = kernels_for(kind, "cpu")
    types = [str(TensorType(as_dtype(a.dtype), a.shape)).replace(*change) for a in arrays]
    assert kernel.supports(op, [as_type(t) for t in types], "cpu") == Refused(reason)


def test_cell_states_of_all_steps_are_refused(rng: np.random.Generator) -> None:
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in _arrays(Lstm, rng)[1]]
    for platform in ("cpu", "cuda"):
        for kernel in kernels_for(Lstm, platform):
            verdict = kernel.supports(Lstm(hidden_size=6, cells=True), types, platform)
            assert verdict == Refused("cells=True: it keeps the cell states of the last step alone")


def test_an_lstm_has_all_its_cell_states(rng: np.random.Generator) -> None:
    """Those of the last step are the last ones, and the gradient goes through all of them."""
    _, arrays = _arrays(Lstm, rng)
    b = rlx.GraphBuilder("lstm")
    leaves = [
        b.input(f"x{i}", TensorType(as_dtype(a.dtype), a.shape)) for i, a in enumerate(arrays)
    ]
    states = [b.input(n, TensorType(as_dtype("f32"), (1, arrays[0].shape[0], 6))) for n in "hc"]
    graph = b.build(*Lstm(hidden_size=6, carry=True, cells=True)(*leaves, *states))
    first = [rng.standard_normal((1, arrays[0].shape[0], 6)).astype(np.float32) for _ in "hc"]
    function = rlx_xla.to_jax(graph)
    y, cells, h, c = function(*arrays, *first)
    np.testing.assert_array_equal(y[:, -1], h[0])
    np.testing.assert_array_equal(cells[:, -1], c[0])
    by_step = Lstm(hidden_size=6, carry=True)
    state = first
    for t in range(arrays[0].shape[1]):
        now = [arrays[0][:, t : t + 1], *arrays[1:]]
        _, *state = (np.asarray(v) for v in by_step.evaluate(*now, *state))
        np.testing.assert_allclose(cells[:, t], state[1][0], rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda c0: function(*arrays, first[0], c0)[1].sum())(first[1])
    assert np.abs(gradient).min() > 0


def test_a_gru_that_resets_first_has_a_gradient_and_batches(rng: np.random.Generator) -> None:
    op, arrays = Gru(hidden_size=6, reset_after=False), _arrays(Gru, rng)[1]
    b = rlx.GraphBuilder("gru")
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
    ours = rlx_xla.to_jax(b.build(op(*(b.input(f"x{i}", t) for i, t in enumerate(types)))))

    def plain(x: jax.Array, w_ih: jax.Array, *others: jax.Array) -> jax.Array:
        w, (u, bias, kept) = w_ih.reshape(18, 5), (a[0] for a in others)

        def step(h: jax.Array, now: jax.Array) -> Any:
            early = jax.nn.sigmoid(now @ w[:12].T + bias[:12] + h @ u[:12].T + kept[:12])
            r, z = jnp.split(early, 2, -1)
            n = jnp.tanh(now @ w[12:].T + bias[12:] + (r * h) @ u[12:].T + kept[12:])
            h = (1 - z) * n + z * h
            return h, h

        return jax.lax.scan(step, jnp.zeros((2, 6)), jnp.swapaxes(x, 0, 1))[1].swapaxes(0, 1)

    with jax.numpy_rank_promotion("allow"):
        several = [np.stack([arrays[0], arrays[0] + 1]), *arrays[1:]]
        for make in (lambda f: f, lambda f: jax.grad(lambda *a: (f(*a) ** 2).sum(), range(5))):
            found, wanted = (jax.jit(make(f))(*arrays) for f in (ours, plain))
            for got, want in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        mapped = [jax.vmap(f, (0, *[None] * 4))(*several) for f in (ours, plain)]
    np.testing.assert_allclose(*mapped, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [Lstm, Gru])
def test_a_masked_network_has_a_gradient_and_batches(
    kind: type[Op], rng: np.random.Generator
) -> None:
    """Where a sequence has ended, NaN gets into no state; slopes are those of the shorter one."""
    network: Any = kind
    op, arrays = network(hidden_size=6, carry=True), _arrays(kind, rng)[1]
    arrays += [_draw(rng, 1, 2, 6) for _ in range(2 if kind is Lstm else 1)]
    mask = np.arange(9) < np.array([[9], [4]])
    arrays[0][1, 4:] = np.nan
    b = rlx.GraphBuilder("masked")
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in [*arrays, mask]]
    ours = rlx_xla.to_jax(b.build(op(*(b.input(f"x{i}", t) for i, t in enumerate(types)))))
    short = [arrays[0][1:, :4], *arrays[1:-1], *([arrays[-1][:, 1:]])]
    if kind is Lstm:
        short[-2] = arrays[-2][:, 1:]
    alone = rlx.GraphBuilder("short")
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in short]
    plain = rlx_xla.to_jax(alone.build(op(*(alone.input(f"x{i}", t)
                                            for i, t in enumerate(types)))))  # fmt: skip
    last = jax.jit(lambda *a: ours(*a, mask)[1][:, 1:])
    np.testing.assert_allclose(last(*arrays), jax.jit(plain)(*short)[1], rtol=1e-5, atol=1e-6)
    whole = lambda *a: ours(*a, mask)  # noqa: E731
    slopes = [
        jax.jit(jax.grad(lambda x, f=f, a=a: (f(x, *a)[1][:, -1] ** 2).sum()))(np.nan_to_num(x))
        for f, (x, *a) in ((whole, arrays), (plain, short))
    ]
    np.testing.assert_allclose(slopes[0][1:, :4], slopes[1], rtol=1e-4, atol=1e-6)
    mapped = jax.vmap(lambda x: ours(x, *arrays[1:], mask)[1])(np.stack([arrays[0]] * 2))
    np.testing.assert_allclose(mapped[1][:, 1:], last(*arrays), rtol=1e-5, atol=1e-6)


def test_weights_that_leave_the_cache_are_left_to_xla() -> None:
    types = ["f32[1, 9, 5]", "f32[10240]", "f32[1, 2048, 512]", "f32[1, 2048]"]
    (kernel,) = kernels_for(Lstm, "cpu")
    verdict = kernel.supports(Lstm(hidden_size=512), [as_type(t) for t in types], "cpu")
    assert verdict == Refused("weights of 1048576 elements are more than 262144")


NETWORK: dict[str, Any] = {
    "kind": np.int64(2), "hidden_size": np.int64(6), "num_layers": np.int64(1),
    "bidirectional": np.bool_(False), "carry": np.bool_(False),
}  # fmt: skip


@pytest.mark.parametrize(
    ("symbol", "kind", "attributes", "operand", "message"),
    [
        ("rlx_selective_scan_f32_cpu", SelectiveScan, {}, 2, r"a \[H, N\], b and c"),
        ("rlx_selective_scan_f32_cpu", SelectiveScan, {}, 4, r"got \[2, 9, 5\]"),
        ("rlx_gated_delta_net_f32_cpu", GatedDeltaNet, {}, 1, r"q, k and v \[B, S, H, N\]"),
        ("rlx_gated_delta_net_f32_cpu", GatedDeltaNet, {}, 3, "are required; got"),
        ("rlx_recurrent_f32_cpu", Lstm, NETWORK, 1, "1 layers of 6 units in 1 directions"),
        ("rlx_recurrent_f32_cpu", Lstm, NETWORK, 3, "1 layers of 6 units in 1 directions"),
        ("rlx_recurrent_f32_cpu", Lstm, {**NETWORK, "kind": np.int64(5)}, -1, "kind from 0 to 4"),
        ("rlx_recurrent_f32_cpu", Lstm, {**NETWORK, "num_layers": np.int64(0)}, -1, "got 2, 6 and"),
    ],
)
def test_the_handlers_check_their_calls(
    symbol: str,
    kind: type[Op],
    attributes: dict[str, Any],
    operand: int,
    message: str,
    rng: np.random.Generator,
) -> None:
    library = ffi.load()
    assert not isinstance(library, ffi.Unavailable)
    op, arrays = _arrays(kind, rng)
    result = op.infer(*(TensorType(as_dtype(a.dtype), a.shape) for a in arrays))
    if operand >= 0:
        arrays[operand] = arrays[operand][..., :-1]
    call = jax.ffi.ffi_call(library.target(symbol), jax.ShapeDtypeStruct(result.shape, jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"{symbol}: .*{message}"):
        jax.block_until_ready(jax.jit(lambda *a: call(*a, **attributes))(*arrays))


def test_the_handler_checks_a_mask(rng: np.random.Generator) -> None:
    library = ffi.load()
    assert not isinstance(library, ffi.Unavailable)
    arrays = [
        *_arrays(Lstm, rng)[1],
        _draw(rng, 1, 2, 6),
        _draw(rng, 1, 2, 6),
        np.ones((2, 8), bool),
    ]
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 9, 6), (1, 2, 6), (1, 2, 6))]
    call = jax.ffi.ffi_call(library.target("rlx_recurrent_f32_cpu"), shapes)
    given = {**NETWORK, "carry": np.bool_(True)}
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"a mask \[2, 9\] is required; got \[2, 8"
    ):
        jax.block_until_ready(jax.jit(lambda *a: call(*a, **given))(*arrays))
