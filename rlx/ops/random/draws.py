"""Random numbers of a graph's own: they take no input, and follow the policy of the run."""

from __future__ import annotations

import math

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.random.philox import check_shape
from rlx.options.rng import SEED_LIMIT, RngBackend, RngOptions
from rlx.types import Shape, TensorType


@define_op("rng_normal")
class RngNormal(Op):
    """Normally distributed numbers.

    y = mean + scale · z,  z = √(−2 ln u₁) · cos(2π u₂), each from the next two uniforms

    Attributes:
        dtype: element type, a real float.
        shape: of the result.
        mean: of the distribution.
        scale: its standard deviation.
        key: what tells this op's stream from those of others, a 64-bit number; the stream's seed
            is the policy's plus key · 0x9E3779B97F4A7C15.
        op_seed: a seed of the op's own for the ONNX Runtime backend; others ignore it.

    Result:
        dtype[shape]; the same numbers on every run under one policy.

    Constraints:
        C1: dtype is a real float.
        C2: dims of shape are ≥ 0.
        C3: 0 ≤ key < 2⁶⁴.

    Numerics: z is f32; mean + scale · z is rounded once to f32, then converted.
    Source: RLX `Op::RngNormal`; Box & Muller 1958. NumPy's meaning is that of the default policy.
    """

    dtype: DType
    shape: Shape
    mean: float = 0.0
    scale: float = 1.0
    key: int = 0
    op_seed: float | None = None

    def infer(self) -> TensorType:
        return _result(self, self.dtype, self.shape, self.key)

    def evaluate(self) -> Array:
        from rlx.ops.random.seeded import draw

        return draw(self, RngOptions())

    def decompose(self) -> Value:
        from rlx.ops.random.seeded import default_seed, seeded

        return seeded(self, (), default_seed(), RngBackend.PHILOX)


@define_op("rng_uniform")
class RngUniform(Op):
    """Uniformly distributed numbers.

    y = low + (high − low) · u,  u = the top 24 bits of the next word / 2²⁴

    Attributes:
        dtype: element type, a real float.
        shape: of the result.
        low: smallest number.
        high: end of the range, never reached unless it is low.
        key: what tells this op's stream from those of others, a 64-bit number; the stream's seed
            is the policy's plus key · 0x9E3779B97F4A7C15.
        op_seed: a seed of the op's own for the ONNX Runtime backend; others ignore it.

    Result:
        dtype[shape]; the same numbers on every run under one policy.

    Constraints:
        C1: dtype is a real float.
        C2: dims of shape are ≥ 0.
        C3: 0 ≤ key < 2⁶⁴.
        C4: low and high are finite, and low ≤ high.

    Numerics: low + (high − low) · u is rounded once to f32, then converted; what rounds up to high
    becomes the number below it.
    Source: RLX `Op::RngUniform`. NumPy's meaning is that of the default policy.
    """

    dtype: DType
    shape: Shape
    low: float = 0.0
    high: float = 1.0
    key: int = 0
    op_seed: float | None = None

    def infer(self) -> TensorType:
        self.require(
            "C4",
            math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high,
            f"low and high are required to be finite, and low ≤ high; got {self.low} and "
            f"{self.high}. Correct the range.",
            ShapeError,
        )
        return _result(self, self.dtype, self.shape, self.key)

    def evaluate(self) -> Array:
        from rlx.ops.random.seeded import draw

        return draw(self, RngOptions())

    def decompose(self) -> Value:
        from rlx.ops.random.seeded import default_seed, seeded

        return seeded(self, (), default_seed(), RngBackend.PHILOX)


def _result(op: Op, dtype: DType, shape: Shape, key: int) -> TensorType:
    op.require(
        "C1",
        dtype.is_float,
        f"dtype is required to be a real float; got {dtype}. Convert the result.",
        DTypeError,
    )
    check_shape(op, "C2", shape)
    op.require(
        "C3",
        0 <= key < SEED_LIMIT,
        f"key is required to be in [0, 2**64); got {key}. Take it modulo 2**64.",
    )
    return TensorType(dtype, shape)
