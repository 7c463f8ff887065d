"""Which class of work each op belongs to, as precision policies see it."""

from __future__ import annotations

from rlx.ir.op import Op
from rlx.options.precision import OpClass

_COMPUTE = (
    "dot_general", "ragged_dot", "matmul", "grouped_matmul", "lora_matmul", "conv",
    "conv_transpose", "conv_general_dilated", "partitioned_conv", "attention",
    "fused_matmul_bias_act", "fused_matmul_residual", "fused_conv_bias_act",
    "fused_attention_block", "fused_transformer_layer",
)  # fmt: skip
"""Products: many multiplications per element, which accumulate in f32 whatever they read."""

_ELEMENTWISE = (
    "add", "sub", "mul", "div", "max", "min", "neg", "abs", "sign", "square", "integer_pow",
    "clamp", "select", "select_n", "fma", "one_minus_square", "relu", "leaky_relu", "elu", "gelu",
    "silu", "hard_sigmoid", "hard_swish", "softsign", "tanh", "logistic", "erf", "erfc",
    "activation_backward", "relu_backward", "gated_residual", "fused_swiglu",
)  # fmt: skip
"""Steps on single elements that do well with few digits."""

_MOVEMENT = (
    "reshape", "transpose", "broadcast_in_dim", "expand", "reverse", "concatenate", "pad", "tile",
    "slice", "narrow", "split", "roll", "strided_slice", "trilu", "pad_edges", "dynamic_slice",
    "dynamic_update_slice", "gather", "gather_general", "gather_elements", "gather_nd", "take",
    "im2col", "copy", "stop_gradient", "resize_nearest2x", "kv_append",
)  # fmt: skip
"""Elements keep their values."""

_REDUCTION_FAMILIES = ("normalization", "reduction", "loss")
_REDUCTION = (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "cbrt", "pow", "softplus",
    "log_sigmoid", "mish", "fused_residual_ln", "fused_residual_rms_norm", "pool",
)  # fmt: skip
"""What needs range or digits: sums of many, exponentials, roots of statistics, losses."""

_BY_NAME: dict[str, OpClass] = {
    **dict.fromkeys(_COMPUTE, OpClass.COMPUTE),
    **dict.fromkeys(_ELEMENTWISE, OpClass.ELEMENTWISE),
    **dict.fromkeys(_MOVEMENT, OpClass.DATA_MOVEMENT),
    **dict.fromkeys(_REDUCTION, OpClass.REDUCTION),
    **dict.fromkeys(("input", "param", "constant"), OpClass.BOUNDARY),
}


def class_of(op: Op) -> OpClass | None:
    """The class of an op; None for one that keeps its dtypes under every policy.

    Those are ops whose operands mean more than numbers (quantised and scaled formats, random
    draws, keys), factorisations and transforms, loops and calls (whose bodies are looked into),
    and ops of other packages.
    """
    found = _BY_NAME.get(op.op_name)
    if found is not None:
        return found
    parts = type(op).__module__.split(".")
    ours = parts[:2] == ["rlx", "ops"]
    plain = ours and parts[2] in _REDUCTION_FAMILIES and not op.holds_graphs
    return OpClass.REDUCTION if plain else None
