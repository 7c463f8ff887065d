"""``rlx_xla.quantize``: weights of traced functions become packed params."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402  (after importorskip)

import rlx  # noqa: E402
import rlx_xla  # noqa: E402
from rlx.errors import TraceError  # noqa: E402
from rlx_xla.quantize import SHORT, quantize  # noqa: E402


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


def test_where_chooses_and_the_table_says_what_stays(rng: np.random.Generator) -> None:
    source, _, _ = traced(rng)
    names = [v.name for v in source.graph.params]
    up = next(n for n in names if n.endswith("up"))
    found = quantize(source, "q4_k", where="*up")
    assert [w.name for w in found.weights] == [up]
    assert {v.name for v in found.graph.params} == {*names, f"{up}/codes"} - {up}
    assert f"{found.weights[0].packed_bytes:,}" in str(found)
    w = rng.normal(size=(100, 8)).astype(np.float32)
    small = rlx_xla.trace(lambda w, x: x @ w, w, np.ones((2, 100), np.float32), params=0)
    stays = quantize(small, "q4_k")
    assert stays.weights[0].kept == "stays: K = 100 is not a multiple of 256"
    assert "stays: K = 100" in str(stays)
    assert rlx.same(stays.graph, small.graph)


def test_a_weight_that_something_else_reads_is_none(rng: np.random.Generator) -> None:
    w = rng.normal(size=(64, 64)).astype(np.float32)
    x = np.ones((2, 64), np.float32)
    tied = rlx_xla.trace(lambda w, x: x @ w + jnp.sum(w), w, x, params=0)
    with pytest.raises(TraceError, match=r"quantize \[where\]: .*\(none\); got '\*'"):
        quantize(tied, "int8")


def test_schemes_are_named(rng: np.random.Generator) -> None:
    source, _, _ = traced(rng)
    message = "or the name of a QuantScheme, is required; got 'q4k'. Did you mean 'q4_k'?"
    with pytest.raises(TraceError, match=re.escape(message)):
        quantize(source, "q4k")
