"""``rlx_xla.jit`` beside ``jax.jit``: calls, transformations, programs and their reasons."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import RunError, TraceError
from rlx_xla._jax_compat.jaxpr import enable_x64


def mixed(x: Any, y: Any) -> Any:
    return jnp.sin(x) * y + jax.nn.softmax(x)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def loss(fn: Callable[..., Any], y: Any) -> Callable[[Any], Any]:
    return lambda x: jnp.sum(fn(x, y) ** 2)


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "grad": jax.grad,
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": jax.hessian,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])).sum()),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, 2 * x])),
    "grad of scan": lambda f: jax.grad(
        lambda x: jax.lax.scan(lambda c, t: (c + f(t * c), c), 1.0, jnp.stack([x, x]))[0]
    ),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformations_agree_with_jax(name: str) -> None:
    x, y = draw(7), draw(7, seed=1)
    fast = rlx_xla.jit(mixed)
    transform = TRANSFORMS[name]
    found, wanted = transform(loss(fast, y))(x), transform(loss(mixed, y))(x)
    chex.assert_trees_all_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_vmap_and_nesting() -> None:
    xs, y = draw(5, 7), draw(7, seed=1)
    fast = rlx_xla.jit(mixed)
    wanted = jax.vmap(mixed, in_axes=(0, None))(xs, y)
    chex.assert_trees_all_close(jax.vmap(fast, in_axes=(0, None))(xs, y), wanted, rtol=1e-5)
    for outer in (jax.jit, rlx_xla.jit):
        chex.assert_trees_all_close(outer(fast)(xs[0], y), mixed(xs[0], y), rtol=1e-5)
    total = rlx_xla.jit(lambda a: jax.lax.psum(a, "i"))
    chex.assert_trees_all_close(jax.vmap(total, axis_name="i")(xs)[0], xs.sum(0), rtol=1e-5)


def test_loops_have_forward_derivatives() -> None:
    @rlx_xla.jit
    def power(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))[1]

    x = draw(3)
    chex.assert_trees_all_close(jax.jacfwd(power)(x), np.diag(4 * x**3), rtol=1e-5)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(lambda a: power(a).sum())(x)


def test_captured_tracers_and_arrays() -> None:
    assert jax.grad(lambda a: rlx_xla.jit(lambda x: x * a)(jnp.ones(3)).sum())(2.0) == 3.0
    big = jnp.asarray(draw(1000))
    fast = rlx_xla.jit(lambda x: x * big.sum() + big[:3])
    x = draw(3)
    chex.assert_trees_all_close(fast(x), jax.jit(fast)(x), rtol=1e-5)
    chex.assert_trees_all_close(
        jax.grad(lambda a: fast(a).sum())(x), jnp.full(3, big.sum()), rtol=1e-5
    )


def test_effects(capfd: pytest.CaptureFixture[str]) -> None:
    @rlx_xla.jit
    def fn(x: Any) -> Any:
        jax.debug.print("sum {}", x.sum())
        return x * 2

    fn(jnp.ones(3))
    jax.grad(lambda a: fn(a).sum())(jnp.ones(3))
    jax.jit(fn)(jnp.ones(3))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("sum 3.0") == 3
    twice = rlx_xla.jit(
        lambda a: jax.pure_callback(
            lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(a.shape, a.dtype), a
        )
    )
    for call in (twice, jax.jit(twice)):
        chex.assert_trees_all_close(call(jnp.ones(3)), jnp.full(3, 2.0))


def test_arguments_as_jax_takes_them() -> None:
    @rlx_xla.jit
    def fn(x: Any, *, k: Any = 2.0, d: Any = None) -> Any:
        return {"a": x * k, "b": (d["q"] + 1 if d else x,)}

    plain = jax.jit(fn.__wrapped__)
    x = draw(5)
    for kwargs in ({}, {"k": 3}, {"d": {"q": np.arange(4)}}, {"k": np.float64(2)}):
        found, wanted = fn(x, **kwargs), plain(x, **kwargs)
        chex.assert_trees_all_close(found, wanted)
        chex.assert_trees_all_equal_dtypes(found, wanted)
    with pytest.raises(TypeError):
        fn("text")
    with pytest.raises(TypeError):
        fn(x, x)


def test_static_arguments() -> None:
    @functools.partial(rlx_xla.jit, static_argnames=("n", "mode"))
    def fn(x: Any, n: int, mode: str = "mul") -> Any:
        return x * n if mode == "mul" else x - n

    x = draw(5)
    chex.assert_trees_all_close((fn(x, 2), fn(x, 3), fn(x, n=3, mode="sub")), (x * 2, x * 3, x - 3))
    chex.assert_trees_all_close(fn(x, 3, "sub"), x - 3)
    with pytest.raises(ValueError, match="Non-hashable static arguments"):
        fn(x, [1])
    assert fn.specializations()[1].reason == "static n: 2 → 3"


def test_methods_and_disable_jit() -> None:
    class Model:
        scale = 2.0

        @functools.partial(rlx_xla.jit, static_argnums=0)
        def __call__(self, x: Any) -> Any:
            return x * self.scale

    x = draw(3)
    chex.assert_trees_all_close(Model()(x), x * 2)
    seen: list[Any] = []
    fn = rlx_xla.jit(lambda a: seen.append(a) or a * 2)
    with jax.disable_jit():
        chex.assert_trees_all_close(fn(x), x * 2)
    assert not isinstance(seen[0], jax.core.Tracer)


def test_weak_types_keys_and_x64() -> None:
    fn = rlx_xla.jit(lambda x, y: x * y)
    plain = jax.jit(lambda x, y: x * y)
    for args in ((1.0, 2.0), (1, 2.5), (jnp.ones(3), 2.0), (jnp.ones(3, jnp.bfloat16), 2)):
        found, wanted = fn(*args), plain(*args)
        assert (found.dtype, found.weak_type) == (wanted.dtype, wanted.weak_type)
    assert fn(np.arange(3), np.float64(2)).dtype == jnp.float32
    with enable_x64():
        assert fn(np.arange(3), np.float64(2)).dtype == jnp.float64
    key = jax.random.key(0)
    split = rlx_xla.jit(lambda k: jax.random.split(k, 3))
    wanted = jax.random.key_data(jax.random.split(key, 3))
    chex.assert_trees_all_equal(jax.random.key_data(split(key)), wanted)


def test_params_stay_and_are_bound_again() -> None:
    fast = rlx_xla.jit(lambda p, x: x @ p["w"] + p["b"], params=0)
    params = {"w": draw(3, 5), "b": np.zeros(5, np.float32)}
    x = draw(3, seed=1)
    other = {**params, "b": np.ones(5, np.float32)}
    for given in (params, other, params):
        chex.assert_trees_all_close(fast(given, x), x @ given["w"] + given["b"], rtol=1e-5)
    assert len(fast.specializations()) == 1
    grads = jax.grad(lambda p: fast(p, x).sum())(params)
    chex.assert_trees_all_close(grads["b"], jnp.ones(5))


def test_params_of_numpy_may_be_written_to() -> None:
    fast = rlx_xla.jit(lambda x, p: x @ p, params=-1)
    w, x = draw(3, 5), draw(3, seed=1)
    for _ in range(3):
        chex.assert_trees_all_close(fast(x, w), x @ w, rtol=1e-5)
        w *= -2
    assert len(fast.specializations()) == 1


@pytest.mark.parametrize(
    ("fn", "given", "message"),
    [
        (
            lambda p, x: x, "p", "jit of '<lambda>' [params]: positions of arguments are required; "
            "got 'p'. Give numbers, such as params=0.",
        ),
        (
            lambda p, x: x, True, "jit of '<lambda>' [params]: positions of arguments are "
            "required; got True. Give numbers, such as params=0.",
        ),
        (
            lambda p, x: x, (0, 2), "jit of '<lambda>' [params]: positions among its 2 arguments "
            "are required (p, x); got 2. Count from 0.",
        ),
        (
            lambda p, x: x, -3, "jit of '<lambda>' [params]: positions among its 2 arguments are "
            "required (p, x); got -3. Count from 0.",
        ),
    ],
)  # fmt: skip
def test_params_are_positions(fn: Any, given: Any, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        rlx_xla.jit(fn, params=given)
    assert str(caught.value) == message


def test_donation() -> None:
    for options in ({"donate_argnums": 0}, {"donate_argnames": "x"}):
        fn = rlx_xla.jit(lambda x, y: x + y, **options)
        x, y = jnp.ones(5), jnp.ones(5)
        fn(x, y)
        assert x.is_deleted()
        assert not y.is_deleted()


def test_specializations_say_why() -> None:
    fn = rlx_xla.jit(mixed)
    with pytest.raises(RunError, match="a compiled program is required"):
        fn.report()
    fn(draw(3), draw(3))
    fn(draw(3), draw(3))
    fn(draw(4), draw(4))
    fn(jnp.ones(4, jnp.float16), draw(4))
    first, second, third = fn.specializations()
    assert first.reason == "first call"
    assert first.hits == 1
    assert second.reason == "x axis 0: 3 → 4; y axis 0: 3 → 4"
    assert third.reason == "dtype of x: f32 → f16"
    assert fn.report() is third.report
    fn.clear_cache()
    assert fn.specializations() == []


def test_stages() -> None:
    fn = rlx_xla.jit(mixed)
    x, y = jnp.asarray(draw(3)), jnp.asarray(draw(3))
    assert fn.__wrapped__ is mixed
    assert fn.__name__ == "mixed"
    assert fn.eval_shape(x, y).shape == (3,)
    chex.assert_trees_all_close(fn.lower(x, y).compile()(x, y), mixed(x, y), rtol=1e-5)
    assert [v.aval.shape for v in fn.trace(x, y).jaxpr.jaxpr.invars] == [(3,), (3,)]
    graph = rlx_xla.trace(lambda a: fn(a, a), x).graph
    assert [n.op.attributes()["name"] for n in graph.nodes() if n.op.op_name == "call"] == ["mixed"]


def test_a_cleared_cache_traces_again() -> None:
    factor = [2.0]

    def scaled(x: Any) -> Any:
        return x * factor[0]

    fn = rlx_xla.jit(scaled)
    x = jnp.asarray(draw(3))
    before = fn(x)
    factor[0] = 3.0
    fn.clear_cache()
    np.testing.assert_allclose(fn(x), before * 1.5, rtol=1e-6)


FLOAT0 = np.zeros(3, jax.dtypes.float0)


@jax.custom_vjp
def picked(x: Any, index: Any) -> Any:
    return x[index]


picked.defvjp(
    lambda x, index: (x[index], (x, index)),
    lambda kept, ct: (jnp.zeros_like(kept[0]).at[kept[1]].add(ct), FLOAT0),
)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda t: t, (FLOAT0,)),
        (lambda t, x: x if t.dtype == jax.dtypes.float0 else x - t, (FLOAT0, draw(3))),
        (jax.grad(lambda n: (n * 2.0).sum(), allow_int=True), (np.arange(3, dtype=np.int32),)),
        (jax.grad(lambda n: (n * 2.0).sum(), allow_int=True), (np.arange(5000, dtype=np.int32),)),
        (jax.grad(lambda n: (n * 2.0).sum(), allow_int=True), (np.zeros((0, 2), np.int32),)),
        (
            lambda x, n: jax.vjp(picked, x, n)[1](jnp.ones(3)),
            (draw(4), np.arange(3, dtype=np.int32)),
        ),
        (
            lambda x, n: jax.jvp(lambda x, n: (x[n], n), (x, n), (x, FLOAT0)),
            (draw(4), np.arange(3, dtype=np.int32)),
        ),
    ],
    ids=["returned", "asked for", "grad", "large", "empty", "vjp", "jvp"],
)
def test_tangents_of_integers(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    wanted = jax.jit(fn)(*args)
    traced = rlx_xla.trace(fn, *args)
    for run in (rlx_xla.jit(fn), rlx.Session("cpu").compile(traced), rlx_xla.to_jax(traced)):
        found = run(*args)
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            if theirs.dtype != jax.dtypes.float0:
                np.testing.assert_allclose(ours, theirs, rtol=1e-6)
