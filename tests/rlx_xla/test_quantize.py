"""``rlx_xla.quantize``: weights of traced functions become packed params."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402  (after importorskip)

import rlx  # noqa: E402
import rlx_xla  # noqa: E402
from rlx.errors import CompileError, TraceError  # noqa: E402
from rlx.quant import unpack  # noqa: E402
from rlx_xla.aot.compiling import missing  # noqa: E402
from rlx_xla.aot.targets import parse_target  # noqa: E402
from rlx_xla.quantize import SHORT, quantize, repacked  # noqa: E402


def mlp(params: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ params["up"] + params["bias"])
    return hidden @ params["down"].T + x @ params["odd"]


def traced(rng: np.random.Generator) -> tuple[Any, Any, Any]:
    params = {
        "up": rng.normal(size=(256, 512)).astype(np.float32),
        "bias": rng.normal(size=(512,)).astype(np.float32),
        "down": rng.normal(size=(6, 512)).astype(np.float32),
        "odd": rng.normal(size=(256, 6)).astype(np.float32),
    }
    x = rng.normal(size=(2, 3, 256)).astype(np.float32)
    with jax.numpy_rank_promotion("allow"):
        return rlx_xla.trace(mlp, params, x, params=0), params, x


@pytest.mark.parametrize("scheme", [*SHORT, "int4:64"])
def test_every_scheme_rounds_the_weights_once(scheme: str, rng: np.random.Generator) -> None:
    source, params, x = traced(rng)
    found = quantize(source, scheme)
    assert [w.kept for w in found.weights] == ["", "", ""]
    assert all(0 < w.error < 0.2 for w in found.weights)
    assert sum(w.packed_bytes for w in found.weights) < 0.4 * sum(w.nbytes for w in found.weights)
    ops = [node.op.op_name for node in found.graph.nodes()]
    assert ops.count("dequant_matmul") == 3
    assert "dot_general" not in ops
    result = np.asarray(rlx.Session("cpu").compile(found)(x))
    with jax.numpy_rank_promotion("allow"):
        wanted = np.asarray(mlp(params, x))
    error = np.linalg.norm(result - wanted) / np.linalg.norm(wanted)
    assert 0 < error < 2 * max(w.error for w in found.weights)
    (meant,) = rlx.interpret(
        found.graph, {found.graph.inputs[0].name: x}, params=dict(found.params)
    )
    np.testing.assert_allclose(result, meant, rtol=1e-3, atol=1e-3 * np.abs(meant).max())


@pytest.mark.parametrize("scheme", ["int8", "int4:64", "q4_k"])
def test_inputs_may_be_rounded_too(scheme: str, rng: np.random.Generator) -> None:
    source, _, x = traced(rng)
    session = rlx.Session("cpu")
    exact = session.compile(quantize(source, scheme))
    found = quantize(source, scheme, inputs="int8")
    ops = [node.op.op_name for node in found.graph.nodes()]
    assert ops.count("dequant_matmul_int8") == 3
    assert "dequant_matmul" not in ops
    compiled = session.compile(found)
    result, wanted = np.asarray(compiled(x)), np.asarray(exact(x))
    error = np.linalg.norm(result - wanted) / np.linalg.norm(wanted)
    assert 1e-5 < error < 2e-2
    (meant,) = rlx.interpret(
        found.graph, {found.graph.inputs[0].name: x}, params=dict(found.params)
    )
    # A code between two may go to either.
    np.testing.assert_allclose(result, meant, rtol=5e-3, atol=5e-3 * np.abs(meant).max())


@pytest.mark.parametrize("scheme", [None, 3, ("q4_k",)])
def test_a_scheme_is_named(rng: np.random.Generator, scheme: Any) -> None:
    message = (
        f"quantize [scheme]: the name of a scheme is required, such as 'q4_k'; got {scheme!r}."
    )
    with pytest.raises(TraceError, match=re.escape(message)):
        quantize(traced(rng)[0], scheme)


def test_inputs_are_named(rng: np.random.Generator) -> None:
    source, _, _ = traced(rng)
    message = "quantize [inputs]: one of 'exact', 'int8' is required; got 'int4'."
    with pytest.raises(TraceError, match=re.escape(message)):
        quantize(source, "int8", inputs="int4")
    message = (
        "quantize [inputs]: a scheme whose products take rounded inputs is required: GGUF's with "
        "blocks of 32 or 256, int8 and int4 with blocks that are multiples of 32; got fp8e4m3. "
        "Choose one, or leave inputs out."
    )
    with pytest.raises(TraceError, match=re.escape(message)):
        quantize(source, "fp8_e4m3", inputs="int8")


def test_where_chooses_and_the_table_says_what_stays(rng: np.random.Generator) -> None:
    source, _, _ = traced(rng)
    names = [v.name for v in source.graph.params]
    up = next(n for n in names if n.endswith("up"))
    found = quantize(source, "q4_k", where="*up")
    assert [w.name for w in found.weights] == [up]
    predicate = quantize(source, "q4_k", where=lambda name: name == up)
    assert [w.name for w in predicate.weights] == [up]
    with pytest.raises(
        TraceError,
        match=r"^quantize \[where\]: a pattern of names or a predicate on them is required; "
        r"got 3\. Write where='\*/kernel', or where=lambda name: \.\.\.$",
    ):
        quantize(source, "q4_k", where=3)  # type: ignore[arg-type]
    assert {v.name for v in found.graph.params} == {*names, f"{up}/codes"} - {up}
    assert f"{found.weights[0].packed_bytes:,}" in str(found)
    w = rng.normal(size=(100, 8)).astype(np.float32)
    small = rlx_xla.trace(lambda w, x: x @ w, w, np.ones((2, 100), np.float32), params=0)
    stays = quantize(small, "q4_k")
    assert stays.weights[0].kept == "stays: K = 100 is not a multiple of 256"
    assert "stays: K = 100" in str(stays)
    assert rlx.same(stays.graph, small.graph)


def test_a_function_without_weights_is_refused(rng: np.random.Generator) -> None:
    x = np.ones((2, 64), np.float32)
    plain = rlx_xla.trace(lambda w, x: x + jnp.sum(w), x, x, params=0)
    unbound = rlx_xla.trace(lambda w, x: x @ w, x.T, x)
    for given, params in ((plain, "w"), (unbound, "none")):
        with pytest.raises(TraceError) as caught:
            quantize(given, "int8")
        assert str(caught.value) == (
            "quantize: params that a product or a lookup reads are required; the graph has none "
            f"(params: {params}). Bind the weights with rlx_xla.trace(..., params=0)."
        )


def wide(p: Any, ids: Any) -> Any:
    """Weights in loops, branches and lookups; by halves, of rank 3, on the left, and of bf16."""
    h = jnp.take(p["table"], ids, axis=0) + p["table"][ids]

    def body(h: Any, w: Any) -> tuple[Any, None]:
        return jnp.tanh(h @ w + h @ p["often"].T), None

    h, _ = jax.lax.scan(body, h, p["stacked"])
    h = jax.lax.cond(ids[0] > 3, lambda h: h @ p["often"].T, lambda h: h, h)
    heads = jnp.einsum("bk,khd->bhd", h, p["into_heads"])
    h = h + jnp.einsum("bhd,hdk->bk", heads, p["from_heads"])
    h = jax.lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, jnp.tanh(c[1] @ p["often"].T)), (0, h)
    )[1]
    low = jnp.einsum("bk,nk->bn", h.astype(jnp.bfloat16), p["low"])
    exact = jnp.einsum("bk,nk->bn", h, p["low"].astype(jnp.float32))
    return h @ p["table"].T, low.astype(jnp.float32), exact, p["left"] @ h.T


def wide_params(rng: np.random.Generator) -> dict[str, Any]:
    def normal(*shape: int) -> Any:
        return (rng.normal(size=shape) / 8).astype(np.float32)

    return {
        "table": normal(50, 64), "stacked": normal(4, 64, 64), "often": normal(64, 64),
        "into_heads": normal(64, 2, 32), "from_heads": normal(2, 32, 64), "left": normal(48, 64),
        "low": jnp.asarray(normal(8, 64), jnp.bfloat16),
    }  # fmt: skip


@pytest.mark.parametrize("scheme", ["q8_0", "int4", "nvfp4", "mxfp4", "fp8_e4m3"])
def test_weights_are_packed_wherever_they_are_read(scheme: str, rng: np.random.Generator) -> None:
    params = wide_params(rng)
    ids = np.asarray([3, 70, -2], np.int32)  # the second is outside
    source = rlx_xla.trace(wide, params, ids, params=0)
    found = quantize(source, scheme)
    assert [w.kept for w in found.weights] == [""] * len(params)
    uses = {w.name.rpartition("/")[2]: w.uses for w in found.weights}
    assert uses == {"table": 3, "stacked": 1, "often": 3, "into_heads": 1, "from_heads": 1,
                    "left": 1, "low": 2}  # fmt: skip
    inner = [node.op.op_name for graph in found.graph.all_graphs() for node in graph.nodes()]
    assert "dot_general" not in inner
    assert "gather_general" not in inner
    assert inner.count("dequant_gather") == 2
    # Each weight is one param, whatever reads it; none has its numbers left beside it.
    tensors = {"q8_0": 1, "int4": 3, "nvfp4": 3, "mxfp4": 2, "fp8_e4m3": 2}[scheme]
    assert len(found.graph.params) == tensors * len(params)
    assert found.packed_bytes == sum(np.asarray(a).nbytes for a in found.params.values())
    results = [np.asarray(r) for r in rlx.Session("cpu").compile(found)(ids)]
    rounded = dict(params)
    for name, weight in zip(sorted(params), found.weights, strict=True):
        assert weight.name.endswith(name)
        parts = [a for key, a in found.params.items() if key.startswith(f"{weight.name}/")]
        rounded[name] = numbers_of(found.scheme, parts, np.asarray(params[name]), name)
    wanted = [np.asarray(r) for r in jax.jit(wide)(rounded, ids)]
    for result, meant in zip(results, wanted, strict=True):
        assert result.dtype == meant.dtype
        np.testing.assert_array_equal(np.isnan(result), np.isnan(meant))
        assert np.isnan(meant).any()
        np.testing.assert_allclose(result, meant, rtol=2e-2, atol=2e-2 * np.nanmax(np.abs(meant)))


def numbers_of(scheme: Any, tensors: list[Any], like: np.ndarray, name: str) -> Any:
    """The numbers of a packed weight in its own shape."""
    contracted = {"table": (1,), "left": (1,), "low": (1,), "often": (1,), "from_heads": (0, 1)}
    slices = [[t] for t in tensors] if name != "stacked" else tensors
    made: list[Any] = []
    for parts in zip(*slices, strict=True):
        shape = like.shape[1:] if name == "stacked" else like.shape
        axes = contracted.get(name, (0,))
        order = (*axes, *(a for a in range(len(shape)) if a not in axes))
        inner = int(np.prod([shape[a] for a in axes]))
        flat = unpack(scheme, *parts, size=inner)
        flat = flat.T if scheme.is_rows else flat
        turned = flat.reshape([shape[a] for a in order])
        made.append(turned.transpose(np.argsort(order)))
    return jnp.asarray(np.stack(made) if name == "stacked" else made[0], like.dtype)


def test_weights_that_something_else_reads_stay_and_say_so(rng: np.random.Generator) -> None:
    params = {
        "summed": rng.normal(size=(64, 8)).astype(np.float32),
        "both_ways": rng.normal(size=(64, 64)).astype(np.float32),
        "good": rng.normal(size=(64, 8)).astype(np.float32),
        "bad": np.full((64, 8), np.inf, np.float32),
        "kernel": rng.normal(size=(1, 1, 64, 8)).astype(np.float32),
    }

    def fn(p: Any, x: Any) -> Any:
        images = jax.lax.conv_general_dilated(
            x[:, None, None], p["kernel"], (1, 1), "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        both = x @ p["both_ways"] + x @ p["both_ways"].T
        return x @ p["summed"] + p["summed"].sum(), both, x @ p["good"], x @ p["bad"], images

    x = rng.normal(size=(2, 64)).astype(np.float32)
    with jax.numpy_rank_promotion("allow"):
        found = quantize(rlx_xla.trace(fn, params, x, params=0), "q8_0")
    kept = {w.name.rpartition("/")[2]: w.kept for w in found.weights}
    assert kept == {
        "summed": "stays: reduce_sum reads it",
        "both_ways": "stays: its uses sum over different axes",
        "good": "",
        "bad": "stays: it is not finite",
    }
    assert "together" in str(found)
    table = found.to_json()
    assert json.loads(json.dumps(table))["weights"][0]["name"] == found.weights[0].name
    page = found._repr_html_()
    assert page.startswith("<table>")
    assert "its uses sum over different axes" in page
    assert f"{found.packed_bytes:,}" in page


def test_an_option_packs_before_compiling(rng: np.random.Generator) -> None:
    source, params, x = traced(rng)
    session = rlx.Session("cpu")
    compiled = session.compile(source, options=rlx.CompileOptions(weights="packed"))
    assert {c.op for c in compiled.report().kernels} == {"dequant_matmul"}
    bytes_ = sum(np.asarray(a).nbytes for a in compiled.params().values())
    assert bytes_ < 0.28 * sum(a.nbytes for a in params.values())
    with jax.numpy_rank_promotion("allow"):
        wanted = np.asarray(mlp(params, x))
    error = np.linalg.norm(np.asarray(compiled(x)) - wanted) / np.linalg.norm(wanted)
    assert 0 < error < 0.02
    text = str(compiled.report())
    assert "pack-weights{scheme=gguf_q8_0}" in text
    assert "together" in text
    # What came packed stays so.
    again = session.compile(quantize(source, "q4_0"), options=rlx.CompileOptions(weights="packed"))
    assert {name.rpartition("/")[2] for name in again.params()} == {"codes", "bias"}
    four = session.compile(source, options=rlx.CompileOptions(weights="int4:64"))
    assert "int4/64" in str(four.report())


def test_the_option_says_what_it_takes(rng: np.random.Generator) -> None:
    message = (
        "CompileOptions.weights: required 'packed', the name of a scheme as rlx_xla.quantize takes "
        "it, or None; got 'q9'."
    )
    with pytest.raises(CompileError, match=f"^{re.escape(message)}$"):
        rlx.CompileOptions(weights="q9")
    options = rlx.CompileOptions(weights="packed")
    session = rlx.Session("cpu")
    b = rlx.GraphBuilder()
    graph = b.build(b.input("x", "f32[2]") + 1.0)
    with pytest.raises(CompileError, match=r"CompileOptions\.weights: a traced .*; got Graph\."):
        session.compile(graph, options=options)
    shapes = {"w": jax.ShapeDtypeStruct((4, 4), np.float32)}
    hollow = rlx_xla.trace(lambda p, x: x @ p["w"], shapes, "f32[2, 4]", params=0)
    with pytest.raises(CompileError, match=r"weights: a function with params that have values"):
        session.compile(hollow, options=options)
    with pytest.raises(CompileError, match=r"rlx_xla\.jit .*\[weights\].*got 'packed'\."):
        rlx_xla.jit(lambda x: x, options=options)


def test_schemes_are_named(rng: np.random.Generator) -> None:
    source, _, _ = traced(rng)
    message = "or the name of a QuantScheme, is required; got 'q4k'. Did you mean 'q4_k'?"
    with pytest.raises(TraceError, match=re.escape(message)):
        quantize(source, "q4k")


@pytest.mark.parametrize("scheme", ["q4_0", "q4_1", "q8_0"])
def test_blocks_come_apart_for_devices_that_read_integers(
    scheme: str, rng: np.random.Generator
) -> None:
    source = rlx_xla.trace(wide, wide_params(rng), np.asarray([3, 70, -2], np.int32), params=0)
    packed = quantize(source, scheme)
    native = repacked(packed)
    ops = {node.op.op_name for graph in native.graph.all_graphs() for node in graph.nodes()}
    assert not {op for op in ops if op.startswith("dequant")}
    bits = sum(_bits(v.type) for v in native.graph.params)
    assert bits <= 8 * packed.packed_bytes
    ids = rng.integers(-50, 70, 3, dtype=np.int32)
    session = rlx.Session("cpu")
    for found, wanted in zip(
        session.compile(native)(ids), session.compile(packed)(ids), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-3)
    assert repacked(native) is native


@pytest.mark.parametrize("scheme", ["q5_0", "q5_1", "q4_k", "q5_k", "q6_k"])
def test_bits_come_apart_without_a_byte_more(scheme: str, rng: np.random.Generator) -> None:
    weight = (rng.normal(size=(512, 48)) / 8).astype(np.float32)
    x = rng.normal(size=(3, 512)).astype(np.float32)
    packed = quantize(rlx_xla.trace(lambda w, x: x @ w, weight, x, params=0), scheme)
    native = repacked(packed)
    assert sum(_bits(v.type) for v in native.graph.params) == 8 * packed.packed_bytes
    session = rlx.Session("cpu")
    found, wanted = session.compile(native)(x), session.compile(packed)(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", ["mlx_affine/4/64", "mxfp4", "int8"])
def test_other_schemes_stay_as_they_are(scheme: str, rng: np.random.Generator) -> None:
    weight = rng.normal(size=(256, 8)).astype(np.float32)
    x = rng.normal(size=(3, 256)).astype(np.float32)
    packed = quantize(rlx_xla.trace(lambda w, x: x @ w, weight, x, params=0), scheme)
    assert repacked(packed) is packed


def _bits(kind: Any) -> int:
    size = int(np.prod(kind.shape))
    return size * kind.dtype.bits


@pytest.mark.skipif(missing(parse_target("v5e-1")) is not None, reason="libtpu is not installed")
@pytest.mark.parametrize("scheme", ["q4_1", "q4_k", "q5_k", "q6_k"])
def test_a_tpu_keeps_weights_packed(scheme: str, rng: np.random.Generator) -> None:
    params = {"a": rng.normal(size=(1024, 2048)), "b": rng.normal(size=(2048, 1024))}
    params = {name: a.astype(np.float32) for name, a in params.items()}
    x = np.ones((8, 1024), np.float32)
    source = rlx_xla.trace(lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"], params, x, params=0)
    packed = quantize(source, scheme)
    report = rlx_xla.preflight(repacked(packed), target="tpu:v5e:1x1")
    plain = rlx_xla.preflight(source, target="tpu:v5e:1x1")
    assert report.ok, str(report)
    assert report.memory["argument"] - x.nbytes <= 1.02 * packed.packed_bytes
    assert report.memory["temp"] < packed.packed_bytes
    assert report.cycles < plain.cycles
