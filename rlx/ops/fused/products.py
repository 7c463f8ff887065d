"""Products with what follows them: bias, activation, residual, gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import dims
from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError
from rlx.ir.op import Op, define_op
from rlx.ops.activation_kinds import Activation, activate
from rlx.ops.fused import operands
from rlx.types import Dim, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("fused_matmul_bias_act")
class FusedMatmulBiasAct(Op):
    """Matrix product, bias and activation.

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

    Numerics: accumulates and computes in f32 (f64 for f64); result rounded once.
    Source: RLX `Op::FusedMatMulBiasAct`.
    """

    activation: Activation | None = None

    def infer(self, x: TensorType, weight: TensorType, bias: TensorType) -> TensorType:
        shape = operands.require_product(self, "C1", x, weight)
        why = f"N of weight: {weight}"
        operands.require_shape(self, "C2", "bias", bias, shape[-1:], why)
        operands.require_dtype(self, "C3", "x", x, weight=weight, bias=bias)
        return x.with_shape(shape)

    def decompose(self, x: Value, weight: Value, bias: Value) -> Value:
        made = operands.product(x, weight)
        made = made + operands.along(bias, -1, made.shape)
        return _activated(self.activation, made).convert(x.dtype)


@define_op("fused_matmul_residual")
class FusedMatmulResidual(Op):
    """Matrix product added to a residual.

    y = x·weight + residual

    Inputs:
        x: float[..., K]
        weight: float[K, N]
        residual: float[..., N]

    Result:
        float[..., N]

    Constraints:
        C1: x is [..., K] and weight [K, N].
        C2: residual has the shape of the product.
        C3: one dtype of f32, bf16, f16, f64.

    Numerics: accumulates and adds in f32 (f64 for f64); result rounded once.
    Source: RLX `Op::FusedMatMulResidual`.
    """

    def infer(self, x: TensorType, weight: TensorType, residual: TensorType) -> TensorType:
        shape = operands.require_product(self, "C1", x, weight)
        why = f"the product of x: {x} and weight: {weight}"
        operands.require_shape(self, "C2", "residual", residual, shape, why)
        operands.require_dtype(self, "C3", "x", x, weight=weight, residual=residual)
        return x.with_shape(shape)

    def decompose(self, x: Value, weight: Value, residual: Value) -> Value:
        return (operands.product(x, weight) + operands.wide(residual)).convert(x.dtype)


@define_op("fused_swiglu")
class FusedSwiglu(Op):
    """Gated linear unit over the two halves of the last axis.

    y = silu(gate) * up

    Inputs:
        x: float[..., 2·N]   up, then gate; with gate_first the other way round.

    Attributes:
        gate_first: whether the first half is the gate.
        cast_to: dtype of the result; None for that of x.

    Result:
        float[..., N]

    Constraints:
        C1: x has a last axis of even size.
        C2: x, and cast_to where it is given, are one of f32, bf16, f16, f64.

    Numerics: computes in f32 (f64 for f64); result rounded once.
    Source: Shazeer 2020, arXiv:2002.05202; RLX `Op::FusedSwiGLU`.
    """

    gate_first: bool = False
    cast_to: DType | None = None

    def infer(self, x: TensorType) -> TensorType:
        text = f"x is required to be [..., 2·N]; got {x}. Concatenate the halves."
        self.require("C1", x.rank >= 1, text)
        try:
            even = dims.divisible(x.shape[-1], 2)
        except InconclusiveDimError as error:
            raise InconclusiveDimError(
                f"{self.op_name} [C1]: {text} {error}", label="C1"
            ) from error
        self.require("C1", even, text)
        operands.require_float(self, "C2", "x", x)
        target = x.dtype if self.cast_to is None else self.cast_to
        self.require(
            "C2",
            target in operands.DTYPES,
            f"cast_to is required to be one of {', '.join(map(str, operands.DTYPES))}; "
            f"got {target}. Convert afterwards.",
            DTypeError,
        )
        return TensorType(target, (*x.shape[:-1], _half(x.shape[-1])))

    def decompose(self, x: Value) -> Value:
        half = _half(x.shape[-1])
        first, second = (operands.wide(part) for part in operands.parts(x, half, half))
        gate, up = (first, second) if self.gate_first else (second, first)
        return (activate(Activation.SILU, gate) * up).convert(self.cast_to or x.dtype)


@define_op("fused_conv_bias_act")
class FusedConvBiasAct(Op):
    """Convolution, bias, residual and activation, channels first.

    y = act(conv(x, weight) + bias + residual)

    Inputs:
        x: float[N, C, *spatial]
        weight: float[O, C / groups, *kernel]
        bias: float[O]
        residual: float[N, O, *places]   left out for none.

    Attributes:
        stride: one for each spatial axis.
        padding: zeros on both sides of each spatial axis.
        dilation: distance between neighbours of the kernel.
        groups: channels form so many separate groups.
        activation: what is applied last; None for nothing.

    Result:
        The type of the convolution.

    Constraints:
        C1: x and weight have one rank ≥ 2; one attribute entry for each spatial axis; stride,
            dilation and groups are positive, padding is not negative.
        C2: bias is [O].
        C3: residual has the shape of the convolution.
        C4: one dtype of f32, bf16, f16, f64.
        C5: channels of x are those of weight times groups; groups divide O.

    Numerics: accumulates and computes in f32 (f64 for f64); result rounded once.
    Source: RLX `Op::FusedConvBiasAct`.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    activation: Activation | None = None

    def infer(
        self,
        x: TensorType,
        weight: TensorType,
        bias: TensorType,
        residual: TensorType | None = None,
    ) -> TensorType:
        given = {"weight": weight, "bias": bias}
        if residual is not None:
            given["residual"] = residual
        operands.require_dtype(self, "C4", "x", x, **given)
        self._check_window(x, weight)
        shape = self._general(x.rank, x.dtype).infer(x, weight).shape
        why = f"the output channels of weight: {weight}"
        operands.require_shape(self, "C2", "bias", bias, weight.shape[:1], why)
        if residual is not None:
            why = f"the convolution of x: {x} with weight: {weight}"
            operands.require_shape(self, "C3", "residual", residual, shape, why)
        return x.with_shape(shape)

    def decompose(
        self, x: Value, weight: Value, bias: Value, residual: Value | None = None
    ) -> Value:
        made: Value = self._general(x.rank, x.dtype)(x, weight)
        made = made + operands.along(bias, 1, made.shape)
        if residual is not None:
            made = made + operands.wide(residual)
        return _activated(self.activation, made).convert(x.dtype)

    def _check_window(self, x: TensorType, weight: TensorType) -> None:
        from rlx.ops.convolution import divisible

        spatial = x.rank - 2
        window = (self.stride, self.padding, self.dilation)
        self.require(
            "C1",
            x.rank == weight.rank >= 2
            and all(len(part) == spatial for part in window)
            and min((*self.stride, *self.dilation, self.groups)) >= 1
            and min((0, *self.padding)) >= 0,
            f"x and weight are required to have one rank ≥ 2, the attributes one entry for each of "
            f"the spatial axes, stride, dilation and groups to be ≥ 1 and padding ≥ 0; got "
            f"x: {x}, weight: {weight}, stride {self.stride}, padding {self.padding}, dilation "
            f"{self.dilation}, groups {self.groups}. Correct the attribute.",
        )
        self.require_same_dims(
            "C5",
            (x.shape[1],),
            (weight.shape[1] * self.groups,),
            f"channels of x are required to be weight's × {self.groups} groups; got x: {x}, "
            f"weight: {weight}. Check groups.",
        )
        divisible(self, "C5", weight.shape[0], self.groups, f"output channels of weight: {weight}")

    def _general(self, rank: int, dtype: DType) -> Op:
        from rlx.ops.convolution import ConvGeneralDilated

        order = tuple(range(rank))
        return ConvGeneralDilated(
            window_strides=self.stride,
            padding=tuple((p, p) for p in self.padding),
            lhs_dilation=(1,) * (rank - 2),
            rhs_dilation=self.dilation,
            lhs_spec=order,
            rhs_spec=order,
            out_spec=order,
            feature_group_count=self.groups,
            preferred_element_type=None if dtype.compute is dtype else dtype.compute,
        )


def _activated(kind: Activation | None, x: Value) -> Value:
    return x if kind is None else activate(kind, x)


def _half(size: Dim) -> Dim:
    return dims.exact_div(size, 2)
