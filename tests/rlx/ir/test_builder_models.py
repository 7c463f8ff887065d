"""RLX's builder names for transforms, sequences, loops, losses and sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import RegistryError, ShapeError
from rlx.ops.complex_fft import BlockFft, BlockNorm
from rlx.ops.io import Input
from rlx.types import as_type

Array = np.ndarray[Any, Any]


def run(build: Callable[..., Any], *arrays: Array) -> list[Array]:
    """Interpret what a builder method makes of arrays."""
    b = rlx.GraphBuilder()
    leaves = [b.input(f"x{i}", rlx.constant(a).type) for i, a in enumerate(arrays)]
    made = build(b, *leaves)
    graph = b.build(*(made if isinstance(made, tuple) else (made,)))
    return rlx.interpret(graph, {f"x{i}": a for i, a in enumerate(arrays)})


def draw_complex(rng: np.random.Generator, *shape: int) -> Array:
    return rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)


def test_fft_takes_blocks_and_complex_numbers(rng: np.random.Generator) -> None:
    z = draw_complex(rng, 2, 5)
    blocks = np.concatenate([z.real, z.imag], axis=-1)
    wanted = np.fft.fft(z)
    np.testing.assert_allclose(run(lambda g, x: g.fft(x), z)[0], wanted, rtol=1e-12)
    (found,) = run(lambda g, x: g.fft(x), blocks)
    joined = np.concatenate([wanted.real, wanted.imag], axis=-1)
    np.testing.assert_allclose(found, joined, rtol=1e-10, atol=1e-12)
    (back,) = run(lambda g, x: g.fft(g.fft(x), inverse=True), z)
    np.testing.assert_allclose(back, 5 * z, rtol=1e-12)
    for norm in ("ortho", BlockNorm.ORTHO):
        (found,) = run(lambda g, x, n=norm: g.fft_norm(x, norm=n), z)
        np.testing.assert_allclose(found, np.fft.fft(z, norm="ortho"), rtol=1e-12)
    (back,) = run(lambda g, x: g.fft(g.fft(x), inverse=True, norm="forward"), z)
    np.testing.assert_allclose(back, z, rtol=1e-12)
    b = rlx.GraphBuilder()
    with pytest.raises(RegistryError, match=r"^fft: norm is required to be one of \['backward'"):
        b.fft(b.input("x", "c64[4]"), norm="unit")


def test_transforms_along_axes(rng: np.random.Generator) -> None:
    z = draw_complex(rng, 3, 4)
    (found,) = run(lambda g, x: g.fft_axis(x, 0), z)
    np.testing.assert_allclose(found, np.fft.fft(z, axis=0), rtol=1e-12)
    (found,) = run(lambda g, x: g.fftn(x), z)
    np.testing.assert_allclose(found, np.fft.fftn(z), rtol=1e-11)
    (found,) = run(lambda g, x: g.ifftn(g.fftn(x), norm="forward"), z)
    np.testing.assert_allclose(found, z, rtol=1e-11)


def test_real_transforms(rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (2, 8))
    wanted = np.fft.fft(x)
    real, imag = run(lambda g, v: g.fft_real(v), x)
    np.testing.assert_allclose(real + 1j * imag, wanted, rtol=1e-10, atol=1e-12)
    real, imag = run(lambda g, v: g.rfft(v), x)
    np.testing.assert_allclose(real + 1j * imag, np.fft.rfft(x), rtol=1e-10, atol=1e-12)
    (back,) = run(lambda g, v: g.irfft(*g.rfft(v), 7), x)
    np.testing.assert_allclose(back, x[:, :7], rtol=1e-10)
    real, imag = run(lambda g, v: g.ifft_spectrum(*g.fft_real(v)), x)
    np.testing.assert_allclose(real, 8 * x, rtol=1e-10, atol=1e-12)
    (found,) = run(lambda g, v: g.psd_real(v), x)
    np.testing.assert_allclose(found, np.abs(np.fft.rfft(x)) ** 2 / 8, rtol=1e-10)
    z = draw_complex(rng, 2, 8)
    (found,) = run(lambda g, v: g.psd(v), z)
    np.testing.assert_allclose(found, np.abs(np.fft.fft(z)) ** 2 / 8, rtol=1e-10)
    parts = run(lambda g, v: g.split_spectrum(v), z)
    np.testing.assert_array_equal(parts[0] + 1j * parts[1], z)


def test_frames_padding_and_convolution(rng: np.random.Generator) -> None:
    x, ir = rng.uniform(-1, 1, 10), rng.uniform(-1, 1, 3)
    (found,) = run(lambda g, *v: g.fft_conv1d(*v), x, ir)
    np.testing.assert_allclose(found, np.convolve(x, ir), rtol=1e-10, atol=1e-12)
    (found,) = run(lambda g, v: g.pad_last_axis_to_pow2(v), x)
    np.testing.assert_array_equal(found, np.pad(x, (0, 6)))
    window = rng.uniform(0, 1, 4)
    (found,) = run(lambda g, v, w: g.stft(v, 4, 3, w), x, window)
    frames = np.stack([np.fft.rfft(x[i : i + 4] * window) for i in (0, 3, 6)])
    wanted = np.concatenate([frames.real, frames.imag], axis=-1)
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
    for name in ("fftfreq", "fftfreq_tensor"):
        (found,) = run(lambda g, n=name: getattr(g, n)(4, 0.5))
        assert found.tolist() == [0.0, 0.5, 1.0, -0.5]
    for name in ("rfftfreq", "rfftfreq_tensor"):
        (found,) = run(lambda g, n=name: getattr(g, n)(4))
        assert found.tolist() == [0.0, 0.25, 0.5]


def test_complex_numbers(rng: np.random.Generator) -> None:
    z = draw_complex(rng, 5).astype(np.complex64)
    np.testing.assert_array_equal(run(lambda g, x: g.conjugate(x), z)[0], z.conj())
    (found,) = run(lambda g, x: g.complex_norm_sq(x), z)
    np.testing.assert_allclose(found, np.abs(z) ** 2, rtol=1e-6)


def test_products_and_solves(rng: np.random.Generator) -> None:
    x, w, a, b = (rng.uniform(-1, 1, s) for s in ((3, 4), (4, 5), (4, 2), (2, 5)))
    (found,) = run(lambda g, *v: g.lora_matmul(*v, scale=0.5), x, w, a, b)
    np.testing.assert_allclose(found, x @ w + 0.5 * (x @ a) @ b, rtol=1e-12)
    m = rng.uniform(-1, 1, (2, 3, 3)) + 4 * np.eye(3)
    y = rng.uniform(-1, 1, (2, 3, 2))
    (found,) = run(lambda g, *v: g.batched_dense_solve(*v), m, y)
    np.testing.assert_allclose(found, np.linalg.solve(m, y), rtol=1e-9)


def test_sequence_models_take_the_state_size_from_their_inputs() -> None:
    b = rlx.GraphBuilder()
    x, a, n = b.input("x", "f32[1, 3, 4]"), b.input("a", "f32[4, 5]"), b.input("n", "f32[1, 3, 5]")
    assert b.selective_scan(x, x, a, n, n).node.op == rlx.ops.SelectiveScan(state_size=5)
    q, g = b.input("q", "f32[1, 3, 2, 4]"), b.input("g", "f32[1, 3, 2]")
    assert b.gated_delta_net(q, q, q, g, g).node.op == rlx.ops.GatedDeltaNet(state_size=4)
    per_channel = rlx.ops.GatedDeltaNet(state_size=4, gate_per_channel=True)
    assert b.gated_delta_net(q, q, q, q, g).node.op == per_channel
    state = b.input("state", "f32[1, 2, 4, 4]")
    y, last = b.gated_delta_net_carry(q, q, q, g, g, state)
    assert (y.type, last.type) == (q.type, state.type)
    assert y.node.op == rlx.ops.GatedDeltaNet(state_size=4, carry_state=True)
    loose = b.input("loose", "f32[4, k]")
    with pytest.raises(ShapeError, match=r"^selective_scan: the state's size is required"):
        b.selective_scan(x, x, loose, n, n)


def body(build: Callable[..., Any], *types: str) -> rlx.Graph:
    leaves = [
        Input(name=f"p{i}", dtype=t.dtype, shape=t.shape)()
        for i, t in enumerate(map(as_type, types))
    ]
    made = build(*leaves)
    return rlx.Graph(leaves, (), made if isinstance(made, tuple) else (made,), name="body")


def test_scans(rng: np.random.Generator) -> None:
    init, scale, xs = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2), rng.uniform(-1, 1, (5, 2))
    step = body(lambda c, w, x: c * w + x, "f64[2]", "f64[2]", "f64[2]")
    rows = []
    carry = init
    for x in xs:
        carry = carry * scale + x
        rows.append(carry)

    def scanned(name: str, *more: int) -> Array:
        return run(
            lambda g, c, w, x: getattr(g, name)(step, c, 5, *more, bcasts=[w], xs=[x]),
            init,
            scale,
            xs,
        )[0]

    np.testing.assert_allclose(scanned("scan"), carry, rtol=1e-12)
    np.testing.assert_allclose(scanned("scan_trajectory"), rows, rtol=1e-12)
    kept = scanned("scan_checkpointed", 3)
    np.testing.assert_allclose(kept, [rows[0], rows[1], rows[3]], rtol=1e-12)
    (alone,) = run(lambda g, c: g.scan(body(lambda v: v * 2.0, "f64[2]"), c, 3), init)
    np.testing.assert_allclose(alone, init * 8, rtol=1e-12)


def test_a_scan_wants_a_fitting_body() -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f64[2]")
    step = body(lambda c: c * 2.0, "f64[2]")
    with pytest.raises(
        ShapeError,
        match=r"^scan: body is required to be a graph of the carry, 1 bcasts and 0 slices",
    ):
        b.scan(step, x, 3, bcasts=[x])
    with pytest.raises(ShapeError, match="returns the next carry; got <Graph"):
        b.scan(body(lambda c: (c, c), "f64[2]"), x, 3)
    with pytest.raises(ShapeError, match=r"^scan_checkpointed: .* from 1 to length = 3; got 4\.$"):
        b.scan_checkpointed(step, x, 3, 4)


def test_losses_and_sampling(rng: np.random.Generator) -> None:
    logits = rng.uniform(-3, 3, (4, 5))
    labels = rng.integers(0, 5, 4).astype(np.int32)
    (found,) = run(lambda g, *v: g.softmax_cross_entropy_with_logits(*v), logits, labels)
    wanted = np.log(np.exp(logits).sum(1)) - logits[np.arange(4), labels]
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    (found,) = run(lambda g, v: g.sample(v, temperature=0.0), logits)
    np.testing.assert_array_equal(found, logits.argmax(1))
    b = rlx.GraphBuilder()
    made = b.sample(b.input("x", "f32[2, 5]"), 3, 0.9, 0.7, 11)
    wanted_op = rlx.ops.Sample(top_k=3, top_p=0.9, temperature=0.7, seed=11)
    assert made.node.op == wanted_op


def test_custom_fn(rng: np.random.Generator) -> None:
    x, y = rng.uniform(-1, 1, 3), rng.uniform(-1, 1, 3)
    one = body(lambda a, b: a * b, "f64[3]", "f64[3]")
    two = body(lambda a, b: (a * b, a + b), "f64[3]", "f64[3]")
    (found,) = run(lambda g, *v: g.custom_fn(v, one), x, y)
    np.testing.assert_array_equal(found, x * y)
    found, total = run(lambda g, *v: g.custom_fn(list(v), two), x, y)
    np.testing.assert_array_equal(total, x + y)


@pytest.mark.parametrize(
    "name", ["fft_axis", "fftn", "fft_real", "rfft", "psd", "split_spectrum", "conjugate"]
)
def test_what_is_no_value_is_refused(name: str) -> None:
    more = (0,) if name == "fft_axis" else ()
    with pytest.raises(ShapeError, match="of a graph"):
        getattr(rlx.GraphBuilder(), name)([1.0], *more)


def test_an_op_stands_behind_fft() -> None:
    b = rlx.GraphBuilder()
    made = b.fft(b.input("x", "f32[8]"), inverse=True, norm="ortho")
    assert made.node.op == BlockFft(inverse=True, norm=BlockNorm.ORTHO)
