"""Every op kind of RLX has an op here, or a reason why it has none.

The tables follow RLX's op catalogue. A kind that another op covers exactly names that op; a kind
whose parts are results of one op names the op.
"""

from __future__ import annotations

import enum

import numpy as np
import pytest

from rlx import ops
from rlx.dtypes import DType
from rlx.ir.op import all_ops
from rlx.ops.activation_kinds import Activation
from rlx.ops.attention import MaskKind
from rlx.ops.backward.attention import AttentionBackwardWrt
from rlx.ops.compare import Direction
from rlx.ops.complex_fft import BlockNorm
from rlx.ops.convert import Convert
from rlx.ops.indexing import ScatterKind
from rlx.ops.pooling import WindowKind
from rlx.ops.position import RopeStyle
from rlx.ops.shape import EdgeMode
from rlx.ops.sorting import TopK

Ops = tuple[str, ...]

LEAVES_AND_ELEMENTWISE: dict[str, Ops] = {
    "Input": ("Input",),
    "Param": ("Param",),
    "Constant": ("Constant",),
    "Activation": (
        "Gelu", "Silu", "Relu", "Logistic", "Tanh", "Exp", "Log", "Sqrt", "Rsqrt", "Neg", "Abs",
        "Sin", "Cos", "Tan", "Atan", "Round", "Div", "Floor", "Ceil", "Sign", "Softplus", "Elu",
        "Erf", "HardSwish", "HardSigmoid", "Mish", "Softsign", "LogSigmoid",
    ),
    "Cast": ("Convert",),
    "StopGradient": ("StopGradient",),
    "Quantize": ("Quantize",),
    "Dequantize": ("Dequantize",),
    "FakeQuantize": ("FakeQuantize",),
    "FakeQuantizeLSQ": ("FakeQuantizeLsq",),
    "Binary": (
        "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Rem", "And", "Or", "Xor", "ShiftLeft",
        "ShiftRightLogical", "ShiftRightArithmetic", "Atan2",
    ),
    "Compare": ("Compare",),
    "Where": ("Select",),
    "Fma": ("Fma",),
    "ElementwiseRegion": ("ElementwiseRegion",),
    "BatchElementwiseRegion": ("BatchElementwiseRegion",),
    "TransformRegion": ("TransformRegion",),
    "Clamp": ("Clamp",),
}  # fmt: skip

LINEAR_ALGEBRA: dict[str, Ops] = {
    "MatMul": ("Matmul",),
    "DotGeneral": ("DotGeneral",),
    "DenseSolve": ("DenseSolve",),
    "BatchedDenseSolve": ("DenseSolve",),
    "GroupedMatMul": ("GroupedMatmul",),
    "LoraMatMul": ("LoraMatmul",),
    "Cholesky": ("Cholesky",),
    "TriangularSolve": ("TriangularSolve",),
    "Det": ("Det",),
    "LogDet": ("LogDet",),
    "Svd": ("Svd",),
    "Qr": ("Qr",),
    "Eigh": ("Eigh", "EighBatch"),
    "EighBatch": ("EighBatch",),
    "PartitionedConv": ("PartitionedConv",),
}

NORMS: dict[str, Ops] = {
    "LayerNorm": ("LayerNorm",),
    "RmsNorm": ("RmsNorm",),
    "LayerNorm2d": ("LayerNorm2d",),
    "GroupNorm": ("GroupNorm",),
    "BatchNormInference": ("BatchNormInference",),
    "AdaLayerNorm": ("AdaLayerNorm",),
    "GatedResidual": ("GatedResidual",),
}

ATTENTION: dict[str, Ops] = {
    "Attention": ("Attention",),
    "Rope": ("Rope",),
    "AxialRope2d": ("AxialRope2d",),
}

