"""Samples of activation functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.ir.op import Op
from rlx.ops import activation as ops
from tests.samples.base import FLOATS, INTS, ErrorSample, Sample, SymbolicSample
from tests.samples.elementwise import elementwise, unary_errors

_OPS: tuple[type[Op], ...] = (
    ops.LeakyRelu,
    ops.Gelu,
    ops.Silu,
    ops.Softplus,
    ops.Elu,
    ops.HardSigmoid,
    ops.HardSwish,
    ops.Mish,
    ops.Softsign,
    ops.LogSigmoid,
)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from elementwise(rng, ops.Relu(), (*FLOATS, *INTS, DType.U8))
    for op in (*(cls() for cls in _OPS), ops.Gelu(approximate=True)):
        yield from elementwise(rng, op, FLOATS, low=-8, high=8)
    for op in (ops.LeakyRelu(alpha=0.3), ops.Elu(alpha=2.5)):
        yield from elementwise(rng, op, FLOATS[:1])
    yield from _written_out(rng)


def _written_out(rng: np.random.Generator) -> Iterator[Sample]:
    """The formulas as the papers have them, in double precision."""
    from scipy.special import erfc

    x = rng.uniform(-6, 6, 65)
    sigmoid, softplus = 1 / (1 + np.exp(-x)), np.log1p(np.exp(x))
    cubic = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    formulas: dict[Op, np.ndarray] = {
        ops.Relu(): np.maximum(x, 0),
        ops.LeakyRelu(): np.where(x >= 0, x, 0.01 * x),
        ops.Gelu(): x * erfc(-x / np.sqrt(2)) / 2,
        ops.Gelu(approximate=True): x * (1 + np.tanh(cubic)) / 2,
        ops.Silu(): x * sigmoid,
        ops.Softplus(): softplus,
        ops.Elu(): np.where(x > 0, x, np.expm1(x)),
        ops.HardSigmoid(): np.clip(x / 6 + 0.5, 0, 1),
        ops.HardSwish(): x * np.clip(x + 3, 0, 6) / 6,
        ops.Mish(): x * np.tanh(softplus),
        ops.Softsign(): x / (1 + abs(x)),
        ops.LogSigmoid(): np.log(sigmoid),
    }
    for op, wanted in formulas.items():
        yield Sample(op, (x,), "formula", check=_near(wanted))


def _near(formula: np.ndarray) -> Callable[..., None]:
    def check(found: list[np.ndarray], wanted: list[np.ndarray], inputs: object) -> None:
        for result in (found[0], wanted[0]):
            np.testing.assert_allclose(result, formula, rtol=1e-11, atol=1e-12)

    return check


def error_samples() -> Iterator[ErrorSample]:
    yield from unary_errors(ops.Relu, "bool")
    for op in _OPS:
        yield from unary_errors(op, "i32")


def symbolic_samples() -> Iterator[SymbolicSample]:
    for op in (ops.Relu, *_OPS):
        yield SymbolicSample(op(), ("f32[b, 4]",), {"b": 3})
