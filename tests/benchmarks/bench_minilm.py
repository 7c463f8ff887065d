"""MiniLM: trace and lowering against ``jax.jit(f).lower``, the steady-state run, and its parts.

Run with ``python -m tests.benchmarks.bench_minilm`` for the table, and with ``parts`` behind it for
dense layers and norms of residual sums at the sizes that bound their kernels.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rlx
import rlx_xla
from rlx_xla.kernels.library import matmul
from rlx_xla.kernels.library.fused_products import FINISHED
from rlx_xla.models import minilm
from tests.benchmarks.bench_host_overhead import repeated
from tests.benchmarks.timing import Comparison, compare

BATCHES = ((1, 8), (1, 16), (8, 32))
FASTER = {(1, 8): 1.3, (1, 16): 1.3}
"""How many times faster than ``jax.jit`` a batch has to be on a CPU with AVX-512."""


DENSE = tuple(
    (rows, width, count)
    for width, count in ((128, 8), (384, 24), (1024, 8))
    for rows in (8, 16, 32, 64)
    if FINISHED.holds(rows, width**2)
)
"""Rows, width and number of dense layers, one after the other, each with weights of its own."""

NORMS = ((2, 256), (16, 384), (256, 384), (1024, 1024))
"""Rows and width of residual sums that are normalised."""


@functools.cache
def _params() -> Any:
    return jax.tree.map(jnp.asarray, minilm.load_params())


def _batch(rows: int, length: int) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, 20000, (rows, length), dtype=np.int32)
    return jnp.asarray(ids), jnp.ones((rows, length), jnp.int32)


def front_end(rounds: int) -> Comparison:
    """Trace, passes and lowering to StableHLO against ``jax.jit(f).lower``, caches cleared."""
    params, (ids, mask) = _params(), _batch(1, 8)
    session = rlx.Session("cpu")

    def ours() -> None:
        traced = rlx_xla.trace(minilm.embed, params, ids, mask, params=0)
        lir = session.lower(traced.graph)
        chosen = lir.plan.implementations.items()
        emitters = {node: made.emit for node, made in chosen if made.kind == "kernel"}
        rlx_xla.lowering.module.lower_to_module(lir.graph, "cpu", emitters=emitters)

    def theirs() -> None:
        jax.jit(minilm.embed).lower(params, ids, mask)

    def drive(work: Callable[[], None]) -> Callable[[int], None]:
        def run(calls: int) -> None:
            for _ in range(min(calls, 1)):
                jax.clear_caches()
                work()

        return run

    return compare(
        "MiniLM: trace + passes + lowering", drive(ours), drive(theirs), drive(theirs),
        rounds=rounds, round_seconds=1e-9,
    )  # fmt: skip


def steady_state(rows: int, length: int, rounds: int) -> Comparison:
    """Embedding a batch with bound params against ``jax.jit`` over the params."""
    params, batch = _params(), _batch(rows, length)
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(minilm.embed, params, *batch, params=0))
    return compare(
        f"MiniLM: embed [{rows}, {length}]",
        repeated(compiled, batch),
        repeated(jax.jit(lambda p, a, b: minilm.embed(p, a, b)), (params, *batch)),
        repeated(jax.jit(lambda p, a, b: minilm.embed(p, a, b)), (params, *batch)),
        rounds=rounds,
        round_seconds=0.02,
    )


def dense(rows: int, width: int, count: int, rounds: int) -> Comparison:
    """Dense layers with an exact gelu against ``jax.jit``, weights bound."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(rows, width)), jnp.float32)
    weights = [
        (
            jnp.asarray(rng.normal(size=(width, width)) / np.sqrt(width), jnp.float32),
            jnp.asarray(rng.normal(size=width), jnp.float32),
        )
        for _ in range(count)
    ]

    def layers(weights: Any, x: jax.Array) -> jax.Array:
        for w, b in weights:
            x = jax.nn.gelu(x @ w + b[None], approximate=False)
        return x

    name = f"{count} dense layers of {width}, {rows} rows"
    return _part(name, layers, weights, x, "fused_matmul_bias_act.cpu.ffi", rounds)


def norms(rows: int, width: int, rounds: int) -> Comparison:
    """Norms of residual sums against ``jax.jit``, four one after the other."""
    rng = np.random.default_rng(0)
    x, residual = (jnp.asarray(rng.normal(size=(rows, width)), jnp.float32) for _ in range(2))
    vectors = jnp.asarray(rng.normal(size=(2, width)), jnp.float32)

    def layers(vectors: jax.Array, x: jax.Array) -> jax.Array:
        gamma, beta = vectors
        for _ in range(4):
            total = x + residual
            apart = total - total.mean(axis=-1, keepdims=True)
            variance = jnp.square(apart).mean(axis=-1, keepdims=True)
            x = apart * jax.lax.rsqrt(variance + 1e-6) * gamma[None] + beta[None]
        return x

    name = f"4 residual norms of {width}, {rows} rows"
    return _part(name, layers, vectors, x, "fused_residual_ln.cpu.ffi", rounds)


def _part(
    name: str, layers: Callable[..., Any], bound: Any, x: jax.Array, kernel: str, rounds: int
) -> Comparison:
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(layers, bound, x, params=0))
    taken = {c.implementation for c in compiled.report().choices if c.kind == "kernel"}
    assert kernel in taken or not matmul.WIDE, taken
    return compare(
        name,
        repeated(compiled, (x,)),
        repeated(jax.jit(lambda p, a: layers(p, a)), (bound, x)),
        repeated(jax.jit(lambda p, a: layers(p, a)), (bound, x)),
        rounds=rounds,
    )


def parts(rounds: int = 21) -> Iterator[Comparison]:
    """Dense layers and norms at the sizes that bound their kernels."""
    for sizes in DENSE:
        yield dense(*sizes, rounds)
    for rows, width in NORMS:
        yield norms(rows, width, rounds)


@functools.cache
def measure(
    rounds: int = 21, batches: tuple[tuple[int, int], ...] = BATCHES
) -> dict[str, Comparison]:
    """Measure everything once; the keys name the targets."""
    results = {"front_end": front_end(max(3, rounds // 3))}
    for rows, length in batches:
        results[f"embed_{rows}x{length}"] = steady_state(rows, length, rounds)
    return results


def test_targets(benchmark: Any, rounds: int, judged: bool) -> None:
    # Without judgement one batch shows that the measuring works.
    results = measure(rounds, BATCHES if judged else BATCHES[1:2])
    for result in results.values():
        print(result)
    batch = _batch(1, 8)
    traced = rlx_xla.trace(minilm.embed, _params(), *batch, params=0)
    benchmark(rlx.Session("cpu").compile(traced), *batch)
    if not judged:
        return
    assert results["front_end"].within(1.5), results["front_end"]
    for rows, length in BATCHES:
        result = results[f"embed_{rows}x{length}"]
        assert result.not_slower
        if matmul.WIDE and (rows, length) in FASTER:
            assert result.within(1 / FASTER[rows, length]), result


def test_parts(rounds: int, judged: bool) -> None:
    few = min(rounds, 3)
    found = parts(rounds) if judged else (dense(8, 128, 2, few), norms(2, 256, few))
    for result in found:
        print(result)
        assert result.not_slower or not judged, result


def main() -> None:
    """Print the table."""
    for result in parts() if "parts" in sys.argv[1:] else measure().values():
        print(result, flush=True)


if __name__ == "__main__":
    main()
