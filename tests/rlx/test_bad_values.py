"""Wrong values for attributes, constants, inputs and params: one clear error, nothing broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops as typed_ops
from rlx.errors import DTypeError, RegistryError, RlxError, RunError, ShapeError, VerifyError

ops: Any = typed_ops
DEVICES = [d for d in ("interpret", "cpu") if d in rlx.registered_devices()]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.Softmax(axis=1.5), "'axis' is required to be int; got float"),
        (lambda: ops.Softmax(axis=True), "'axis' is required to be int; got bool"),
        (lambda: ops.Softmax(axis=10**30), "'axis' is required to be int"),
        (lambda: ops.Reshape(shape=7), "'shape' is required to be .*; got int"),
        (lambda: ops.Reshape(shape=("a",)), "'shape' is required to be"),
        (lambda: ops.Convert(dtype="f32"), "'dtype' is required to be DType; got str"),
        (lambda: ops.Compare(direction="lt"), "'direction' is required to be Direction; got str"),
        (lambda: ops.Gelu(approximate=1), "'approximate' is required to be bool; got int"),
        (lambda: ops.RmsNorm(axis=0, eps="a"), "'eps' is required to be float; got str"),
        (lambda: ops.Constant(value=1.5), "'value' is required to be Literal; got float"),
        (lambda: ops.Input(name=3, dtype=rlx.DType.F32, shape=()), "'name' is required to be str"),
    ],
)
def test_attributes_are_checked_when_an_op_is_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        make()


def test_an_int_stands_for_a_float_attribute() -> None:
    assert ops.RmsNorm(axis=0, eps=1) == ops.RmsNorm(axis=0, eps=1.0)


@pytest.mark.parametrize(
    ("data", "dtype", "message"),
    [
        ([[1], [1, 2]], None, "different lengths"),
        (1.5, "i32", "got floats"),
        ([1.5, 2], "i32", "got floats"),
        (1j, "f32", "got complex"),
        (float("nan"), "i32", "got floats"),
        (300, "u8", "does not fit u8"),
        ([1, -1], "u8", "does not fit u8"),
        (2**70, "i64", "does not fit i64"),
        (10**400, "f32", "1023 bits"),
    ],
)
def test_constants_keep_what_a_number_says(data: Any, dtype: str | None, message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        rlx.GraphBuilder().constant(data, dtype)


def test_integers_beyond_64_bits_become_floats() -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "bf16[1]")
    found = rlx.interpret(b.build(x + 2**70), {"x": [0.0]})[0]
    assert float(found[0]) == 2.0**70


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda b, x: b.build(None), VerifyError),
        (lambda b, x: b.build(3), VerifyError),
        (lambda b, x: b.concat(x, 0), ShapeError),
        (lambda b, x: b.matmul(3, x), RlxError),
        (lambda b, x: b.input("y", None), RlxError),
        (lambda b, x: b.input(["y"], "f32[1]"), RegistryError),
        (lambda b, x: x.reshape(("a",)), ShapeError),
        (lambda b, x: x.reshape((2.0, -1)), ShapeError),
        (lambda b, x: x.softmax(axis=None), ShapeError),
        (lambda b, x: x.softmax(axis=1.0), ShapeError),
        (lambda b, x: x.sum(axis="a"), ShapeError),
        (lambda b, x: x.convert(None), DTypeError),
        (lambda b, x: b.reshape(x, 6), ShapeError),
        (lambda b, x: b.transpose(x, 1), ShapeError),
        (lambda b, x: b.full(3, 1.0), ShapeError),
        (lambda b, x: b.full((3,), "one"), DTypeError),
        (lambda b, x: b.constant("one"), DTypeError),
        (lambda b, x: b.constant(None, "f32"), DTypeError),
        (lambda b, x: b.pad(x, 1), ShapeError),
        (lambda b, x: b.pad(x, (1, 1)), ShapeError),
        (lambda b, x: b.conv2d(x, x, stride=None), ShapeError),
        (lambda b, x: b.conv_transpose2d(x, x, padding=1.5), ShapeError),
        (lambda b, x: b.q_conv2d(x, x, x, stride=1), ShapeError),
        (lambda b, x: b.quantize_per_channel(x, 0, 0.5), ShapeError),
        (lambda b, x: b.dequantize_per_channel(x, 0, [0.5], 1), ShapeError),
        (lambda b, x: b.spline_activation(x, "c"), ShapeError),
        (lambda b, x: b.synth_matmul_qcodebook(x, x, x, 2.0), ShapeError),
        (lambda b, x: b.fft(x, norm=None), RegistryError),
        (lambda b, x: b.fftn(x, 1), RlxError),
        (lambda b, x: b.fftfreq("n"), ShapeError),
        (lambda b, x: b.fftfreq(2**40), ShapeError),
        (lambda b, x: b.rfftfreq(4, "d"), ShapeError),
        (lambda b, x: b.rfftfreq(4, 0), ShapeError),
        (lambda b, x: b.irfft(x, x, "n"), ShapeError),
        (lambda b, x: b.stft(x, 2, float("nan")), ShapeError),
        (lambda b, x: b.rope(x, x, x, 2, style=None), RegistryError),
        (lambda b, x: b.scan(b.build(x), x, 2, xs=3), ShapeError),
        (lambda b, x: b.scan_checkpointed(b.build(x), x, 2, "all"), ShapeError),
        (lambda b, x: b.build(x, effects=None), VerifyError),
        (lambda b, x: b.build(x, effects=("a",)), VerifyError),
        (lambda b, x: bool(x), DTypeError),
        (lambda b, x: list(x), DTypeError),
    ],
)
def test_builder_refuses(make: Callable[[Any, Any], Any], error: type[RlxError]) -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[2, 3]")
    with pytest.raises(error):
        make(b, x)
    assert rlx.interpret(b.build(x + x), {"x": np.ones((2, 3), np.float32)})[0][0, 0] == 2


@pytest.mark.parametrize("device", DEVICES)
def test_wrong_values_leave_a_compiled_graph_usable(device: str) -> None:
    b = rlx.GraphBuilder()
    x, i, u = b.input("x", "f32[2]"), b.param("i", "i32[]"), b.param("u", "u8[2]")
    compiled = rlx.Session(device).compile(b.build(x + x, i + i, u + u))
    compiled.set_params({"i": 5, "u": [1, 2]})
    for name, value in [
        ("i", 1.5), ("i", 2**40), ("i", 2**80), ("i", float("nan")), ("i", 1j), ("i", "a"),
        ("i", None), ("u", [-1, 2]), ("u", [300, 2]), ("u", [1.5, 2]), ("u", [[1], [1, 2]]),
        ("i", np.ones((), ">i4")), (3, 1), (None, 1),
    ]:  # fmt: skip
        with pytest.raises(RunError):
            compiled.set_param(name, value)  # type: ignore[arg-type]
    feed = {"x": [1, 2]}
    calls: list[Callable[[], Any]] = [
        lambda: compiled.run({"x": [[1], [1, 2]]}),
        lambda: compiled.run({"x": ["a", "b"]}),
        lambda: compiled.run(np.ones(2)),  # type: ignore[arg-type]
        lambda: compiled.run([1]),  # type: ignore[arg-type]
        lambda: compiled.run(feed, outputs=["a"]),  # type: ignore[list-item]
        lambda: compiled.run(feed, outputs=[0.0]),  # type: ignore[list-item]
        lambda: compiled.run(feed, outputs=0),  # type: ignore[arg-type]
        lambda: compiled.run_typed({"x": b"12345678"}),  # type: ignore[dict-item]
        lambda: compiled.set_params([1]),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(RunError):
            call()
    found = compiled.run(feed)
    assert [a.tolist() for a in found] == [[2.0, 4.0], 10, [2, 4]]


def test_a_list_that_is_none_says_so() -> None:
    b: Any = rlx.GraphBuilder()
    x = b.input("x", "f32[2, 3]")
    wanted = "reshape: shape is required to be a list or tuple; got int. Put brackets around it."
    with pytest.raises(ShapeError, match=f"^{re.escape(wanted)}$"):
        b.reshape(x, 6)
    assert b.reshape(x, np.array([3, 2])).type.shape == (3, 2)
    assert b.conv2d(
        b.input("y", "f32[1, 1, 3, 3]"), b.input("w", "f32[1, 1, 1, 1]"), stride=np.int64(2)
    ).type.shape == (1, 1, 2, 2)
