"""Strict keeps the values of pairs that XLA rewrites; the default gives what jax.jit gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rlx
import rlx_xla

F = np.float32
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "log(exp)": (lambda x: jnp.log(jnp.exp(x)), (89.0,), "log(exp(x))"),
    "log2(exp2)": (lambda x: jnp.log2(jnp.exp2(x)), (128.0,), "(exp2(x))"),
    "sqrt(x²)": (lambda x: jnp.sqrt(jnp.abs(x * x)), (np.finfo(F).max,), "sqrt(x²)"),
    "sqrt(square)": (lambda x: jnp.sqrt(lax.square(x)), (np.finfo(F).max,), "sqrt(x²)"),
    "log(pow)": (lambda x, y: jnp.log(lax.pow(x, y)), (2.0, 200.0), "log(pow(x))"),
    "pow(exp)": (lambda x, y: lax.pow(jnp.exp(x), y), (90.0, 0.5), "pow(exp(x), y)"),
    "exp·exp": (lambda x, y: jnp.exp(x) * jnp.exp(y), (90.0, -110.0), "exp(x) · exp(y)"),
    "a/(b/c)": (lambda a, b, c: a / (b / c), (1e30, 1e30, 1e30), "x / div(y)"),
    "(a/b)/(c/d)": (
        lambda a, b, c, d: (a / b) / (c / d), (1e20, 1e30, 1e30, 1e10), "x / div(y)"),
    "(x+c)+d": (lambda x: (x + F(1e30)) + F(-1e30), (1.0,), "(x + c) + d"),
    "reshaped": (lambda x: jnp.log(jnp.exp(x).reshape(2, 1)), ([89.0, 90.0],), "log(exp(x))"),
    "x+0": (lambda x: F(0) + x, ([-0.0, 1.0],), "x + 0"),
    "x-(-0)": (lambda x: x - F(-0.0), ([-0.0, 1.0],), "x + 0"),
    "log(rsqrt)": (lambda x: jnp.log(lax.rsqrt(x)), ([-0.0, 4.0],), "log(rsqrt(x))"),
    "log(sqrt)": (lambda x: jnp.log(jnp.sqrt(x)), ([2.0, 7.0, 73.0],), "log(sqrt(x))"),
    "pow(x², ½)": (lambda x: (x * x) ** F(0.5), (np.finfo(F).max,), "pow(x², ½)"),
    "pow(1/x, -1)": (lambda x: (F(1) / x) ** F(-1), ([13.0, 15.0],), "pow(div(x), y)"),
    "x/c": (lambda x: x / F(3), (np.linspace(0, 1, 101),), "x / c"),
}  # fmt: skip


def compiled(case: str, **options: Any) -> tuple[rlx.CompiledGraph, list[Any]]:
    fn, values, _ = CASES[case]
    arguments = [np.asarray(v, F) for v in values]
    traced = rlx_xla.trace(fn, *arguments)
    made = rlx.Session("cpu").compile(traced, options=rlx.CompileOptions(**options))
    return made, arguments


@pytest.mark.parametrize("case", list(CASES))
def test_strict_gives_the_value_of_each_step(case: str) -> None:
    strict, arguments = compiled(case, strict=True)
    with np.errstate(all="ignore"):
        (wanted,) = rlx.interpret(
            strict.graph, dict(zip(strict.signature.inputs, arguments, strict=True))
        )
    found = np.asarray(strict(*arguments))
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
    (record,) = [r for r in strict.report().passes if r.name == "protect-values"]
    assert any(CASES[case][2] in note for note in record.notes)


@pytest.mark.parametrize("case", ["log(exp)", "log2(exp2)", "sqrt(x²)"])
def test_d5_strict_is_infinite_and_the_default_is_that_of_jit(case: str) -> None:
    strict, arguments = compiled(case, strict=True)
    assert np.isposinf(np.asarray(strict(*arguments)))


@pytest.mark.parametrize("case", list(CASES))
def test_the_default_is_that_of_jit(case: str) -> None:
    plain, arguments = compiled(case)
    wanted = jax.jit(CASES[case][0])(*arguments)
    np.testing.assert_array_equal(np.asarray(plain(*arguments)), np.asarray(wanted))


@pytest.mark.parametrize("case", list(CASES))
def test_the_lint_names_the_pair(case: str) -> None:
    text = CASES[case][2]
    plain, _ = compiled(case, lint_numerics=True)
    (record,) = [r for r in plain.report().passes if r.name == "lint-numerics"]
    lines = [
        n
        for n in record.notes
        if n.startswith("XLA replaces ") and f"{text} at test_strict_values" in n
    ]
    assert lines
    assert lines[0].endswith("by a form with other values; strict keeps it")
    strict, _ = compiled(case, lint_numerics=True, strict=True)
    assert "XLA replaces" not in str(strict.report())
