"""Flags of XLA that a program asks for by itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rlx
import rlx_xla
from rlx.dtypes import as_dtype
from rlx.ops.dot import DotGeneral
from rlx.ops.quantized import ScaledMatmul
from rlx.passes.base import PassContext
from rlx.passes.specialize import Specialize
from rlx_xla._jax_compat import flags as known
from rlx_xla.runtime.flags import flags_for

OPTIONS = rlx.CompileOptions()


def graph_of(*products: tuple[str, int]) -> rlx.Graph:
    """Products [rows, 32] · [16, 32]ᵀ of (dtype, rows)."""
    b = rlx.GraphBuilder()
    made = []
    for i, (dtype, rows) in enumerate(products):
        x, w = (
            b.input(f"{name}{i}", rlx.TensorType(as_dtype(dtype), (size, 32)))
            for name, size in (("x", rows), ("w", 16))
        )
        made.append(DotGeneral(lhs_contracting=(1,), rhs_contracting=(1,))(x, w))
    return b.build(*made)


def test_8_bit_products_are_not_tuned_on_cuda() -> None:
    (flag,) = flags_for(graph_of(("f8e4m3fn", 64), ("f32", 64)), "cuda", OPTIONS)
    assert (flag.name, flag.value) == ("xla_gpu_enable_triton_gemm", False)
    assert str(flag).startswith("xla_gpu_enable_triton_gemm=False: tuning of 8-bit products")


@pytest.mark.parametrize("beside", [1, 2])
@pytest.mark.parametrize("layout", ["per_tensor", "per_row"])
def test_scaled_products_are_not_tuned_on_cuda(layout: str, beside: int) -> None:
    b = rlx.GraphBuilder()
    scale = "f32[1]" if layout == "per_tensor" else "f32[64, 1]"
    leaves = [b.input(n, "u8[64, 128]") for n in "xw"] + [b.input(n, scale) for n in "st"]
    other = DotGeneral(lhs_contracting=(1,), rhs_contracting=(0,))(
        b.input("v", f"f32[{beside}, 8]"), b.input("u", "f32[8, 8]")
    )
    graph = b.build(ScaledMatmul(layout=layout)(*leaves), other)
    made = Specialize().run(graph, PassContext(platform="cuda", options=OPTIONS))
    flags = flags_for(made, "cuda", OPTIONS)
    # A product of one row keeps XLA's own kernels, and scales then stay behind the sum.
    assert len(flags) == (beside > 1)
    within = layout == "per_tensor" and beside > 1
    products = [n for n in made.nodes() if isinstance(n.op, DotGeneral)]
    assert sorted(str(p.inputs[0].dtype) for p in products) == sorted(
        ["f32", "f32" if within else "f8e4m3fn"]
    )


LEVEL, EMITTERS = "xla_backend_optimization_level", "xla_cpu_use_fusion_emitters"
SUMS = {EMITTERS: False} if known.HAS_PLAIN_EMITTERS else {}


def network(
    rng: np.random.Generator,
    dtype: str = "f32",
    *,
    layers: int = 3,
    groups: int = 24,
    last: str = "",
) -> tuple[Any, dict[str, np.ndarray]]:
    """A trace of layers of 1×1 and 3×3 convolutions, and its input."""
    kind = as_dtype(dtype).numpy
    weights = [
        rng.normal(size=shape).astype(kind) / 4
        for _ in range(layers)
        for shape in ((1, 1, 24, 24), (3, 3, 24 // groups, 24))
    ]

    def apply(x: Any, weights: Any = weights) -> Any:
        for i, w in enumerate(weights):
            x = lax.conv_general_dilated(
                x, jnp.asarray(w), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=groups if i % 2 else 1,
            )  # fmt: skip
            if last != "gradient of weights":
                x = lax.clamp(np.asarray(0, kind), x, np.asarray(6, kind))
        if last == "loop":
            return lax.fori_loop(0, 3, lambda _, y: y + y, x)
        if last == "sums":
            return [x.sum(axis) for axis in range(4)]
        return {"sort": lax.sort, "tanh": lax.tanh}.get(last, lambda y: y)(x)

    x = rng.normal(size=(1, 9, 9, 24)).astype(kind)
    if last.startswith("gradient"):
        at = 1 if last == "gradient of weights" else 0
        return rlx_xla.trace(jax.grad(lambda *v: apply(*v).sum(), at), x, weights), {"x": x}
    return rlx_xla.trace(apply, x), {"x": x}


def chosen(traced: Any, **options: Any) -> dict[str, Any]:
    """The flags of a trace that is compiled without kernels."""
    dispatch = rlx.KernelDispatch(policy=rlx.KernelPolicy.FORCE_COMMON)
    taken = rlx.CompileOptions(kernel_dispatch=dispatch, **options)
    compiled = rlx.Session("interpret").compile(traced, options=taken)
    graph = Specialize().run(
        compiled.report().lir.graph, PassContext(platform="cpu", options=taken)
    )
    return {flag.name: flag.value for flag in flags_for(graph, "cpu", taken)}


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        ({}, {**SUMS, LEVEL: 2}),
        ({"groups": 1}, {LEVEL: 2}),
        ({"dtype": "bf16"}, SUMS),  # what is padding is asked inside loops at the lower level
        ({"groups": 1, "dtype": "bf16"}, {LEVEL: 2}),
        ({"last": "tanh"}, SUMS),
        ({"last": "sums"}, {LEVEL: 2}),
        ({"last": "gradient of weights"}, {LEVEL: 2}),
        ({"last": "gradient of the input"}, {LEVEL: 2}),
        ({"last": "sort"}, {}),
        ({"last": "loop"}, {}),
        ({"layers": 2}, {}),
    ],
    ids=str,
)
def test_networks_of_convolutions_on_cpus(
    what: dict[str, Any], wanted: dict[str, Any], rng: np.random.Generator
) -> None:
    assert chosen(network(rng, **what)[0]) == wanted


def test_a_network_of_convolutions_keeps_what_the_user_chose(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced, _ = network(rng)
    assert chosen(traced, strict=True) == {}
    assert chosen(traced, compiler_options={LEVEL: 3, EMITTERS: True}) == {}
    monkeypatch.setattr(known, "optimization_level", lambda: 1)  # as XLA_FLAGS may say
    assert chosen(traced) == SUMS
    monkeypatch.setattr(known, "HAS_PLAIN_EMITTERS", False)
    assert chosen(traced) == {}


def test_a_network_of_convolutions_computes_the_same_and_says_so(rng: np.random.Generator) -> None:
    traced, given = network(rng)
    dispatch = rlx.KernelDispatch(policy=rlx.KernelPolicy.FORCE_COMMON)
    options = rlx.CompileOptions(kernel_dispatch=dispatch)
    compiled = rlx.Session("cpu").compile(traced, options=options)
    told = compiled.report().decisions
    assert [line.split(":")[0] for line in told] == [
        *(f"{name}={value}" for name, value in SUMS.items()), f"{LEVEL}=2",
    ]  # fmt: skip
    (wanted,) = rlx.interpret(traced.graph, given, traced.params)
    np.testing.assert_allclose(compiled(given["x"]), wanted, rtol=1e-4, atol=1e-4)


def test_the_level_that_the_process_was_given() -> None:
    assert known.optimization_level() == known.USUAL_LEVEL
    x = jax.ShapeDtypeStruct((), np.float32)
    lowered = jax.jit(lambda x: x + 1).lower(x)
    names: dict[str, Any] = {LEVEL: 2, **SUMS}
    lowered.compile(compiler_options=names)


@pytest.mark.parametrize("platform", ["cpu", "rocm", "tpu"])
def test_other_platforms_get_none(platform: str) -> None:
    assert flags_for(graph_of(("f8e4m3fn", 64)), platform, OPTIONS) == ()


@pytest.mark.parametrize("products", [[("f32", 64)], [("f8e4m3fn", 64), ("bf16", 1)]])
def test_wide_products_and_single_rows_keep_the_default(products: list[tuple[str, int]]) -> None:
    assert flags_for(graph_of(*products), "cuda", OPTIONS) == ()


def test_what_the_user_chose_stays() -> None:
    chosen = {"xla_gpu_enable_triton_gemm": True}
    options = rlx.CompileOptions(compiler_options=chosen)
    assert flags_for(graph_of(("f8e4m3fn", 64)), "cuda", options) == ()


@pytest.mark.parametrize(
    "options", [rlx.CompileOptions(strict=True), rlx.CompileOptions(matmul_precision="highest")]
)
def test_sums_of_f32_are_left_to_xla_s_choice(options: rlx.CompileOptions) -> None:
    assert flags_for(graph_of(("f8e4m3fn", 64)), "cuda", options) == ()


def test_the_report_names_what_was_chosen() -> None:
    report = rlx.Session("cpu").compile(graph_of(("f32", 4))).report()
    assert not any("xla_gpu" in line for line in report.decisions)
    chosen = dataclasses.replace(report, decisions=("flag=1: a reason",))
    assert "decisions: flag=1: a reason" in str(chosen)
    assert chosen.to_dict()["decisions"] == ["flag=1: a reason"]
    assert "flag=1: a reason" in chosen._repr_html_()
