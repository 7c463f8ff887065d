"""Flags of XLA that a program asks for by itself."""

from __future__ import annotations

import dataclasses

import pytest

import rlx
from rlx.dtypes import as_dtype
from rlx.ops.dot import DotGeneral
from rlx.ops.quantized import ScaledMatmul
from rlx.passes.base import PassContext
from rlx.passes.specialize import Specialize
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
