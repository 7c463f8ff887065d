"""Models over a mesh of data and model: how their params are divided, by name."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp

import rlx_xla
from rlx.ir.graph import Graph
from rlx.sharding import P
from rlx_xla.models import minilm

MESH = {"data": 2, "model": 2}

COLUMNS = r"(query|key|value|intermediate|wq|wk|wv|gate|up)(/kernel)?$"
"""Weights whose results are divided: each device has some heads, or some of the inner width."""

ROWS = r"(attention_output|output|wo|down)(/kernel)?$"
"""Weights that take such results: each device has a part of a sum."""

VECTORS = r"(query|key|value|intermediate)/bias$"


def spec_of(name: str) -> Any:
    """Tensor parallelism as Shoeybi et al. 2019 (arXiv:1909.08053) divide a layer."""
    if re.search(COLUMNS, name):
        return P(None, "model")
    if re.search(ROWS, name) or name.endswith("word_embedding/embedding"):
        return P("model")
    return P("model") if re.search(VECTORS, name) else P()


def divided(graph: Graph, mesh: dict[str, int] | None = None) -> Graph:
    """Inputs over data, params over model, the first output over data."""
    specs: dict[str, object] = {v.name: P("data") for v in graph.inputs}
    specs |= {v.name: spec_of(v.name) for v in graph.params}
    return graph.with_shardings(specs, mesh=mesh or MESH, outputs={0: P("data")})


def minilm_graph(
    batch: int, seq: int, config: minilm.MiniLmConfig = minilm.MINILM
) -> rlx_xla.Traced:
    """MiniLM with abstract params."""
    ids = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    model = minilm.MiniLm(config)
    made = jax.eval_shape(lambda ids: model.init(jax.random.key(0), ids, ids), ids)

    def encode(params: Any, ids: Any, mask: Any) -> Any:
        return minilm.encode(params, ids, mask, config=config)

    return rlx_xla.trace(encode, made["params"], ids, ids, params=0)


def decoder_params(width: int, heads: int, kv_heads: int, inner: int, words: int) -> Any:
    """Shapes of a decoder of two layers, for `decode`."""
    size = width // heads

    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, jnp.bfloat16)

    layer = {
        "norm1": shape(width),
        "wq": shape(width, heads * size),
        "wk": shape(width, kv_heads * size),
        "wv": shape(width, kv_heads * size),
        "wo": shape(heads * size, width),
        "norm2": shape(width),
        "gate": shape(width, inner),
        "up": shape(width, inner),
        "down": shape(inner, width),
    }
    return {"words": shape(words, width), "norm": shape(width), "layers": [layer, dict(layer)]}


def decode(params: Any, ids: Any, *, heads: int, kv_heads: int) -> Any:
    """Logits of a Llama-like decoder: RMS norms, grouped heads, a gated feed-forward layer."""

    def norm(x: Any, gain: Any) -> Any:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
        return (wide * scale).astype(x.dtype) * gain[None, None]

    x = params["words"][ids]
    batch, seq, _ = x.shape
    seen = jnp.tril(jnp.ones((seq, seq), bool))
    for layer in params["layers"]:
        h = norm(x, layer["norm1"])
        q = (h @ layer["wq"]).reshape(batch, seq, kv_heads, heads // kv_heads, -1)
        k, v = ((h @ layer[name]).reshape(batch, seq, kv_heads, -1) for name in ("wk", "wv"))
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
        weights = jax.nn.softmax(jnp.where(seen[None, None, None], scores, -jnp.inf)).astype(
            x.dtype
        )
        mixed = jnp.einsum("bhgqk,bkhd->bqhgd", weights, v).reshape(batch, seq, -1)
        x = x + mixed @ layer["wo"]
        h = norm(x, layer["norm2"])
        x = x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"]
    return norm(x, params["norm"]) @ params["words"].T


def decoder_graph(batch: int, seq: int, **sizes: int) -> Graph:
    """A decoder of two layers with abstract params."""
    heads, kv_heads = sizes["heads"], sizes["kv_heads"]
    ids = jax.ShapeDtypeStruct((batch, seq), jnp.int32)

    def fn(params: Any, ids: Any) -> Any:
        return decode(params, ids, heads=heads, kv_heads=kv_heads)

    graph: Graph = rlx_xla.trace(fn, decoder_params(**sizes), ids, params=0).graph
    return graph
