"""Field case C12: the StableHLO of a compiled graph is a file that other tools can use."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx_xla._jax_compat import mlir


def _traced() -> rlx_xla.Traced:
    def fn(params, ids):
        return jnp.tanh(params["table"][ids] @ params["kernel"])

    params = {"table": np.ones((5, 4), np.float32), "kernel": np.ones((4, 2), np.float32)}
    return rlx_xla.trace(fn, params, np.zeros(3, np.int32), params=0)


@pytest.mark.parametrize("version", [mlir.minimum_stablehlo_version(), mlir.stablehlo_version()])
def test_text_is_portable_and_keeps_the_names(version: str) -> None:
    compiled = rlx.Session("cpu").compile(_traced())
    text = compiled.stablehlo()
    for name in ("ids", "params/table", "params/kernel"):
        assert f'"{name}"' in text
    module = mlir.parse_module(text)
    again = mlir.from_portable(mlir.to_portable(module, version))
    assert mlir.main_types(again) == mlir.main_types(module)
    for name in ("ids", "params/table", "params/kernel"):
        assert f'"{name}"' in mlir.module_text(again)


def test_imported_graphs_have_the_names_again() -> None:
    text = rlx.Session("cpu").compile(_traced()).stablehlo()
    graph = rlx_xla.from_stablehlo(text)
    assert [v.name for v in graph.inputs] == ["ids", "params/kernel", "params/table"]


def test_kernels_are_in_the_text_when_asked() -> None:
    def fn(x):
        return jnp.argmax(jax.lax.erf(x), -1)

    compiled = rlx.Session("cpu").compile(rlx_xla.trace(fn, "f32[8, 500]"))
    plain, whole = compiled.stablehlo(), compiled.stablehlo(kernels=True)
    assert "custom_call" not in plain
    assert "chlo." not in plain
    assert ("custom_call" in whole) == bool(compiled.report().kernels)
    assert mlir.to_portable(mlir.parse_module(plain), mlir.minimum_stablehlo_version())
    # no two of a row are near: the text's erf and the kernel's differ by units in the last place
    row = np.linspace(-1.5, 1.5, 500, dtype=np.float32)
    x = np.random.default_rng().permuted(np.tile(row, (8, 1)), axis=1)
    again = rlx.Session("cpu").compile(rlx_xla.from_stablehlo(plain))
    np.testing.assert_array_equal(again(x), compiled(x))
