"""Tokens per second of a 1B Llama on an NVIDIA GPU, against ``jax.jit`` of its weights in bf16.

Run with ``python -m tests.benchmarks.generation_cuda [scheme ...]``. Weights are drawn, and each
matrix repeats 64 rows of them; its vocabulary is small. ``jax.jit`` is measured twice: reading each
token before the next step, as text is shown, and reading none before the last.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx.quant import QuantScheme, encode, open_gguf
from rlx_xla.generation.model import LanguageModel
from rlx_xla.generation.sampling import SamplingOptions
from rlx_xla.models import decoder
from rlx_xla.models.decoder_config import read_config
from rlx_xla.models.decoder_params import load_params, vocabulary_size
from rlx_xla.models.packed import unpacked
from tests.rlx_xla import tiny_gguf

SIZES = {
    "embedding_length": 2048,
    "feed_forward_length": 8192,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "attention.key_length": 64,
    "attention.value_length": 64,
    "context_length": 8192,
}
PROMPT = "the a the"
CAPACITY = 512


def write(path: Path, scheme: str, layers: int) -> Path:
    """Write a model of these sizes."""
    import gguf

    rng = np.random.default_rng(0)
    made = gguf.GGUFWriter(path, "llama")
    for name, size in {**SIZES, "block_count": layers}.items():
        made.add_uint32(f"llama.{name}", size)
    made.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    made.add_float32("llama.rope.freq_base", 10_000.0)
    tiny_gguf._vocabulary(made, "gpt2")
    width, inner = SIZES["embedding_length"], SIZES["feed_forward_length"]
    narrow = SIZES["attention.head_count_kv"] * SIZES["attention.key_length"]
    words = len(tiny_gguf.LETTERS) + len(tiny_gguf.MERGES) + 4

    def matrix(name: str, rows: int, columns: int) -> None:
        drawn = rng.normal(0, columns**-0.5, (64, columns)).astype(np.float32)
        codes = np.tile(encode(QuantScheme.gguf(scheme), drawn), (-(-rows // 64), 1))[:rows]
        kind = gguf.GGMLQuantizationType[scheme]
        made.add_tensor(f"{name}.weight", np.ascontiguousarray(codes), raw_dtype=kind)

    def vector(name: str) -> None:
        made.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    matrix("token_embd", words, width)
    vector("output_norm")
    for at in (f"blk.{i}" for i in range(layers)):
        for name, rows in (("q", width), ("k", narrow), ("v", narrow), ("output", width)):
            matrix(f"{at}.attn_{name}", rows, width)
        for name in ("gate", "up"):
            matrix(f"{at}.ffn_{name}", inner, width)
        matrix(f"{at}.ffn_down", width, inner)
        vector(f"{at}.attn_norm")
        vector(f"{at}.ffn_norm")
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    return path


def ours(path: Path, device: str, options: SamplingOptions | None, tokens: int) -> float:
    """Tokens a second, as a caller of ``generate`` gets them."""
    model = LanguageModel(path, device=device)
    model.generate(PROMPT, max_tokens=4, capacity=CAPACITY, sampling=options)
    rates: list[float] = []
    for _ in range(4):
        model.generate(PROMPT, max_tokens=tokens, capacity=CAPACITY, sampling=options)
        rates.append(model.timings.decode_rate())
    return max(rates)


def jitted(path: Path, device: str, tokens: int) -> tuple[float, float]:
    """Tokens a second of ``jax.jit``: reading each token at once, and reading none."""
    file = open_gguf(path)
    config = read_config(file.metadata, vocabulary=vocabulary_size(file))
    config = dataclasses.replace(config, span=decoder.span_for(device))
    params = jax.device_put(unpacked(load_params(file, config), jnp.bfloat16))

    def step(params: Any, ids: Any, offset: Any, caches: Any) -> Any:
        start = jnp.zeros(1, jnp.int32)
        hidden, caches = decoder.forward(params, config, ids, start, offset, caches)
        logits = decoder.logits_of(params, config, hidden[:, -1])
        return jnp.argmax(logits, -1).astype(jnp.int32)[:, None], offset + 1, caches

    compiled = jax.jit(step, donate_argnums=(3,))
    best = [0.0, 0.0]
    for _ in range(4):
        for reads in (True, False):
            caches = decoder.empty_caches(config, 1, CAPACITY)
            state = compiled(params, np.ones((1, 1), np.int32), jnp.int32(0), caches)
            jax.block_until_ready(state)
            began = time.perf_counter()
            for _ in range(tokens):
                state = compiled(params, *state)
                if reads:
                    np.asarray(state[0])
            jax.block_until_ready(state)
            rate = tokens / (time.perf_counter() - began)
            best[1 - reads] = max(best[1 - reads], rate)
    return best[0], best[1]


def main(
    schemes: list[str], device: str = "cuda", layers: int = 16, tokens: int = 256
) -> dict[str, float]:
    """Print a line for each scheme and for ``jax.jit``; return the rates."""
    rates: dict[str, float] = {}
    drawn = SamplingOptions(temperature=0.8, top_k=40, top_p=0.9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for scheme in schemes:
            write(path, scheme, layers)
            rates[scheme] = ours(path, device, None, tokens)
            rates[f"{scheme}, drawn"] = ours(path, device, drawn, tokens)
        names = ("jax.jit bf16, each token read", "jax.jit bf16, none read")
        rates |= dict(zip(names, jitted(path, device, tokens), strict=True))
    for name, rate in rates.items():
        print(f"{name:<32} {rate:8.1f} tokens/s")
    return rates


if __name__ == "__main__":
    main(sys.argv[1:] or ["Q4_0"])
