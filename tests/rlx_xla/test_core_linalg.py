"""Linear algebra in portable modules: exported for several platforms, loaded, run and compared."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import LoweringError
from rlx.ir.graph import Graph
from rlx.ops import solve as ops
from rlx_xla._jax_compat import equations
from rlx_xla.lowering import core_linalg
from tests.conformance import runner
from tests.samples import solve
from tests.samples.base import Sample

WITHOUT_LIBRARY = {
    "cholesky", "eigh", "geqp3", "geqrf", "householder_product", "lu",
    "lu_pivots_to_permutation", "qr", "svd", "triangular_solve", "tridiagonal_solve",
}  # fmt: skip
LARGEST = 30
"""Elements of an operand."""


def drawn(dtype: str) -> list[Sample]:
    """A fresh sample of each op, in a setting that is drawn."""
    rng = np.random.default_rng()
    found: dict[str, list[Sample]] = {}
    for sample in solve.samples(rng):
        fits = all(0 < x.size <= LARGEST for x in sample.inputs)
        wanted = {dtype, "int32"} if dtype == "float32" else {dtype}
        if fits and sample.op.op_name in WITHOUT_LIBRARY and str(sample.inputs[0].dtype) in wanted:
            found.setdefault(sample.op.op_name, []).append(sample)
    assert found.keys() >= WITHOUT_LIBRARY - {"lu_pivots_to_permutation"}
    return [samples[rng.integers(len(samples))] for samples in found.values()]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("complex128", marks=pytest.mark.slow)])
def test_exported_files_need_no_library(dtype: str) -> None:
    samples = drawn(dtype)
    graph, arrays = runner.graph_of(samples)
    made = rlx_xla.export(graph, ["cpu", "cuda"])
    assert made.shared
    compiled = rlx_xla.load_export(made)
    results = compiled.run({v.name: x for v, x in zip(graph.inputs, arrays, strict=True)})
    for sample in samples:
        wanted = sample.op.evaluate(*sample.inputs)
        wanted = list(wanted) if type(wanted) is tuple else [np.asarray(wanted)]
        runner.compare(sample, results[: len(wanted)], wanted)
        del results[: len(wanted)]
    assert not results


@pytest.mark.parametrize("shape", ["3, 0", "0, 3", "2, 3, 0", "0, 0"])
def test_matrices_without_elements_have_vectors(shape: str) -> None:
    x = rlx.GraphBuilder("empty").input("x", f"c64[{shape}]")
    graph = Graph([x], (), [*ops.Svd(full_matrices=True)(x), *ops.Qr(full_matrices=True)(x)])
    given = {"x": np.zeros([int(n) for n in shape.split(", ")], np.complex64)}
    results = rlx_xla.load_export(rlx_xla.export(graph, ["cpu", "cuda"])).run(given)
    for found, wanted in zip(results, rlx.interpret(graph, given), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_graded_and_deficient_matrices() -> None:
    rng = np.random.default_rng()
    left, right = (np.linalg.qr(rng.standard_normal((9, 9)))[0] for _ in range(2))
    s = np.array([1e6, 1e3, 1.0, 1.0, 1e-2, 0, 0, 0, 0])
    x = ((left * s) @ right).astype(np.float32)
    with jax.numpy_rank_promotion("allow"):
        found = jax.jit(lambda x: core_linalg.svd(x, full_matrices=True, compute_uv=True))(x)
    values, u, vh = map(np.asarray, found)
    assert np.abs(values - s).max() < 1e-6 * 1e6
    for q in (u, vh):
        np.testing.assert_allclose(q @ q.T, np.eye(9), atol=1e-5)
    np.testing.assert_allclose((u * values) @ vh, x, atol=1e-6 * 1e6)


def test_large_small_and_wrong_numbers() -> None:
    def both(x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        with jax.numpy_rank_promotion("allow"):
            return tuple(map(np.asarray, jitted(x)))

    jitted = jax.jit(lambda x: core_linalg.eigh(x, lower=True))
    base = np.array([[2, 1, 0], [1, 3, 1], [0, 1, 4]], np.float32)
    wanted = np.linalg.eigvalsh(base.astype(np.float64))
    for scale in (1e30, 1e-30, 1.0):
        _, w = both(base * np.float32(scale))
        np.testing.assert_allclose(w.astype(np.float64) / scale, wanted, rtol=1e-5)
    v, w = both(np.full((3, 3), np.nan, np.float32))
    assert np.isnan(v).all()
    assert np.isnan(w).all()
    v, w = both(np.zeros((3, 3), np.float32))
    np.testing.assert_array_equal(w, 0)
    np.testing.assert_array_equal(v, np.eye(3))


@pytest.mark.parametrize("method", [ops.SvdMethod.QR, ops.SvdMethod.JACOBI])
def test_tpus_take_every_method(method: ops.SvdMethod) -> None:
    traced = rlx_xla.trace(lambda x: x, "f32[4, 3]")
    (x,) = traced.graph.inputs
    graph = Graph([x], (), ops.Svd(method=method)(x), name="svd")
    assert "custom_call" not in rlx_xla.stablehlo(graph, "tpu")


def test_pivoted_qr_lowers_for_tpus() -> None:
    traced = rlx_xla.trace(lambda x: x, "f32[4, 3]")
    (x,) = traced.graph.inputs
    graph = Graph([x], (), ops.Qr(pivoting=True)(x), name="qr")
    assert "stablehlo.while" in rlx_xla.stablehlo(graph, "tpu")


def test_a_library_that_does_not_load_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*arguments: Any, **settings: Any) -> Any:
        raise RuntimeError("cuSolver internal error")

    monkeypatch.setattr(equations, "lower_function", without)
    traced = rlx_xla.trace(lambda x: x, "f32[4, 4]")
    (x,) = traced.graph.inputs
    graph = Graph([x], (), ops.Eig()(x), name="eig")
    with pytest.raises(LoweringError) as info:
        rlx_xla.stablehlo(graph, "cuda")
    assert str(info.value).split(": ", 1)[1] == (
        "JAX is required to lower it for 'cuda'; it says: cuSolver internal error. Choose other "
        "attributes or another device."
    )


@pytest.mark.parametrize("dtype", ["f64", "c128"])
def test_tpus_factor_wide_numbers_without_their_library(dtype: str) -> None:
    x = rlx.GraphBuilder("lu").input("x", f"{dtype}[4, 4]")
    graph = Graph([x], (), ops.Lu()(x), name="lu")
    assert "custom_call" not in rlx_xla.stablehlo(graph, "tpu")
    narrow = rlx_xla.trace(lambda x: jax.lax.linalg.svd(x)[0], "f32[4, 3]")
    # Beside the call of Eigh they end the compiler.
    assert not re.search(r"tensor<(\d+x)*i64>", rlx_xla.stablehlo(narrow, "tpu"))
