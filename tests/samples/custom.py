"""Samples of user code: functions with their own derivatives, and two ops by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ir.graph import Graph, Value
from rlx.ops.custom import Custom, CustomFn, CustomOp, register_custom
from rlx.types import TensorType
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw
from tests.samples.control_flow import graph


def _infer(attrs: bytes, x: TensorType, *rest: TensorType) -> tuple[TensorType, TensorType]:
    del attrs
    if rest or not x.dtype.is_float:
        raise DTypeError(f"one float is required; got {(x, *rest)}.")
    return x, TensorType(DType.I32, x.shape)


def _evaluate(attrs: bytes, x: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    wide = x.astype(np.float64) * len(attrs)
    return wide.astype(x.dtype), np.floor(x.astype(np.float64)).astype(np.int32)


def _decompose(attrs: bytes, x: Value) -> tuple[Value, Value]:
    from rlx.ops.arithmetic import Floor

    return x * float(len(attrs)), Floor()(x).convert(DType.I32)


for _name, _decomposition in (("tests.by_ops", _decompose), ("tests.on_host", None)):
    register_custom(
        CustomOp(name=_name, infer=_infer, evaluate=_evaluate, decompose=_decomposition),
        replace=True,
    )


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        for size in (0, 1, 63):
            op = _custom_fn(str(dtype), size)
            x, y = draw(rng, dtype, (size,)), draw(rng, DType.I32, (size,))
            yield Sample(op, (x, y), f"{dtype}[{size}]")
            for name in ("tests.by_ops", "tests.on_host"):
                yield Sample(Custom(name=name, attrs=b"ab"), (x,), f"{dtype}[{size}] {name}")


def _custom_fn(dtype: str, size: Any) -> CustomFn:
    """(x, n) → x · n and n + 1, with rules that are not those of the body."""
    x, n = f"{dtype}[{size}]", f"i32[{size}]"
    return CustomFn(
        fwd=graph((x, n), lambda x, n: (x * n.convert(x.dtype), n + 1)),
        vjp=graph((x, n, x, n, x), lambda x, n, y, m, d: (d * 2.0,)),
        jvp=graph((x, n, x), lambda x, n, t: (t * 3.0,)),
        name="scaled",
    )


def error_samples() -> Iterator[ErrorSample]:
    x = "f32[3]"
    double = graph((x,), lambda x: x * 2.0)

    def made(**attributes: Graph) -> Callable[[], CustomFn]:
        return lambda: CustomFn(**{"fwd": double, **attributes})

    yield ErrorSample(made(), (x, x), ShapeError, "C1", "(f32[3], f32[3])")
    noisy = graph((x,), lambda x: x, effects=1)
    yield ErrorSample(made(fwd=noisy), (x,), ShapeError, "C1", "1 effects")
    yield ErrorSample(made(), ("f16[3]",), DTypeError, "C2", "'x0'")
    yield ErrorSample(made(), ("f32[4]",), ShapeError, "C2", "f32[4]")
    yield ErrorSample(made(), ("f32[b]",), InconclusiveDimError, "C2", "f32[b]")
    yield ErrorSample(made(vjp=double), (x,), ShapeError, "C3", "(f32[3], f32[3], f32[3])")
    two = graph((x, x, x), lambda x, y, d: (d, d))
    yield ErrorSample(made(vjp=two), (x,), ShapeError, "C3", "returns (f32[3], f32[3])")
    yield ErrorSample(made(jvp=double), (x,), ShapeError, "C4", "or (f32[3], f32[3], f32[3])")
    named = Custom(name="tests.by_ops")
    yield ErrorSample(lambda: named, (x, x), DTypeError, "C1", "'tests.by_ops'")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(_custom_fn("f32", "b"), ("f32[b]", "i32[b]"), {"b": 3})
    yield SymbolicSample(Custom(name="tests.by_ops"), ("f32[b, s]",), {"b": 2, "s": 3})
