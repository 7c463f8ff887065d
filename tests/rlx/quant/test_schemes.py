"""Schemes by their names, and their queries."""

from __future__ import annotations

import pytest

import rlx
from rlx.errors import ParseError, RlxError
from rlx.ops.quantized import DequantMatmul
from rlx.quant import QuantScheme, all_schemes


@pytest.mark.parametrize("scheme", all_schemes(), ids=str)
def test_names_parse_back(scheme: QuantScheme) -> None:
    assert QuantScheme.parse(str(scheme)) == scheme
    if scheme.is_gguf:
        assert QuantScheme.gguf(scheme.gguf_type or "") == scheme
        assert QuantScheme.gguf(scheme.gguf_number or 0) == scheme


def test_display_names() -> None:
    made = (
        QuantScheme.int8_block(32),
        QuantScheme.int8_block_asym(32),
        QuantScheme.int4_block(32),
        QuantScheme.fp8_e4m3(),
        QuantScheme.fp8_e5m2(),
        QuantScheme.gguf("Q4_K"),
        QuantScheme.nvfp4_block(),
        QuantScheme.mlx_affine(4, 64),
        QuantScheme.mlx_mxfp4(32),
        QuantScheme.mlx_mxfp8(32),
        QuantScheme.mxfp4x2_block(32),
    )
    assert [str(s) for s in made] == [
        "int8/32", "int8a/32", "int4/32", "fp8e4m3", "fp8e5m2", "gguf_q4k", "nvfp4/16",
        "mlx_affine/4/64", "mlx_mxfp4/32", "mlx_mxfp8/32", "mxfp4x2/32",
    ]  # fmt: skip


def test_queries() -> None:
    q4k, nvfp4 = QuantScheme.gguf("q4_k"), QuantScheme.nvfp4_block()
    assert (q4k.is_gguf, q4k.has_scale, q4k.gguf_block_size, q4k.gguf_block_bytes) == (
        True, False, 256, 144,
    )  # fmt: skip
    assert q4k.bits_per_element == 4.5
    assert q4k.bits_per_element_x10 == 45
    assert (nvfp4.scale_is_fp8, nvfp4.nvfp4_group_size, nvfp4.bits_per_element) == (True, 16, 4.5)
    assert QuantScheme.mxfp4x2_block(32).mxfp4x2_config == 32
    assert [str(s) for s in all_schemes() if s.has_zero_point] == ["int8a/32", "mlx_affine/4/64"]
    assert QuantScheme.mlx_affine().is_mlx
    assert QuantScheme.gguf("Q8_K").block_bytes == 292


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "gguf_q4_k",
            "quant scheme: a name such as 'int8/32', 'gguf_q4k' or 'mlx_affine/4/64' is required; "
            "got 'gguf_q4_k'. Did you mean 'gguf_q4k'?",
        ),
        (
            "int8",
            "quant scheme: 'int8' is required to be followed by 1 sizes; got 'int8'. "
            "Write 'int8/32'.",
        ),
        (
            "int8/0",
            "quant scheme: sizes after '/' are required to be positive numbers; got 'int8/0'.",
        ),
        (
            "mlx_affine/7/64",
            "quant scheme mlx_affine: bits of 2, 3, 4, 5, 6, 8 and a group of 32, 64 or 128 is "
            "required; got block 64 and bits 7. Choose other sizes.",
        ),
    ],
)
def test_what_is_no_scheme(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        QuantScheme.parse(text)
    assert str(caught.value) == message


def test_unknown_gguf_type() -> None:
    with pytest.raises(RlxError, match=r"gguf type: one of Q4_0, .* is required; got 'Q9_K'\."):
        QuantScheme.gguf("Q9_K")


def test_schemes_print_inside_graphs() -> None:
    b = rlx.GraphBuilder()
    x, w = b.input("x", "f32[m, 256]"), b.param("w", "u8[5, 144]")
    graph = b.build(DequantMatmul(scheme=str(QuantScheme.gguf("Q4_K")))(x, w))
    assert 'scheme = "gguf_q4k"' in str(graph)
    assert rlx.same(rlx.parse(str(graph)), graph)
