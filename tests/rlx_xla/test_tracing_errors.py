"""JAX's tracing errors come as ``TraceError``: what is required, found, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.errors
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rlx_xla
from rlx.errors import TraceError

X = jnp.ones(3)
FILE = re.escape(__file__)


def message(fn: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises(TraceError) as caught:
        rlx_xla.trace(fn, *args, **options)
    return str(caught.value)


def line_of(fn: Callable[..., Any], offset: int) -> str:
    return f"{__file__}:{fn.__code__.co_firstlineno + offset}"


def test_a_scan_whose_carry_changes() -> None:
    """H3: jax#22045, jax-md#99."""

    def body(c: jax.Array, x: jax.Array) -> Any:
        wide = c * jnp.ones(1)
        return wide, x

    with pytest.raises(TraceError) as caught:
        rlx_xla.trace(lambda: lax.scan(body, 0.0, jnp.arange(3.0)))
    text = str(caught.value)
    wanted = f"carry[0] f32[] -> f32[1] because of body line {line_of(body, 1)}; "
    assert wanted + "use x[0] or init jnp.zeros(1)." in text
    assert "scan (" in text
    assert isinstance(caught.value.__cause__, TypeError)
    assert "must have equal types" in str(caught.value.__cause__)


def test_every_changed_carry_is_named() -> None:
    def body(c: dict[str, jax.Array]) -> dict[str, jax.Array]:
        a = c["a"].astype(jnp.bfloat16)
        b = jnp.stack([c["b"], c["b"]])
        return {"a": a, "b": b, "c": c["c"]}

    init = {"a": jnp.float32(0), "b": jnp.float32(0), "c": jnp.float32(0)}
    text = message(lambda: lax.while_loop(lambda c: c["c"] < 3, body, init))
    first = f"carry[0] at ['a'] f32[] -> bf16[] because of body line {line_of(body, 1)}; "
    assert first + "use x.astype(jnp.float32) or init with dtype bfloat16." in text
    second = f"carry[1] at ['b'] f32[] -> f32[2] because of body line {line_of(body, 2)}; "
    assert second + "reduce, slice or broadcast x to f32[] or init jnp.zeros(2)." in text
    assert "while_loop (" in text


@pytest.mark.parametrize("stop", [3, jnp.int32(3)])
def test_fori_loop_counts_the_users_carry(stop: Any) -> None:
    def body(i: jax.Array, c: jax.Array) -> jax.Array:
        return c[:, None]

    text = message(lambda n: lax.fori_loop(0, n, body, jnp.ones((1, 1))[0]), stop)
    assert "fori_loop (" in text
    wanted = f"carry[0] f32[1] -> f32[1, 1] because of body line {line_of(body, 1)}; "
    assert wanted + "use x.reshape(1,) or init jnp.zeros((1, 1))." in text


def test_fori_loop_with_static_bounds() -> None:
    def body(i: Any, c: jax.Array) -> jax.Array:
        return jnp.stack([c, c])

    text = message(lambda: lax.fori_loop(0, 3, body, jnp.float32(0)))
    assert "fori_loop (" in text
    assert f"carry[0] f32[] -> f32[2] because of body line {line_of(body, 1)};" in text


def test_the_inner_loop_is_the_one_that_is_named() -> None:
    def inner(c: jax.Array) -> jax.Array:
        return lax.while_loop(lambda c: c.sum() < 3, lambda c: c[None], c)

    text = message(lambda x: lax.scan(lambda c, v: (inner(c), v), x, x), X)
    assert "while_loop (" in text
    assert "f32[3] -> f32[1, 3]" in text