MOVEMENT: dict[str, Ops] = {
    "Reshape": ("Reshape",),
    "Transpose": ("Transpose",),
    "Narrow": ("Narrow",),
    "Concat": ("Concatenate",),
    "Expand": ("Expand",),
    "Gather": ("Gather",),
    "ScatterAdd": ("ScatterAdd",),
    "ResizeNearest2x": ("ResizeNearest2x",),
    "Interpolate3d": ("Interpolate3d",),
    "Slice": ("StridedSlice",),
    "Reverse": ("Reverse",),
    "Pad": ("Pad", "PadEdges"),
    "Roll": ("Roll",),
    "Tile": ("Tile",),
    "Trilu": ("Trilu",),
    "KvAppend": ("KvAppend", "DynamicUpdateSlice"),
    "ScatterNd": ("ScatterNd",),
    "ScatterElements": ("ScatterElements",),
    "GatherNd": ("GatherNd",),
    "GatherElements": ("GatherElements",),
}

REDUCTIONS: dict[str, Ops] = {
    "Reduce": ("ReduceSum", "Mean", "ReduceMax", "ReduceMin", "ReduceProd"),
    "Softmax": ("Softmax",),
    "Cumsum": ("CumSum",),
    "CumProd": ("CumProd",),
    "CumMax": ("CumMax",),
    "TopK": ("TopK",),
    "ArgMax": ("Argmax",),
    "ArgMin": ("Argmin",),
    "Sort": ("Sort",),
    "ArgSort": ("ArgSort",),
    "Histogram": ("Histogram",),
    "Sample": ("Sample",),
    "RngNormal": ("RngNormal",),
    "RngUniform": ("RngUniform",),
}

CONVOLUTION: dict[str, Ops] = {
    "Conv": ("Conv",),
    "ConvTranspose2d": ("ConvTranspose",),
    "Conv3d": ("Conv",),
    "ConvTranspose3d": ("ConvTranspose",),
    "Im2Col": ("Im2Col",),
    "Pool": ("Pool",),
    "FusedConvBiasAct": ("FusedConvBiasAct",),
}

SEQUENCE: dict[str, Ops] = {
    "SelectiveScan": ("SelectiveScan",),
    "GatedDeltaNet": ("GatedDeltaNet",),
    "Lstm": ("Lstm",),
    "Gru": ("Gru",),
    "Rnn": ("Rnn",),
    "Mamba2": ("Mamba2",),
}

QUANTIZED: dict[str, Ops] = {
    "DequantMatMul": ("DequantMatmul",),
    "DequantGroupedMatMul": ("DequantGroupedMatmul",),
    "DequantGroupedMatMulMlx": ("DequantGroupedMatmulMlx",),
    "DequantMoEWeights": ("DequantMoeWeights",),
    "QMatMul": ("QMatmul",),
    "QConv2d": ("QConv2d",),
    "ScaledMatMul": ("ScaledMatmul",),
    "ScaledGroupedMatMul": ("ScaledGroupedMatmul",),
    "ScaledQuantize": ("ScaledQuantize",),
    "ScaledQuantScale": ("ScaledQuantScale",),
    "ScaledDequantize": ("ScaledDequantize",),
    "SynthMatMul": ("SynthMatmul",),
    "SynthReconstruct": ("SynthReconstruct",),
    "SynthMatMulBackward": ("SynthMatmulBackward",),
    "SplineActivation": ("SplineActivation",),
    "SplineActivationBackwardX": ("SplineActivationBackwardX",),
    "SplineActivationBackwardCoeff": ("SplineActivationBackwardCoeff",),
}

COMPLEX: dict[str, Ops] = {
    "Fft": ("BlockFft", "Fft"),
    "ComplexNormSq": ("ComplexNormSq",),
    "ComplexNormSqBackward": ("ComplexNormSqBackward",),
    "Conjugate": ("Conj",),
    "FftQ": ("FftQ",),
    "FftButterflyStage": ("FftButterflyStage",),
    "LogMel": ("LogMel",),
    "LogMelBackward": ("LogMelBackward",),
    "WelchPeaks": ("WelchPeaks",),
}

