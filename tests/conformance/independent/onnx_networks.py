"""ONNX's nodes of networks in our ops: convolution, pooling, norms, recurrence, attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.dtypes import DType
from rlx.ir.graph import Value
from rlx.ir.operators import broadcast_to, constant, normalise_axis
from rlx.ops.attention import MaskKind
from rlx.ops.pooling import WindowKind
from rlx.ops.position import RopeStyle
from tests.conformance.independent.case import Case, NotMapped, Results, full, maps
from tests.conformance.independent.onnx_movement import sizes

OPS: Any = ops  # classes by name


def windows(case: Case, kernel: list[int]) -> dict[str, tuple[int, ...]]:
    """Strides, dilations and one padding for both sides of each axis."""
    rank = len(kernel)
    if case.get("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET", "VALID"):
        raise NotMapped("padding that is computed")
    pads = case.get("pads", [0] * 2 * rank)
    if list(pads[:rank]) != list(pads[rank:]):
        raise NotMapped("padding that differs between both sides")
    return {
        "stride": tuple(case.get("strides", [1] * rank)),
        "padding": tuple(pads[:rank]),
        "dilation": tuple(case.get("dilations", [1] * rank)),
    }


def with_bias(y: Value, bias: Value | None) -> Value:
    """A bias for each channel, axis 1."""
    if bias is None:
        return y
    return y + broadcast_to(bias.reshape(-1, *[1] * (y.rank - 2)), y.shape)


@maps("Conv")
def conv(case: Case) -> Results:
    x, weight = case.value(0), case.value(1)
    op = OPS.Conv(**windows(case, sizes(weight)[2:]), groups=case.get("group", 1))
    return with_bias(op(x, weight), case.optional(2))


@maps("ConvInteger")
def conv_integer(case: Case) -> Results:
    x, weight = (case.value(i).convert(DType.I32) for i in (0, 1))
    for zero, name in ((case.optional(2), "x"), (case.optional(3), "weight")):
        if zero is not None and name == "x":
            x = x - broadcast_to(zero.reshape(()).convert(DType.I32), x.shape)
        elif zero is not None:
            raise NotMapped("a zero point of the weight")
    return OPS.Conv(**windows(case, sizes(weight)[2:]), groups=case.get("group", 1))(x, weight)


@maps("ConvTranspose")
def conv_transpose(case: Case) -> Results:
    x, weight = case.value(0), case.value(1)
    spatial = sizes(weight)[2:]
    if "output_shape" in case.attributes:
        raise NotMapped("padding that is computed")
    extra = tuple(case.get("output_padding", [0] * len(spatial)))
    op = OPS.ConvTranspose(
        **windows(case, spatial), output_padding=extra, groups=case.get("group", 1)
    )
    return with_bias(op(x, weight), case.optional(2))


@maps("MaxPool", "AveragePool", "LpPool")
def pool(case: Case) -> Results:
    if case.outputs > 1:
        raise NotMapped("places of the maxima")
    x, kernel = case.value(), list(case.get("kernel_shape"))
    case.only(ceil_mode=0, storage_order=0)
    found = windows(case, kernel)
    if set(found.pop("dilation")) != {1}:
        raise NotMapped("dilated windows")
    mean = case.kind == "AveragePool"
    if mean and any(found["padding"]) and not case.get("count_include_pad", 0):
        raise NotMapped("a mean that leaves out padding")
    if case.kind == "MaxPool":
        return OPS.Pool(kind=WindowKind.MAX, kernel=tuple(kernel), **found)(x)
    op = OPS.Pool(kind=WindowKind.SUM, kernel=tuple(kernel), mean=mean, **found)
    if mean:
        return op(x)
    power = float(case.get("p", 2))
    wide = abs(x)
    return op(wide**power) ** (1 / power)


@maps("GlobalAveragePool", "GlobalMaxPool")
def global_pool(case: Case) -> Results:
    x = case.value()
    kernel = tuple(sizes(x)[2:])
    around = {"stride": (1,) * len(kernel), "padding": (0,) * len(kernel), "kernel": kernel}
    if case.kind == "GlobalMaxPool":
        return OPS.Pool(kind=WindowKind.MAX, **around)(x)
    return OPS.Pool(kind=WindowKind.SUM, mean=True, **around)(x)


@maps("BatchNormalization")
def batch_norm(case: Case) -> Results:
    case.only(training_mode=0)
    x = case.value()
    order = (0, *range(2, x.rank), 1)
    back = (0, x.rank - 1, *range(1, x.rank - 1))
    op = OPS.BatchNormInference(eps=case.get("epsilon", 1e-5))
    return op(x.transpose(order), *(case.value(i) for i in range(1, 5))).transpose(back)


@maps("LayerNormalization", "RMSNormalization")
def layer_norm(case: Case) -> Results:
    x, gamma, axis = case.value(), case.value(1), case.axis(-1)
    lead, shape = sizes(x)[:axis], sizes(x)
    size = int(np.prod(shape[axis:]))
    if sizes(gamma) != shape[axis:]:
        raise NotMapped("a gain that is broadcast")
    beta = case.optional(2, broadcast_to(full(gamma, 0), gamma.shape))
    flat = (x.reshape(*lead, size), gamma.reshape(size), beta.reshape(size))
    name = "LayerNorm" if case.kind == "LayerNormalization" else "RmsNorm"
    y = getattr(OPS, name)(axis=axis, eps=case.get("epsilon", 1e-5))(*flat).reshape(*shape)
    return [y, *[None] * (case.outputs - 1)]


@maps("InstanceNormalization", "GroupNormalization")
def group_norm(case: Case) -> Results:
    x = case.value()
    groups = case.get("num_groups", sizes(x)[1])
    op = OPS.GroupNorm(num_groups=groups, eps=case.get("epsilon", 1e-5))
    return op(x, case.value(1), case.value(2))


def gates(x: Value, axis: int, order: list[int]) -> Value:
    """Parts of an axis in another order."""
    size = sizes(x)[axis] // len(order)
    return OPS.Concatenate(axis=axis)(*(x.narrow(axis, i * size, size) for i in order))


@maps("LSTM", "GRU", "RNN")
def recurrent(case: Case) -> Results:
    case.only(clip=None, input_forget=0)
    if "activations" in case.attributes or case.has(7):
        raise NotMapped("activations of its own, or peepholes")
    lengths, first = case.known(4), case.get("layout", 0)
    x = case.value(0).transpose(1, 0, 2) if first == 0 else case.value(0)
    hidden, (batch, steps, _) = int(case.get("hidden_size")), sizes(x)
    if lengths is not None and (lengths != steps).any():
        raise NotMapped("lengths of its own")
    directions, reverse = sizes(case.value(1))[0], case.get("direction") == "reverse"
    # ONNX has i o f c and z r h; ours are i f g o and r z n.
    order = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2], "RNN": [0]}[case.kind]
    rows = len(order) * hidden
    w, r = (gates(case.value(i), 1, order) for i in (1, 2))
    bias = case.optional(3, broadcast_to(full(x, 0), (directions, 2 * rows)))
    halves = [gates(bias.narrow(1, i * rows, rows), 1, order) for i in (0, 1)]
    zeros = broadcast_to(full(x, 0), (directions, batch, hidden))
    states = [_state(case, 5, zeros), _state(case, 6, zeros)]
    sized = {"hidden_size": hidden, "carry": True, "bidirectional": directions == 2}
    given = OPS.Reverse(axes=(1,))(x) if reverse else x
    if case.kind == "GRU":
        if not case.get("linear_before_reset", 0):
            raise NotMapped("a reset before the hidden product")
        made = OPS.Gru(**sized)(given, w.reshape(-1), r, *halves, states[0])
    else:
        op = OPS.Lstm(**sized) if case.kind == "LSTM" else OPS.Rnn(**sized)
        carried = states if case.kind == "LSTM" else states[:1]
        made = op(given, w.reshape(-1), r, halves[0] + halves[1], *carried)
    y = OPS.Reverse(axes=(1,))(made[0]) if reverse else made[0]
    y = y.reshape(batch, steps, directions, hidden)
    y = y.transpose(1, 2, 0, 3) if first == 0 else y
    last = [v if first == 0 else v.transpose(1, 0, 2) for v in made[1:]]
    return [y, *last][: case.outputs]


def _state(case: Case, index: int, zeros: Value) -> Value:
    """A first state [directions, batch, hidden]."""
    found: Value = case.optional(index, zeros)
    return found.transpose(1, 0, 2) if case.get("layout", 0) and case.has(index) else found


@maps("Attention")
def attention(case: Case) -> Results:
    q, k, v = (case.value(i) for i in range(3))
    if case.has(6) or case.outputs > 3:
        raise NotMapped("lengths, or scores as a result")
    known = {"is_causal", "scale", "softcap", "q_num_heads", "kv_num_heads"}
    if set(case.attributes) - known - {"qk_matmul_output_mode", "softmax_precision"}:
        raise NotMapped("windows and other attributes that are new")
    packed = q.rank == 3
    if packed:
        heads, kv = case.get("q_num_heads"), case.get("kv_num_heads")
        q, k, v = (
            t.reshape(*sizes(t)[:2], n, sizes(t)[2] // n).transpose(0, 2, 1, 3)
            for t, n in ((q, heads), (k, kv), (v, kv))
        )
    aligned = sizes(q)[2] == sizes(k)[2]  # else ours counts a causal mask from the last key
    if case.has(4):
        k, v = (OPS.Concatenate(axis=2)(case.value(i), t) for i, t in ((4, k), (5, v)))
    causal, mask = bool(case.get("is_causal", 0)), case.optional(3)
    if causal and (mask is not None or not aligned):
        raise NotMapped("a causal mask that counts from the first key, or two masks")
    kind = MaskKind.CAUSAL if causal else MaskKind.NONE
    given: list[Value] = []
    if mask is not None:
        if sizes(mask)[-1] != sizes(k)[2]:
            raise NotMapped("a mask that is padded")
        kind = MaskKind.CUSTOM if mask.dtype is DType.BOOL else MaskKind.BIAS
        given = [mask.reshape(*[1] * (4 - mask.rank), *sizes(mask))]
    op = OPS.Attention(
        num_heads=sizes(q)[1], head_dim=sizes(q)[3], mask_kind=kind, layout="bhsd",
        softcap=float(case.get("softcap", 0.0)) or None, score_scale=case.get("scale"),
    )  # fmt: skip
    y = op(q, k, v, *given)
    if packed:
        batch, heads, steps, size = sizes(y)
        y = y.transpose(0, 2, 1, 3).reshape(batch, steps, heads * size)
    return [y, k, v][: case.outputs]


@maps("RotaryEmbedding")
def rotary(case: Case) -> Results:
    x, cos, sin = (case.value(i) for i in range(3))
    if case.optional(3) is not None or cos.rank != 3 or x.rank != 4:
        raise NotMapped("positions, or tables that are looked up")
    rows = case.known(1)
    if rows is None or not np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape)):
        raise NotMapped("tables that differ between sequences")
    style = RopeStyle.GPTJ if case.get("interleaved", 0) else RopeStyle.NEOX
    head = sizes(x)[3]
    turned = int(case.get("rotary_embedding_dim", 0)) or head
    op = OPS.Rope(head_dim=head, n_rot=turned, style=style, layout="bhsd")
    tables = (t.narrow(0, 0, 1).reshape(*sizes(t)[1:]) for t in (cos, sin))
    return op(x, *tables)


@maps("SoftmaxCrossEntropyLoss")
def cross_entropy(case: Case) -> Results:
    logits, labels = case.value(0), case.value(1)
    if case.has(2) or "ignore_index" in case.attributes:
        raise NotMapped("weights, or ignored labels")
    order = (0, *range(2, logits.rank), 1)
    rows = logits.transpose(order)
    flat = rows.reshape(-1, sizes(rows)[-1])
    loss = OPS.SoftmaxCrossEntropyWithLogits()(flat, labels.reshape(-1)).reshape(*sizes(labels))
    how = case.get("reduction", "mean")
    loss = loss if how == "none" else loss.sum() if how == "sum" else loss.mean()
    return [loss, *[None] * (case.outputs - 1)]


@maps("QuantizeLinear", "DequantizeLinear")
def quantize(case: Case) -> Results:
    x, scale, zero = case.value(), case.known(1), case.known(2)
    case.only(block_size=0, output_dtype=0)
    eight = zero is None or zero.dtype == np.int8
    found = x.dtype if case.kind == "DequantizeLinear" else DType.I8
    if not eight or found is not DType.I8 or scale is None or scale.dtype != np.float32:
        raise NotMapped("other codes than signed bytes, or other scales than f32")
    if zero is None and case.kind == "QuantizeLinear":
        raise NotMapped("other codes than signed bytes, or other scales than f32")
    axis = None if scale.size == 1 else normalise_axis(case.get("axis", 1), x.rank)
    points = () if zero is None else tuple(int(z) for z in zero.reshape(-1))
    op = OPS.Quantize if case.kind == "QuantizeLinear" else OPS.Dequantize
    return op(scales=tuple(float(s) for s in scale.reshape(-1)), zero_points=points, axis=axis)(x)


@maps("Hardmax")
def hardmax(case: Case) -> Results:
    x, axis = case.value(), case.axis(-1)
    first = OPS.Argmax(axis=axis)(x)
    kept = first.reshape(*(1 if a == axis else n for a, n in enumerate(sizes(x))))
    places = OPS.Iota(dtype=DType.I32, shape=x.shape, axis=axis)()
    return places.eq(broadcast_to(kept, x.shape)).convert(x.dtype)


@maps("LpNormalization")
def lp_normalization(case: Case) -> Results:
    x, axis = case.value(), case.axis(-1)
    size = abs(x).sum(axis, keepdims=True)
    if case.get("p", 2) == 2:
        size = (x * x).sum(axis, keepdims=True).sqrt()
    safe = OPS.Select()(size.eq(0.0), broadcast_to(constant(1.0, x.dtype), size.shape), size)
    return x / broadcast_to(safe, x.shape)
