"""Linear layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.ir.op import Level, Op, define_op
from rlx.ops.activation_kinds import Activation, activate
from rlx.ops.blocks.forms import are_constants, direct, given
from rlx.ops.fused import operands
from rlx.ops.fused.products import FusedMatmulBiasAct
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("linear", level=Level.HIR)
class Linear(Op):
    """Linear layer, with or without bias and activation.

    y = act(x·weight + bias)

    Inputs:
        x: float[..., K]
        weight: float[K, N]
        bias: float[N]   with has_bias.

    Attributes:
        activation: what is applied last; None for nothing.
        has_bias: whether there is a bias.

    Result:
        float[..., N]

    Constraints:
        C1: x is [..., K] and weight [K, N].
        C2: bias is [N].
        C3: one dtype of f32, bf16, f16, f64.

    Source: RLX `HirOp::Linear`.
    """

    activation: Activation | None = None
    has_bias: bool = False

    def infer(
        self, x: TensorType, weight: TensorType | None = None, bias: TensorType | None = None
    ) -> TensorType:
        if weight is None:
            return x
        return _layer(self, x, weight, bias)

    def decompose(self, x: Value, weight: Value | None = None, bias: Value | None = None) -> Value:
        from rlx.ops.dot import Matmul

        inputs = given(self, 2 + self.has_bias, x, weight, bias, bias=self.has_bias)
        made: Value = Matmul()(*inputs[:2])
        if self.has_bias:
            made = made + inputs[2]
        return made if self.activation is None else activate(self.activation, made)


@direct(Linear)
def _linear(op: Linear, x: Value, weight: Value | None = None, bias: Value | None = None) -> Value:
    if not op.has_bias:
        return op.decompose(x, weight, bias)
    inputs = given(op, 3, x, weight, bias, bias=True)
    made: Value = FusedMatmulBiasAct(activation=op.activation)(*inputs)
    return made


@define_op("linear_fused", level=Level.HIR)
class LinearFused(Op):
    """Linear layer with bias that is one fused op under every policy.

    y = act(x·weight + bias)

    Inputs:
        x: float[..., K]
        weight: float[K, N]
        bias: float[N]

    Attributes:
        activation: what is applied last; None for nothing.

    Result:
        float[..., N]

    Constraints:
        C1: x is [..., K] and weight [K, N].
        C2: bias is [N].
        C3: one dtype of f32, bf16, f16, f64.

    Source: RLX `HirOp::LinearFused`.
    """

    activation: Activation | None = None

    def infer(
        self, x: TensorType, weight: TensorType | None = None, bias: TensorType | None = None
    ) -> TensorType:
        if weight is None:
            return x
        return _layer(self, x, weight, bias)

    def decompose(self, x: Value, weight: Value | None = None, bias: Value | None = None) -> Value:
        inputs = given(self, 3, x, weight, bias, bias=True)
        made: Value = FusedMatmulBiasAct(activation=self.activation)(*inputs)
        return made


@define_op("shared_linear_pair", level=Level.HIR)
class SharedLinearPair(Op):
    """One of two linear layers that read the same input.

    y = x·weight0 for slot 0, x·weight1 for slot 1

    Inputs:
        x: float[..., K]
        weight0: float[K, N]
        weight1: float[K, M]

    Attributes:
        slot: which of the two products this is, 0 or 1.

    Result:
        float[..., N] or float[..., M]

    Constraints:
        C1: x is [..., K], weight0 [K, N] and weight1 [K, M].
        C2: slot is 0 or 1.
        C3: one dtype of f32, bf16, f16, f64.

    Numerics: under the direct policy constant weights are joined to one product.
    Source: RLX `HirOp::SharedLinearPair`.
    """

    slot: int

    def infer(
        self,
        x: TensorType,
        weight0: TensorType | None = None,
        weight1: TensorType | None = None,
    ) -> TensorType:
        text = f"slot is required to be 0 or 1; got {self.slot}. Choose a product."
        self.require("C2", self.slot in (0, 1), text)
        if weight0 is None or weight1 is None:
            return x
        shapes = [operands.require_product(self, "C1", x, w) for w in (weight0, weight1)]
        operands.require_dtype(self, "C3", "x", x, weight0=weight0, weight1=weight1)
        return x.with_shape(shapes[self.slot])

    def decompose(
        self, x: Value, weight0: Value | None = None, weight1: Value | None = None
    ) -> Value:
        from rlx.ops.dot import Matmul

        x, *weights = given(self, 3, x, weight0, weight1)
        made: Value = Matmul()(x, weights[self.slot])
        return made


@direct(SharedLinearPair)
def _shared_linear_pair(
    op: SharedLinearPair, x: Value, weight0: Value | None = None, weight1: Value | None = None
) -> Value:
    x, first, second = given(op, 3, x, weight0, weight1)
    if not are_constants(first, second):
        return op.decompose(x, first, second)
    return joined_products(x, first, second)[op.slot]


def joined_products(x: Value, *weights: Value) -> tuple[Value, ...]:
    """Products of x with several weights as one product with the joined weights, cut again."""
    from rlx.ops.dot import Matmul
    from rlx.ops.shape import Concatenate

    made: Value = Matmul()(x, Concatenate(axis=1)(*weights))
    return operands.parts(made, *(w.shape[1] for w in weights))


def _layer(op: Op, x: TensorType, weight: TensorType, bias: TensorType | None) -> TensorType:
    shape = operands.require_product(op, "C1", x, weight)
    vectors: dict[str, TensorType] = {}
    if bias is not None:
        operands.require_shape(op, "C2", "bias", bias, shape[-1:], f"N of weight: {weight}")
        vectors["bias"] = bias
    operands.require_dtype(op, "C3", "x", x, weight=weight, **vectors)
    return x.with_shape(shape)
