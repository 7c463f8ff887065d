"""JAX's transfer guard: weights and what the library makes pass, arguments as in ``jax.jit``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx_xla.generation import LanguageModel, SamplingOptions

RNG = np.random.default_rng()
W = RNG.standard_normal((32, 32)).astype(np.float32)
HOST = RNG.standard_normal((2, 32)).astype(np.float32)
X = jax.device_put(HOST)


def product(w: Any, x: Any) -> Any:
    return x @ w


def compiled(fn: Any, *args: Any, params: Any = (), **options: Any) -> rlx.CompiledGraph:
    traced = rlx_xla.trace(fn, *args, params=params)
    return rlx.Session("cpu").compile(traced, options=rlx.CompileOptions(**options))


def kept() -> Any:
    made = compiled(lambda c, x: (x @ c, c + 1), "f32[32, 32]", "f32[2, 32]")
    made.keep("c", from_output=1, value=W)
    return made.run({"x": HOST})[0]


def reset() -> Any:
    made = compiled(product, 2 * W, "f32[2, 32]", params=0)
    made.set_param("w", W)
    return made(X)


ALLOWED: dict[str, Callable[[], Any]] = {
    "jit, a captured array": lambda: rlx_xla.jit(lambda x: x @ W)(X),
    "jit, a param": lambda: rlx_xla.jit(product, params=0)(W, X),
    "jit, padded": lambda: rlx_xla.jit(
        lambda x: x @ W, dims=("f32[n, 32]",), buckets={"n": [4]}
    )(X),
    "jit under jit": lambda: jax.jit(rlx_xla.jit(lambda x: x @ W))(X),
    "session, params": lambda: compiled(product, W, "f32[2, 32]", params=0)(X),
    "session, a captured array": lambda: compiled(lambda x: x @ W, "f32[2, 32]")(X),
    "session, by name": lambda: compiled(product, W, "f32[2, 32]", params=0).run({"x": HOST})[0],
    "session, padded": lambda: compiled(product, W, "f32[n, 32]", params=0, buckets={"n": [4]})(X),
    "session, padded by name": lambda: compiled(
        product, W, "f32[n, 32]", params=0, buckets={"n": [4]}
    ).run({"x": HOST})[0],
    "session, set again": reset,
    "session, kept": kept,
    "session, prepared": lambda: compiled(
        lambda w, x: x @ (w + w) / 2, W, "f32[2, 32]", params=0, cache_param_invariant=True
    )(X),
}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_what_was_asked_for_passes(name: str) -> None:
    with jax.transfer_guard("disallow"):
        found = ALLOWED[name]()
    np.testing.assert_allclose(found, HOST @ W, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["session, params", "jit, a captured array", "session, by name"])
def test_explicit_transfers_are_refused_where_the_guard_says_so(name: str) -> None:
    with (
        jax.transfer_guard("disallow_explicit"),
        pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"),
    ):
        ALLOWED[name]()


def test_arguments_are_refused_as_in_jax() -> None:
    fast, made = rlx_xla.jit(jnp.sin), compiled(jnp.sin, "f32[2, 32]")
    for call in (jax.jit(jnp.sin), fast, made):
        with (
            jax.transfer_guard("disallow"),
            pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"),
        ):
            call(HOST)
        np.testing.assert_allclose(call(HOST), np.sin(HOST), rtol=1e-5)


PROGRAM = """
import sys
from rlx_xla.generation import LanguageModel
print(LanguageModel(sys.argv[1]).generate("the a the", max_tokens=4)[0].text)
"""


def test_language_models_run_under_the_guard(tmp_path: Path) -> None:
    path = _tiny(tmp_path)
    with jax.transfer_guard("disallow"):
        model = LanguageModel(path)
        found = model.generate("the a the", max_tokens=4)[0].text
    assert model.generate("the a the", max_tokens=4)[0].text == found


@pytest.mark.slow  # a process of its own, and a program that samples
def test_language_models_run_where_the_guard_is_a_variable(tmp_path: Path) -> None:
    path = _tiny(tmp_path)
    model = LanguageModel(path)
    with jax.transfer_guard("disallow"):
        warm = SamplingOptions(temperature=0.7, seed=3)
        assert len(list(model.stream("the", max_tokens=3, sampling=warm))) == 3
    environment = {**os.environ, "JAX_TRANSFER_GUARD": "disallow"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], env=environment, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    assert ran.stdout.rstrip("\n") == model.generate("the a the", max_tokens=4)[0].text


def _tiny(folder: Path) -> Path:
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    from tests.rlx_xla import tiny_gguf

    return tiny_gguf.write(folder / "m.gguf", RNG, layers=1)
