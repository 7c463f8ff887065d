"""Attention whose bias is a causal mask: by the causal kernel, and the same NaN and Inf."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.control_flow import Cond
from rlx.passes import PassContext, Recognize, Specialize
from rlx.passes.bind_params import BindParams, KnownValues
from rlx.passes.canonicalize import Canonicalize
from rlx.passes.eliminate import EliminateCommonSubexpressions
from rlx.passes.inline_calls import InlineCalls
from rlx.passes.specialize import added_masks
from rlx.sharding import Mesh

B, S, H, D = 2, 12, 3, 4
LOWEST = float(np.finfo(np.float32).min)


def attention(mask: Callable[[int, int], Any]) -> Callable[..., Any]:
    """Scores and a mask of (queries, keys) that is added."""

    def function(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        bias = jnp.asarray(mask(q.shape[1], k.shape[1]), scores.dtype)
        scores = scores + jnp.reshape(bias, (1,) * (4 - bias.ndim) + bias.shape)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

    return function


def triu(fill: float, k: int = 1, *, end: bool = False) -> Callable[[int, int], Any]:
    def made(queries: int, keys: int) -> Any:
        first = k + (keys - queries if end else 0)
        # 0 · −Inf is what jnp.triu of a full array leaves out by choosing.
        return jnp.triu(jnp.full((queries, keys), fill), k=first)

    return made


def chosen(fill: float) -> Callable[[int, int], Any]:
    def made(queries: int, keys: int) -> Any:
        seen = jnp.arange(keys)[None, :] <= jnp.arange(queries)[:, None] + (keys - queries)
        return jnp.where(seen, 0.0, fill)[None, None]

    return made


def literal(fill: float) -> Callable[[int, int], Any]:
    return lambda queries, keys: np.triu(np.full((queries, keys), fill, np.float32), 1)


def recognized(graph: rlx.Graph) -> rlx.Graph:
    for step in (InlineCalls(), Canonicalize(), EliminateCommonSubexpressions(), Recognize()):
        graph = step.run(graph, PassContext(platform="cpu"))
    return graph


def specialized(graph: rlx.Graph, monkeypatch: pytest.MonkeyPatch) -> rlx.Graph:
    """What Specialize makes of recognised attention."""
    monkeypatch.setattr(added_masks, "MIN_SCORES", 0)
    ctx = PassContext(platform="cpu", has_kernel=lambda node: isinstance(node.op, Attention))
    return Specialize().run(graph, ctx)


def branches(graph: rlx.Graph) -> list[list[MaskKind]]:
    """The kinds of attention in each branch."""
    return [
        [n.op.mask_kind for n in branch.nodes() if isinstance(n.op, Attention)]
        for node in graph.nodes()
        if isinstance(node.op, Cond)
        for branch in node.op.branches
    ]


def drawn(rng: np.random.Generator, keys: int = S, dtype: Any = np.float32) -> list[Any]:
    return [rng.standard_normal((B, size, H, D)).astype(dtype) for size in (S, keys, keys)]


def values(graph: rlx.Graph, arrays: list[Any]) -> Any:
    (made,) = rlx.interpret(graph, dict(zip((v.name for v in graph.inputs), arrays, strict=True)))
    return np.asarray(made, np.float64)


WAYS: dict[str, tuple[Callable[[int, int], Any], int, Any]] = {
    "triu of −Inf": (triu(-math.inf), S, np.float32),
    "triu of −1e9": (triu(-1e9), S, np.float32),
    "triu of the lowest": (triu(LOWEST), S, np.float32),
    "triu of the lowest, f16": (triu(-65504.0), S, np.float16),
    "triu of the end of more keys": (triu(-math.inf, end=True), S + 5, np.float32),
    "chosen": (chosen(-math.inf), S, np.float32),
    "chosen, more keys": (chosen(-1e10), S + 3, np.float32),
    "written out": (literal(-math.inf), S, np.float32),
}


@pytest.mark.parametrize("name", WAYS)
def test_added_causal_masks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng()
    mask, keys, dtype = WAYS[name]
    arrays = drawn(rng, keys, dtype)
    traced = rlx_xla.trace(attention(mask), *map(jnp.asarray, arrays))
    graph = recognized(_closed(traced))
    made = specialized(graph, monkeypatch)
    assert branches(made) == [[MaskKind.BIAS], [MaskKind.CAUSAL]]
    limit = 1e-2 if dtype is np.float16 else 1e-5
    for change in (None, "large", "nan", "inf", "-inf", "huge"):
        for place in range(3):
            arrays = drawn(rng, keys, dtype)
            # The last key is hidden from all queries but the last. Scores of f16 stay in range.
            if change == "large":
                arrays[place] *= 100
            elif change == "huge":
                arrays[place][:, -1] = 100 if dtype is np.float16 else 1e25
            elif change:
                arrays[place][0, -1, 1, 2] = float(change)
            found, wanted = values(made, arrays), values(graph, arrays)
            np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
            np.testing.assert_allclose(found, wanted, rtol=limit, atol=limit)


def _closed(traced: Any) -> rlx.Graph:
    """The graph with what it captured as constants."""
    return BindParams(values=KnownValues(dict(traced.params))).run(traced.graph, PassContext())


LOOKALIKES: dict[str, tuple[Callable[[int, int], Any], int]] = {
    "the query itself is hidden": (triu(-math.inf, 0), S),
    "one more key is seen": (triu(-math.inf, 2), S),
    "keys before the query": (
        lambda queries, keys: jnp.tril(jnp.full((queries, keys), -math.inf), -1),
        S,
    ),
    "−1e4": (triu(-1e4), S),
    "a large number": (triu(1e9), S),
    "the beginning of more keys": (triu(-math.inf), S + 5),
    "the end of fewer keys": (triu(-math.inf, end=True), S - 2),
    "seen keys gain": (lambda queries, keys: jnp.where(
        jnp.tril(jnp.ones((queries, keys), bool)), 1.0, -math.inf), S),
    "two limits": (lambda queries, keys: jnp.where(
        jnp.tril(jnp.ones((queries, keys), bool)) & (jnp.arange(keys) > 2)[None],
        0.0, -math.inf), S),
    "written out, but for one": (
        lambda queries, keys: np.where(
            np.arange(keys) == 3, 0.5, literal(-math.inf)(queries, keys)
        ).astype(np.float32),
        S,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKALIKES)
def test_other_biases_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng()
    mask, keys = LOOKALIKES[name]
    traced = rlx_xla.trace(attention(mask), *map(jnp.asarray, drawn(rng, keys)))
    made = specialized(recognized(_closed(traced)), monkeypatch)
    kinds = [n.op.mask_kind for n in made.nodes() if isinstance(n.op, Attention)]
    assert kinds == [MaskKind.BIAS]


def test_where_nothing_gains_a_bias_stays() -> None:
    """Strict, without a kernel, and with few scores."""
    arrays = [jnp.ones((B, S, H, D))] * 3
    graph = recognized(rlx_xla.trace(attention(triu(-math.inf)), *arrays).graph)
    for ctx in (
        PassContext(platform="cpu"),
        PassContext(platform="cpu", has_kernel=lambda node: True),
        PassContext(
            platform="cpu",
            has_kernel=lambda node: True,
            options=rlx.CompileOptions(strict=True),
        ),
    ):
        assert not any(isinstance(n.op, Cond) for n in Specialize().run(graph, ctx).nodes())


def test_over_several_devices_a_bias_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [jnp.ones((B, S, H, D))] * 3
    graph = recognized(rlx_xla.trace(attention(triu(-math.inf)), *arrays).graph)
    name = graph.inputs[0].name
    spread = graph.with_shardings({name: ("d", None, None, None)}, mesh=Mesh({"d": 2}))
    assert not branches(specialized(spread, monkeypatch))


def test_the_mask_is_made_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [jnp.ones((B, S, H, D))] * 3
    traced = rlx_xla.trace(attention(triu(-math.inf)), *arrays)
    made = specialized(recognized(traced.graph), monkeypatch)
    assert not any(v.shape[-2:] == (S, S) for node in made.nodes() for v in node.results)


def test_compiled_as_jax_computes() -> None:
    rng = np.random.default_rng()
    q, k, v = (rng.standard_normal((1, 512, 1, 8)).astype(np.float32) for _ in range(3))
    function = attention(triu(-math.inf))
    compiled = rlx_xla.jit(function)
    wanted = jax.jit(function)
    np.testing.assert_allclose(compiled(q, k, v), wanted(q, k, v), rtol=1e-4, atol=1e-5)
    told = str(compiled.report())
    assert "Attention with a causal mask that is added, by the causal kernel where all is" in told
    k[0, -1, 0, 3] = np.nan  # hidden from all queries but the last, and added to each of them
    assert np.isnan(np.asarray(wanted(q, k, v))).all()
    np.testing.assert_array_equal(compiled(q, k, v), wanted(q, k, v))
