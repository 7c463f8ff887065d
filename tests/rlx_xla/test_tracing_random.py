"""jax.random traces into ops without an opaque node, and gives JAX's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax

import rlx
import rlx_xla
from rlx.ir.interpret import run

KEYS = {
    "raw": lambda: jr.PRNGKey(3),
    "threefry": lambda: jr.key(3),
    "rbg": lambda: jr.key(3, impl="rbg"),
    "unsafe_rbg": lambda: jr.key(3, impl="unsafe_rbg"),
}


def data(value: Any) -> np.ndarray[Any, Any]:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jr.key_data(value)
    return np.asarray(value)


def check(fn: Callable[..., Any], *args: Any, exact: bool = True) -> None:
    """No opaque node; NumPy's meaning and the compiled graph equal ``jax.jit``, bit for bit."""
    traced = rlx_xla.trace(fn, *args)
    assert traced.coverage().external == 0, traced.coverage()
    wanted = [data(a) for a in jax.tree.leaves(jax.jit(fn)(*args))]
    meaning = run(traced.graph, [data(a) for a in jax.tree.leaves(args)])
    compiled = [data(a) for a in jax.tree.leaves(rlx.Session("cpu").compile(traced)(*args))]
    for want, plain, fast in zip(wanted, meaning, compiled, strict=True):
        assert plain.dtype == fast.dtype == want.dtype
        # XLA contracts a·b + c where NumPy rounds twice.
        np.testing.assert_allclose(
            plain, want, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6
        )
        np.testing.assert_array_equal(fast, want)


@pytest.mark.parametrize("kind", KEYS)
def test_keys(kind: str) -> None:
    key = KEYS[kind]()
    keys = jr.split(key, 3)
    numbers = jnp.arange(3)
    check(lambda k: (jr.split(k, 5), jr.fold_in(k, 7)), key)
    check(lambda k, n: jax.vmap(jr.fold_in, in_axes=(None, 0))(k, n), key, numbers)
    check(lambda ks, n: (jax.vmap(jr.fold_in)(ks, n), ks[1:]), keys, numbers)
    check(lambda k: lax.fori_loop(0, 3, lambda i, k: jr.split(k)[0], k), key)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("bits", ["uint8", "uint16", "uint32"])
def test_bits(kind: str, bits: str) -> None:
    key = KEYS[kind]()
    shapes = ((), (0,), (5,), (3, 7))
    check(lambda k: [jr.bits(k, shape, bits) for shape in shapes], key)
    check(jax.vmap(lambda k: jr.bits(k, (4,), bits)), jr.split(key, 3))


DISTRIBUTIONS: dict[str, Callable[[Any], Any]] = {
    "uniform": lambda k: jr.uniform(k, (3, 5)),
    "bernoulli": lambda k: jr.bernoulli(k, 0.3, (7,)),
    "permutation": lambda k: jr.permutation(k, 11),
    "randint": lambda k: jr.randint(k, (9,), -3, 20),
    "categorical": lambda k: jr.categorical(k, jnp.ones((4, 5))),
    "choice": lambda k: jr.choice(k, 10, (4,), replace=False),
    "scanned": lambda k: lax.scan(lambda c, k: (c, jr.uniform(k)), 0.0, jr.split(k, 4))[1],
    "chosen": lambda k: lax.cond(jr.uniform(k) > 0.5, lambda k: k, lambda k: jr.fold_in(k, 1), k),
}


@pytest.mark.parametrize("kind", ["raw", "threefry"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(kind: str, name: str) -> None:
    check(DISTRIBUTIONS[name], KEYS[kind]())


@pytest.mark.parametrize("kind", ["threefry", "rbg"])
def test_normal(kind: str) -> None:
    check(lambda k: jr.normal(k, (65,)), KEYS[kind](), exact=False)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_seeds(impl: str) -> None:
    check(lambda s: jr.key(s, impl=impl), jnp.int32(-5))
    check(lambda s: jax.vmap(lambda n: jr.key(n, impl=impl))(s), jnp.arange(3, dtype=jnp.uint32))
    check(lambda x: jr.uniform(jr.key(7, impl=impl), (3,)) + x, jnp.zeros(3))


def test_dropout() -> None:
    layer = nn.Dropout(0.5, deterministic=False)
    check(lambda k, x: layer.apply({}, x, rngs={"dropout": k}), jr.key(1), jnp.ones((4, 8)))


def test_the_numbers_of_a_shape_bound_later() -> None:
    traced = rlx_xla.trace(lambda k, x: jr.uniform(k, x.shape), "u32[2]", "f32[n, 3]")
    assert traced.coverage().external == 0
    compiled = rlx.Session("cpu").compile(traced)
    key = jr.PRNGKey(5)
    for n in (1, 4):
        found = compiled(key, jnp.zeros((n, 3)))
        np.testing.assert_array_equal(found, jr.uniform(key, (n, 3)))
