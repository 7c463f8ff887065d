"""A compiled graph's call against ``jax.jit`` of the same function; field case J1.

Run with ``python -m tests.benchmarks.bench_compiled`` for the table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import rlx
import rlx_xla
from tests.benchmarks.bench_host_overhead import fed, repeated
from tests.benchmarks.timing import Comparison, compare

WIDTH = 8


def _pair(x: jax.Array, y: jax.Array) -> jax.Array:
    return x * 0.5 + y


def _tree(t: dict[str, Any]) -> dict[str, Any]:
    return {"y": t["x"] * 0.5 + t["rest"][0] + t["rest"][1]}


def layers(count: int) -> tuple[Callable[..., Any], dict[str, Any]]:
    """``count`` dense layers of 8×8, and their params."""

    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(count):
                x = nn.Dense(WIDTH)(x)
            return x

    model = Stack()
    # Shapes only: flax initialises 250 layers in seconds otherwise.
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, WIDTH)))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda s: jnp.asarray(rng.standard_normal(s.shape) / WIDTH, s.dtype), shapes
    )
    return model.apply, params


def _list_of(call: Callable[..., Any]) -> Callable[..., Any]:
    """``fed`` unpacks a list of one result."""

    def run(*args: Any) -> list[Any]:
        return [call(*args)]

    return run


def two_arguments(rounds: int, *, fresh: bool) -> Comparison:
    """Two array arguments, one result."""
    x, y = jnp.ones((WIDTH, WIDTH)), jnp.ones((WIDTH, WIDTH))
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(_pair, x, y))
    label = "each fed by the last" if fresh else "repeated"
    drive = (lambda call: fed(_list_of(call), (x, y))) if fresh else (lambda c: repeated(c, (x, y)))
    # Both sides are wrapped alike when fed, so that the ratio is of the calls.
    return compare(
        f"compiled(x, y), {label}",
        drive(compiled),
        drive(jax.jit(lambda a, b: _pair(a, b))),
        drive(jax.jit(lambda a, b: _pair(a, b))),
        rounds=rounds,
    )


def tree_argument(rounds: int) -> Comparison:
    """A pytree in and a pytree out."""
    x = jnp.ones((WIDTH, WIDTH))
    argument = {"x": x, "rest": (x, x)}
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(_tree, argument))
    return compare(
        "compiled(pytree)",
        repeated(compiled, (argument,)),
        repeated(jax.jit(lambda t: _tree(t)), (argument,)),
        repeated(jax.jit(lambda t: _tree(t)), (argument,)),
        rounds=rounds,
    )


def layer_stack(count: int, rounds: int) -> Comparison:
    """``count`` layers with bound params against ``jax.jit`` over the pytree of params."""
    apply, params = layers(count)
    x = jnp.ones((1, WIDTH))
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(apply, params, x, params=0))
    return compare(
        f"{count} dense layers 8x8, params bound",
        repeated(compiled, (x,)),
        repeated(jax.jit(lambda p, a: apply(p, a)), (params, x)),
        repeated(jax.jit(lambda p, a: apply(p, a)), (params, x)),
        rounds=rounds,
    )


@functools.cache
def measure(rounds: int = 41) -> dict[str, Comparison]:
    """Measure everything once; the keys name the targets."""
    return {
        "two": two_arguments(rounds, fresh=False),
        "two_fed": two_arguments(rounds, fresh=True),
        "tree": tree_argument(rounds),
        "layers10": layer_stack(10, rounds),
        "layers250": layer_stack(250, rounds),
    }


def test_targets(benchmark: Any, rounds: int, judged: bool) -> None:
    results = measure(rounds)
    for result in results.values():
        print(result)
    apply, params = layers(10)
    x = jnp.ones((1, WIDTH))
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(apply, params, x, params=0))
    benchmark(compiled, x)
    if not judged:
        return
    assert results["two"].not_slower, results["two"]
    assert results["two_fed"].not_slower, results["two_fed"]
    assert results["tree"].within(1.10), results["tree"]
    assert results["layers250"].not_slower, results["layers250"]


def main() -> None:
    """Print the table."""
    for result in measure().values():
        print(result)


if __name__ == "__main__":
    main()
