"""Calls of LAPACK in files: right ones load and run, and whatever is bent is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import linalg

import rlx
import rlx_xla
from rlx.errors import FormatError, RlxError
from rlx_xla._jax_compat import linalg as compat
from rlx_xla._jax_compat import mlir
from rlx_xla.lowering import foreign

DTYPES = ("float32", "complex64")
SQUARE = "5, 5"
CALLS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "schur": (linalg.schur, ("2, 5, 5",)),
    "schur without vectors": (lambda x: linalg.schur(x, compute_schur_vectors=False), (SQUARE,)),
    "hessenberg": (linalg.hessenberg, ("2, 5, 5",)),
    "tridiagonal": (lambda x: linalg.tridiagonal(x + x.conj().mT), (SQUARE,)),
    "eig": (linalg.eig, ("2, 5, 5",)),
    "eigvals": (
        lambda x: linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False),
        (SQUARE,),
    ),
    "lu": (linalg.lu, ("2, 4, 3",)),
    "qr": (lambda x: linalg.qr(x, full_matrices=False), ("3, 4",)),
    "pivoted qr": (lambda x: linalg.qr(x, pivoting=True, full_matrices=False), ("4, 3",)),
    "q times": (
        lambda a, t, c: compat.ormqr(a, t, c, left=True, transpose=False),
        ("4, 3", "3", "4, 2"),
    ),
    "times q": (
        lambda a, t, c: compat.ormqr(a, t, c, left=False, transpose=True),
        ("2, 4, 3", "2, 3", "2, 5, 4"),
    ),
    "svd": (lambda x: linalg.svd(x, full_matrices=False), ("4, 3",)),
    "whole svd": (lambda x: linalg.svd(x, full_matrices=True), ("2, 3, 4",)),
    "singular values": (lambda x: linalg.svd(x, compute_uv=False), ("4, 3",)),
    "svd by qr": (
        lambda x: compat.svd(x, full_matrices=True, compute_uv=True, method="QR"),
        ("4, 3",),
    ),
    "eigh": (linalg.eigh, (SQUARE,)),
    "cholesky": (lambda x: linalg.cholesky(x @ x.conj().mT + 9 * jnp.eye(5)), (SQUARE,)),
    "left solve": (
        lambda a, b: linalg.triangular_solve(a, b, left_side=True, lower=True),
        (SQUARE, "5, 2"),
    ),
    "right solve": (linalg.triangular_solve, ("2, 5, 5", "2, 3, 5")),
    "tridiagonal solve": (linalg.tridiagonal_solve, ("2, 5", "2, 5", "2, 5", "2, 5, 3")),
}


def arrays(shapes: tuple[str, ...], dtype: str) -> list[Any]:
    rng = np.random.default_rng()
    made = []
    for text in shapes:
        x = rng.standard_normal([int(n) for n in text.split(", ")])
        if dtype == "complex64":
            x = x + 1j * rng.standard_normal(x.shape)
        if x.ndim > 1 and x.shape[-1] == x.shape[-2]:
            x = x + 5 * np.eye(x.shape[-1])
        made.append(jnp.asarray(x, dtype))
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_stablehlo_with_calls_is_read_without_leave(name: str, dtype: str) -> None:
    fn, shapes = CALLS[name]
    if name in ("q times", "times q") and not compat.has_ormqr():
        pytest.skip("this version of JAX has no ormqr")
    given = arrays(shapes, dtype)
    text = jax.jit(fn).lower(*given).as_text()
    if "custom_call @lapack_" not in text:
        pytest.skip("this version of JAX calls no library here")
    graph = rlx_xla.from_stablehlo(text)
    found = rlx.Session("cpu").compile(graph)(*given)
    wanted = jax.tree.leaves(jax.jit(fn)(*given))
    for ours, theirs in zip(jax.tree.leaves(found), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["schur", "hessenberg", "tridiagonal"])
def test_opaque_nodes_that_call_lapack_load_from_a_file(name: str, tmp_path: Path) -> None:
    fn, shapes = CALLS[name]
    given = arrays(shapes, "float32")
    traced = rlx_xla.trace(fn, *given)
    assert traced.coverage().external == 1
    path = tmp_path / "call.rlx"
    rlx.save(traced.graph, path)
    found = rlx.Session("cpu").compile(rlx.load(path))(*given)
    wanted = jax.tree.leaves(jax.jit(fn)(*given))
    for ours, theirs in zip(jax.tree.leaves(found), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_an_imported_call_is_saved_for_the_cpu(tmp_path: Path) -> None:
    x = arrays(("4, 3",), "float32")[0]
    graph = rlx_xla.from_stablehlo(jax.jit(linalg.lu).lower(x).as_text())
    rlx.save(graph, tmp_path / "lu.rlx")
    found = rlx.Session("cpu").compile(rlx.load(tmp_path / "lu.rlx"))(x)
    np.testing.assert_allclose(found[0], linalg.lu(x)[0], rtol=1e-5, atol=1e-5)


def _schur() -> str:
    lowered = jax.jit(linalg.schur).lower(jnp.ones((2, 5, 5)))
    return mlir.module_text(mlir.parse_module(lowered.as_text(), mlir.new_context()))


BENT = {
    "a result that is too small": (
        r"-> \(tensor<2x5x5xf32>, tensor<2x5x5xf32>, tensor<2x5xf32>",
        "-> (tensor<2x5x5xf32>, tensor<2x5x5xf32>, tensor<2x4xf32>",
        "results are required to be Tnn Tnn Tn Tn i i",
    ),
    "a result of another dtype": (
        r"tensor<2xi32>\)$",
        "tensor<2xi64>)",
        "results are required to be Tnn Tnn Tn Tn i i",
    ),
    "another routine": ("lapack_sgees_ffi", "lapack_sgeev_ffi", "settings are required"),
    "another dtype's routine": (
        "lapack_sgees_ffi",
        "lapack_dgees_ffi",
        "operands are required to be Tnn; got float32[2, 5, 5].",
    ),
    "an unknown routine": ("lapack_sgees_ffi", "lapack_sgeqr_ffi", "only pure StableHLO"),
    "a routine that is none": ("lapack_sgees_ffi", "lapack_sgees", "only pure StableHLO"),
    "a setting that LAPACK has not": (
        "sort = 78 : ui8",
        "sort = 83 : ui8",
        "sort is required to be one of N; got 83.",
    ),
    "a setting too few": (", sort = 78 : ui8", "", "settings are required to be mode, sort"),
    "rows for columns": (
        re.escape("operand_layouts = [dense<[1, 2, 0]>"),
        "operand_layouts = [dense<[2, 1, 0]>",
        "operand_layouts are required to be [[1, 2, 0]], column by column; got [[2, 1, 0]].",
    ),
}


@pytest.mark.parametrize("name", BENT)
def test_a_bent_call_is_refused(name: str) -> None:
    pattern, replacement, message = BENT[name]
    lines = _schur().splitlines()
    index = next(i for i, line in enumerate(lines) if "custom_call" in line)
    changed, count = re.subn(pattern, replacement, lines[index])
    assert count == 1, lines[index]
    # What follows uses the results as they were: the call alone is looked at.
    call = "func.func public @main(%arg0: tensor<2x5x5xf32>) {\n" + changed + "\nreturn\n}"
    text = re.sub(r"%\w+(:\d+)? = stablehlo.custom_call", r"%0\1 = stablehlo.custom_call", call)
    with pytest.raises(FormatError, match=re.escape(message)):
        foreign.parse(text, "a file", mlir.new_context())
    with pytest.raises(RlxError):
        rlx_xla.from_stablehlo(text)


@pytest.mark.parametrize("low", [0, 6])
def test_hessenberg_keeps_inside_of_its_matrix(low: int) -> None:
    text = jax.jit(linalg.hessenberg).lower(jnp.ones((5, 5))).as_text()
    with pytest.raises(RlxError, match="do not belong together"):
        rlx_xla.from_stablehlo(text.replace("low = 1", f"low = {low}"))


def test_an_effect_is_refused() -> None:
    text = _schur().replace("has_side_effect = false", "has_side_effect = true")
    if "has_side_effect = true" not in text:
        text = text.replace('backend_config = ""', 'backend_config = "", has_side_effect = true', 1)
    with pytest.raises(RlxError, match="no side effect is required"):
        rlx_xla.from_stablehlo(text)
