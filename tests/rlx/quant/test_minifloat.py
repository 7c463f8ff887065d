"""Small floats against ml_dtypes and against a search over all their numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.errors import ParseError, RlxError
from rlx.quant import (
    ScaledFormat,
    ScaledQuantConfig,
    ScaleLayout,
    dequantize_scaled,
    quantize_scaled,
)
from rlx.quant.lanes import NUMPY
from rlx.quant.minifloat import decode_e8m0, encode_e8m0

Array = np.ndarray[Any, Any]

HARDWARE = {
    "f8e4m3": (ml_dtypes.float8_e4m3fn, 448.0),
    "f8e5m2": (ml_dtypes.float8_e5m2, 57344.0),
    "f8e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, 240.0),
    "f8e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, 57344.0),
    "f6e2m3": (ml_dtypes.float6_e2m3fn, 7.5),
    "f6e3m2": (ml_dtypes.float6_e3m2fn, 28.0),
    "f4e2m1": (ml_dtypes.float4_e2m1fn, 6.0),
}
CUSTOM = [ScaledFormat.custom(e, m) for e in range(1, 8) for m in range(8 - e)]


def probes(form: ScaledFormat, rng: np.random.Generator) -> Array:
    """Every number of a format, what lies half way between two, its neighbours, and others."""
    values = form.representable_values()
    middle = (values[1:] + values[:-1]) / 2
    up, down = np.float32(np.inf), np.float32(-np.inf)
    near = [np.nextafter(middle, up), np.nextafter(middle, down)]
    spread = rng.normal(size=200) * form.max_finite
    return np.concatenate([values, middle, *near, spread]).astype(np.float32)


@pytest.mark.parametrize("name", HARDWARE)
def test_hardware_formats(name: str, rng: np.random.Generator) -> None:
    form, (dtype, most) = ScaledFormat.parse(name), HARDWARE[name]
    codes = np.arange(1 << form.bit_width, dtype=np.uint8)
    wanted = codes.view(dtype).astype(np.float32)
    np.testing.assert_array_equal(form.decode(codes), wanted)
    assert form.max_finite == most
    x = np.clip(probes(form, rng), -most, most)  # ml_dtypes gives NaN beyond, RLX saturates
    np.testing.assert_array_equal(form.quantize(x), x.astype(dtype).astype(np.float32))
    assert str(ScaledFormat.parse(str(form))) == name


@pytest.mark.parametrize("form", CUSTOM, ids=str)
def test_custom_formats_take_the_nearest_number(
    form: ScaledFormat, rng: np.random.Generator
) -> None:
    numbers = form.decode(np.arange(1 << form.bit_width, dtype=np.uint8)).astype(np.float64)
    x = np.concatenate([probes(form, rng), np.float32([np.inf, -np.inf, -0.0])])
    for value, code in zip(x, form.encode(x), strict=True):
        distance = np.abs(numbers - np.clip(value, -form.max_finite, form.max_finite))
        best = np.flatnonzero(distance == distance.min())
        even = best[best % 2 == 0]
        assert code == (even if len(even) else best)[0], value
    assert form.encode(np.float32([np.nan]))[0] == 0
    assert ScaledFormat.parse(str(form)) == form


def test_there_are_28_custom_formats() -> None:
    assert len({str(form) for form in CUSTOM}) == 28


def test_f4e3m0() -> None:
    grid = [0, 0.25, 0.5, 1, 2, 4, 8, 16]
    found = ScaledFormat.parse("f4e3m0").representable_values()
    assert found.tolist() == sorted({s * v for v in grid for s in (1, -1)})


def test_names_that_hardware_has_mean_hardware() -> None:
    assert ScaledFormat.parse("f8e4m3").max_finite == 448
    assert ScaledFormat.custom(4, 3).max_finite == 480
    assert str(ScaledFormat.custom(4, 3)) == "f8e4m3b7"
    assert str(ScaledFormat.custom_with_bias(3, 0, 5)) == "f4e3m0b5"
    assert [f.kernel_id for f in ScaledFormat.NAMED] == list(range(7))
    assert ScaledFormat.custom_with_bias(3, 0, -1).kernel_id == 0x80000000 | 3 | 0xFF << 8


@pytest.mark.parametrize("text", ["f8", "f9e4m4", "f4e3m1", "f4e0m3", "bf16", "", "f4e3m0b999"])
def test_what_is_no_format(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        ScaledFormat.parse(text)
    if text == "f4e3m0b999":
        assert "got exp_bits 3, mant_bits 0, bias 999." in str(caught.value)
    else:
        assert str(caught.value) == (f'invalid minifloat format "{text}" (expected e.g. "f4e3m0")')


def test_widths_that_do_not_fit() -> None:
    with pytest.raises(RlxError) as caught:
        ScaledFormat.custom(5, 3)
    assert str(caught.value) == (
        "minifloat: exp_bits ≥ 1, mant_bits ≥ 0, 1 + exp_bits + mant_bits ≤ 8 and numbers that "
        "f32 holds as normal ones are required; got exp_bits 5, mant_bits 3, bias 15. "
        "Choose other widths or bias."
    )


def test_powers_of_two_round_up(rng: np.random.Generator) -> None:
    x = np.exp2(rng.uniform(-120, 120, 500)).astype(np.float32)
    wanted = np.ceil(np.log2(x.astype(np.float64))) + 127
    np.testing.assert_array_equal(encode_e8m0(NUMPY, x), wanted.astype(np.uint8))
    assert (decode_e8m0(NUMPY, encode_e8m0(NUMPY, x)) >= x).all()
    odd = np.float32([0, -1, np.inf, np.nan, 1, 2, 3, 3e38])
    assert encode_e8m0(NUMPY, odd).tolist() == [0, 0, 0, 0, 127, 128, 129, 254]
    assert decode_e8m0(NUMPY, np.uint8([0, 127])).tolist() == [2.0**-127, 1.0]
    assert np.isnan(decode_e8m0(NUMPY, np.uint8([255]))).all()


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("per_tensor", "per_tensor"),
        ("pertensor", "per_tensor"),
        ("per_row", "per_row"),
        ("mx", "mx_e8m0/32"),
        ("mxfp8", "mx_e8m0/32"),
        ("block", "mx_e8m0/32"),
        ("mx/16", "mx_e8m0/16"),
        ("mx_e8m0/64", "mx_e8m0/64"),
        ("nvfp4", "nvfp4/16"),
        ("nvfp4/8", "nvfp4/8"),
    ],
)
def test_layout_names(text: str, printed: str) -> None:
    assert str(ScaleLayout.parse(text)) == printed
    assert ScaleLayout.parse(printed) == ScaleLayout.parse(text)


@pytest.mark.parametrize("text", ["mx/0", "nvfp4/x", "per_tensor/2", "mxfp8/32", "rows"])
def test_what_is_no_layout(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        ScaleLayout.parse(text)
    assert str(caught.value) == (
        f'invalid scale layout "{text}" (expected per_tensor, per_row, mx, mxfp8, block, nvfp4, '
        "mx/<n>, mx_e8m0/<n> or nvfp4/<n>)"
    )


@pytest.mark.parametrize("layout", ["per_tensor", "per_row", "mx/32", "mx/7", "nvfp4"])
@pytest.mark.parametrize("form", ["f8e4m3", "f6e2m3", "f4e2m1", "f4e3m0"])
def test_scaled_tensors(form: str, layout: str, rng: np.random.Generator) -> None:
    made, way = ScaledFormat.parse(form), ScaleLayout.parse(layout)
    x = rng.normal(size=(3, 65)).astype(np.float32)
    codes, scale = quantize_scaled(x, made, way)
    back = dequantize_scaled(codes, scale, made, way)
    # The formula by hand, one element at a time.
    size = way.block or 65
    for row in range(3):
        for start in range(0, 65, size):
            part = x[row, start : start + size]
            amax = np.abs(x if layout == "per_tensor" else part).max()
            s = float(amax / np.float32(made.max_finite))
            if layout.startswith("mx"):
                s = 2.0 ** np.ceil(np.log2(s))
            elif layout == "nvfp4":
                s = float(np.float32(s).astype(ml_dtypes.float8_e4m3fn))
            wanted = made.quantize(part / np.float32(s)) * np.float32(s)
            np.testing.assert_allclose(back[row, start : start + size], wanted, rtol=1e-6)


def test_zeros_have_scale_one() -> None:
    for layout, one in (("per_tensor", 1.0), ("mx", 127), ("nvfp4", 0x38)):
        codes, scale = quantize_scaled(
            np.zeros((2, 32), np.float32), ScaledFormat.F8E4M3, ScaleLayout.parse(layout)
        )
        assert not codes.any()
        assert (scale == one).all()


def test_configurations() -> None:
    assert str(ScaledQuantConfig.fp8_e4m3()) == "f8e4m3, per_tensor"
    assert str(ScaledQuantConfig.mxfp8_e4m3()) == "f8e4m3, mx_e8m0/32"
    assert str(ScaledQuantConfig.nvfp4()) == "f4e2m1, nvfp4/16"
    assert str(ScaledQuantConfig.of("f4e3m0", "mx/16")) == "f4e3m0, mx_e8m0/16"