FUSED: dict[str, Ops] = {
    "FusedMatMulBiasAct": ("FusedMatmulBiasAct",),
    "FusedMatMulResidual": ("FusedMatmulResidual",),
    "FusedSwiGLU": ("FusedSwiglu",),
    "FusedResidualLN": ("FusedResidualLn",),
    "FusedResidualRmsNorm": ("FusedResidualRmsNorm",),
    "FusedAttentionBlock": ("FusedAttentionBlock",),
    "FusedTransformerLayer": ("FusedTransformerLayer",),
    "AttentionBackwardAll": ("AttentionBackwardAll",),
}

CONTROL_FLOW: dict[str, Ops] = {
    "If": ("Cond",),
    "While": ("While",),
    "Scan": ("Scan",),
    "ScanBackward": ("ScanBackward",),
    "ScanBackwardXs": ("ScanBackwardXs",),
    "Custom": ("Custom",),
    "CustomFn": ("CustomFn",),
}

LOSS_AND_BACKWARD: dict[str, Ops] = {
    "SoftmaxCrossEntropyWithLogits": ("SoftmaxCrossEntropyWithLogits",),
    "SoftmaxCrossEntropy": ("SoftmaxCrossEntropy",),
    "SoftmaxCrossEntropyBackward": ("SoftmaxCrossEntropyBackward",),
    "ReluBackward": ("ReluBackward",),
    "ActivationBackward": ("ActivationBackward",),
    "FakeQuantizeBackward": ("FakeQuantizeBackward",),
    "FakeQuantizeLSQBackwardX": ("FakeQuantizeLsqBackwardX",),
    "FakeQuantizeLSQBackwardScale": ("FakeQuantizeLsqBackwardScale",),
    "MaxPool2dBackward": ("MaxPool2dBackward",),
    "MaxPool3dBackward": ("MaxPool3dBackward",),
    "Conv2dBackwardInput": ("Conv2dBackwardInput",),
    "Conv2dBackwardWeight": ("Conv2dBackwardWeight",),
    "Conv3dBackwardInput": ("Conv3dBackwardInput",),
    "Conv3dBackwardWeight": ("Conv3dBackwardWeight",),
    "AttentionBackward": ("AttentionBackward",),
    "LayerNormBackwardInput": ("LayerNormBackwardInput",),
    "LayerNormBackwardGamma": ("LayerNormBackwardGamma",),
    "RmsNormBackwardInput": ("RmsNormBackwardInput",),
    "RmsNormBackwardGamma": ("RmsNormBackwardGamma",),
    "RmsNormBackwardBeta": ("RmsNormBackwardBeta",),
    "GroupNormBackwardInput": ("GroupNormBackwardInput",),
    "GroupNormBackwardGamma": ("GroupNormBackwardGamma",),
    "GroupNormBackwardBeta": ("GroupNormBackwardBeta",),
    "RopeBackward": ("RopeBackward",),
    "CumsumBackward": ("CumsumBackward",),
    "GatherBackward": ("GatherBackward",),
    "BatchNormInferenceBackward": ("BatchNormInferenceBackward",),
    "AdaLayerNormBackward": ("AdaLayerNormBackward",),
    "GatedResidualBackward": ("GatedResidualBackward",),
    "GatedDeltaNetBackward": ("GatedDeltaNetBackward",),
    "EighBackward": ("EighBackward",),
}

SECTIONS = (
    LEAVES_AND_ELEMENTWISE, LINEAR_ALGEBRA, NORMS, ATTENTION, MOVEMENT, REDUCTIONS, CONVOLUTION,
    SEQUENCE, QUANTIZED, COMPLEX, FUSED, CONTROL_FLOW, LOSS_AND_BACKWARD,
)  # fmt: skip

_SPD = "an application's own family, in f64; its parts are eigh, matmul and elementwise ops"
_SPLAT = "an application's own renderer, with a reference of its own outside of RLX's core"

