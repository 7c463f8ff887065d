"""What a type may be made of."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.errors import DimError, DTypeError, ShapeError
from rlx.types import as_type


@pytest.mark.parametrize(
    ("dtype", "shape", "text"),
    [
        ("f32", (4, 3), "f32[4, 3]"),
        (np.float32, [4, np.int64(3)], "f32[4, 3]"),
        (np.dtype(ml_dtypes.bfloat16), ("b", "2*n + 1", 8), "bf16[b, 2*n + 1, 8]"),
        ("i32", np.array([2, 5]), "i32[2, 5]"),
        ("float64", (), "f64[]"),
    ],
)
def test_dtypes_and_dims_are_taken_as_text_and_numbers(dtype: Any, shape: Any, text: str) -> None:
    made = rlx.TensorType(dtype, shape)
    assert str(made) == text
    assert made == as_type(text)
    assert hash(made) == hash(as_type(text))
    assert made.nbytes >= 0 if made.is_static else made.symbols


@pytest.mark.parametrize(
    ("dtype", "shape", "error", "message"),
    [
        ("f33", (1,), DTypeError, r"dtype: required one of bool, .*; got 'f33'\."),
        (None, (1,), DTypeError, r"dtype: required a dtype or its name; got None\."),
        ("f32", "b, 4", ShapeError, r"type: a shape is a tuple of dims; got 'b, 4'\. Write one"),
        ("f32", 5, ShapeError, r"type: a shape is a tuple of dims; got 5\. Write one such as \("),
        ("f32", (1.5,), ShapeError, r"type: a dim is an int or .*expression; axis 0 is 1\.5\."),
        ("f32", (2, True), ShapeError, r"type: a dim is an int or .*; axis 1 is True\."),
        ("f32", ("n+",), DimError, r"dims\.parse: .* is required at column 3; got the end"),
        ("f32", [np.int32(-1)], ShapeError, r"dims are required to be ≥ 0; axis 0 is -1 in f32"),
    ],
)
def test_what_is_no_type_is_refused(
    dtype: Any, shape: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rlx.TensorType(dtype, shape)