CASES: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (
        lambda x: 1 if x[0] > 0 else 2,
        jax.errors.TracerBoolConversionError,
        r"a Python condition .* through argument 'x'.* jax.lax.cond .* make 'x' static",
    ),
    (
        lambda x: jnp.zeros(int(x[0])),
        jax.errors.ConcretizationTypeError,
        "a Python number .* through argument 'x'",
    ),
    (
        lambda x: [1, 2, 3][x[0].astype(int)],
        jax.errors.TracerIntegerConversionError,
        "a Python integer .* through argument 'x'",
    ),
    (lambda x: jnp.zeros(x[0]), TypeError, "a shape is required to be known .* x.shape"),
    (
        lambda x: x[x > 0],
        jax.errors.NonConcreteBooleanIndexError,
        r"a boolean index .* jnp.nonzero\(mask, size=n\)",
    ),
    (lambda x: np.sin(x), jax.errors.TracerArrayConversionError, "NumPy .* jax.numpy"),
    (lambda x: {1: 2}[x[0]], TypeError, "a key of a dict .* jax.lax.switch"),
    (
        lambda x: lax.while_loop(lambda c: c < 2, lambda c: c, x),
        TypeError,
        r"cond_fun is required to return bool\[\]",
    ),
    (
        lambda x: lax.cond(x[0] > 0, lambda: x, lambda: x[0]),
        TypeError,
        "all branches are required to return the same .* float32",
    ),
    (
        lambda x: lax.switch(0, [lambda: x, lambda: (x, x)]),
        TypeError,
        "all branches are required to return the same structure",
    ),
    (
        lambda x: lax.scan(lambda c, v: ((c, c), v), x, x),
        TypeError,
        "scan: the body is required to return its carry with the structure it took",
    ),
]


@pytest.mark.parametrize(("fn", "cause", "pattern"), CASES)
def test_common_errors(fn: Callable[..., Any], cause: type[Exception], pattern: str) -> None:
    with pytest.raises(TraceError) as caught:
        rlx_xla.trace(fn, X)
    text = str(caught.value)
    assert re.search(pattern, text)
    assert re.search(rf"^trace of '<lambda>' at {FILE}:\d+: ", text)
    assert isinstance(caught.value.__cause__, cause)


def test_the_line_is_the_one_inside_the_users_function() -> None:
    def check(x: jax.Array) -> jax.Array:
        if x.sum() > 0:
            return x
        return -x

    text = message(lambda y: check(y * 2), X)
    assert f"at {line_of(check, 1)}: " in text
    assert "argument 'y'" in text


def test_static_arguments_do_not_hide_the_names_of_others() -> None:
    def fn(n: int, x: jax.Array, *, flag: jax.Array) -> jax.Array:
        return x if flag else x * n

    text = message(fn, 3, X, static_argnums=0, flag=jnp.bool_(True))
    assert "argument 'flag'" in text


KEPT: list[jax.Array] = []


def test_leaked_values() -> None:
    def leak(x: jax.Array) -> jax.Array:
        KEPT.append(x + 1)
        return x

    jax.jit(leak)(X)

    def use(x: jax.Array) -> jax.Array:
        return x * KEPT[0]

    text = message(use, X)
    KEPT.clear()
    assert f"at {line_of(use, 1)}: a traced value is required to stay inside" in text
    assert "jax.checking_leaks()" in text


def test_symbolic_dims_that_cannot_decide() -> None:
    """There is no one graph: the function is traced anew for every size, and this is why."""
    traced = rlx_xla.trace(lambda x: x[:2] if x.shape[0] >= 2 else x, "f32[b, 3]")
    text = traced.template.why
    assert "symbolic dims" in text
    assert "'b' >= '2' is inconclusive" in text
    assert re.search(rf"at {FILE}:\d+: ", text)


@pytest.mark.parametrize(
    ("options", "args", "pattern"),
    [
        ({"static_argnums": 1}, (X, [1]), "static argument 'n' .* hashable; got list"),
        ({"static_argnums": 1}, (X, ([1],)), "'n' is required to be hashable; got tuple"),
        ({"static_argnames": "n"}, (X, X), "'n' is required to be hashable; .*traced, not static"),
        ({"static_argnames": "nn"}, (X, 1), r"\(x, n\); got 'nn'.*Did you mean 'n'"),
        ({"static_argnums": 5}, (X, 1), "static_argnums .* got 5 with 2 of them"),
        ({"static_argnums": -3}, (X, 1), "static_argnums .* got -1 with 2 of them"),
    ],
)  # fmt: skip
def test_static_argument_mistakes(options: Any, args: Any, pattern: str) -> None:
    def fn(x: jax.Array, n: Any) -> jax.Array:
        return x

    assert re.search(pattern, message(fn, *args, **options))


def test_errors_that_are_not_about_tracing_stay() -> None:
    def wrong(x: jax.Array) -> jax.Array:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rlx_xla.trace(wrong, X)
    with pytest.raises(TypeError, match="dot_general requires") as caught:
        rlx_xla.trace(lambda x: jnp.zeros((3, 4)) @ x, X)
    files = [str(entry.path) for entry in caught.traceback]
    assert not any("jax/_src/interpreters" in file for file in files)