LEFT_OUT: dict[str, str] = {
    "BiMap": _SPD,
    "ReEig": _SPD,
    "LogEig": _SPD,
    "SpdBatchNorm": _SPD,
    "SpdKarcherMean": _SPD,
    "SpdKarcherMeanWeighted": _SPD,
    "SpdLogMap": _SPD,
    "SpdExpMap": _SPD,
    "SpdParallelTransport": _SPD,
    "MatrixFnBatch": _SPD,
    "GaussianSplatRender": _SPLAT,
    "GaussianSplatPrepare": _SPLAT,
    "GaussianSplatRasterize": _SPLAT,
    "GaussianSplatRenderBackward": _SPLAT,
}

KINDS = [pair for section in SECTIONS for pair in section.items()]


@pytest.mark.parametrize(("kind", "names"), KINDS, ids=[kind for kind, _ in KINDS])
def test_the_kind_has_an_op(kind: str, names: Ops) -> None:
    classes = {cls.__name__ for cls in all_ops().values() if cls.__module__.startswith("rlx.ops.")}
    assert names
    assert not [name for name in names if name not in classes], kind


def test_a_kind_stands_once_and_a_reason_is_a_sentence() -> None:
    kinds = [kind for kind, _ in KINDS] + list(LEFT_OUT)
    assert len(set(kinds)) == len(kinds)
    assert all(len(reason.split()) > 4 for reason in LEFT_OUT.values())


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (
            "GELU GELU_APPROX SILU RELU SIGMOID TANH EXP LOG SQRT RSQRT NEG ABS SIN COS TAN ATAN "
            "ROUND RECIP FLOOR CEIL SIGN SOFTPLUS ELU ERF HARD_SWISH HARD_SIGMOID MISH SOFTSIGN "
            "LOG_SIGMOID",
            Activation,
        ),
        ("NONE CAUSAL SLIDING_WINDOW CUSTOM BIAS", MaskKind),
        ("NEOX GPTJ", RopeStyle),
        ("QUERY KEY VALUE", AttentionBackwardWrt),
        ("EQ NE LT LE GT GE", Direction),
        ("SUM MAX MIN PROD", WindowKind),
        ("REFLECT REPLICATE CIRCULAR", EdgeMode),
        ("SET ADD MUL MAX MIN", ScatterKind),
        ("BACKWARD FORWARD ORTHO", BlockNorm),
    ],
)
def test_enumerations_have_every_member(names: str, kind: type[enum.Enum]) -> None:
    assert not [name for name in names.split() if name not in kind.__members__]


def test_mod_is_fmod() -> None:
    x, y = (np.random.default_rng().uniform(-9, 9, 50).astype(np.float32) for _ in "xy")
    assert np.array_equal(ops.Rem().evaluate(x, y), np.fmod(x, y))


def test_recip_is_a_quotient_and_shr_keeps_the_sign_of_signed_numbers() -> None:
    x = np.array([-8, 7], np.int32)
    two = np.array([1, 1], np.int32)
    assert ops.ShiftRightArithmetic().evaluate(x, two).tolist() == [-4, 3]
    assert ops.ShiftRightLogical().evaluate(x.astype(np.uint32), two.astype(np.uint32))[1] == 3


def test_a_cast_truncates_and_bool_is_not_zero() -> None:
    x = np.array([-1.7, 0.0, 2.9, np.nan, 3e9], np.float32)
    cast = Convert(dtype=DType.I32).evaluate(x)
    assert cast.tolist() == [-1, 0, 2, 0, 2**31 - 1]
    assert Convert(dtype=DType.BOOL).evaluate(x[:3]).tolist() == [True, False, True]


def test_top_k_has_the_indices_as_its_second_result() -> None:
    x = np.array([[1, 3, np.nan, 3, 2]], np.float32)
    assert TopK(k=4).evaluate(x)[1].tolist() == [[1, 3, 4, 0]]


def test_parts_of_factorisations_are_results() -> None:
    x = np.random.default_rng().normal(size=(4, 3))
    s, u, vt = ops.Svd().evaluate(x)
    np.testing.assert_allclose(u * s @ vt, x)
    q, r = ops.Qr().evaluate(x)
    np.testing.assert_allclose(q @ r, x)
    assert [a.shape for a in (u, s, vt, q, r)] == [(4, 3), (3,), (3, 3), (4, 3), (3, 3)]
