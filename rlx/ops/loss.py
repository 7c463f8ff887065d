"""Losses of a classifier: cross entropy of the softmax, with class numbers or distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir.op import Op, define_op
from rlx.ops.patterns import require_one_float
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value

FORMS = ("log_softmax", "logsumexp", "product")
"""How the loss with class numbers may be computed."""


@define_op("softmax_cross_entropy_with_logits")
class SoftmaxCrossEntropyWithLogits(Op):
    """Cross entropy of the softmax of logits, for one right class in each row.

    y = −log softmax(logits)[labels] = log Σ exp(logits) − logits[labels]

    Inputs:
        logits: float[..., C]
        labels: int[...]   the right class of each row. A row whose label is outside [0, C) is
            left out: its loss is 0, and so is its gradient.

    Attributes:
        form: how it is computed, which shows where logits are infinite. ``log_softmax`` picks from
            −log softmax(logits): a row with +Inf gives NaN. ``logsumexp`` takes the logit from
            log Σ exp(logits): such a row gives Inf, or NaN where the label says +Inf. ``product``
            sums one_hot · −log softmax(logits): −Inf at any other class gives NaN too, but for XLA,
            which writes such a product as a choice.

    Result:
        float[...], one loss for each row.

    Constraints:
        C1: labels have the shape of logits without its last axis.
        C2: logits are floating.
        C3: labels are integers.
        C4: form is known.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::SoftmaxCrossEntropyWithLogits`; `torch.nn.functional.cross_entropy`.
    """

    form: str = "log_softmax"

    def infer(self, logits: TensorType, labels: TensorType) -> TensorType:
        self.require(
            "C4",
            self.form in FORMS,
            f"form is required to be one of {', '.join(FORMS)}; got {self.form!r}. Choose one.",
        )
        require_one_float(self, "C2", logits=logits)
        self.require(
            "C3",
            labels.dtype.is_integer,
            f"labels are required to be integers; got {labels}. Convert them, or use "
            "SoftmaxCrossEntropy for a distribution.",
            DTypeError,
        )
        rows = logits.with_shape(logits.shape[:-1])
        text = (
            f"labels are required to have the shape {list(rows.shape)}, one for each row of "
            f"logits: {logits}; got {labels}. Reshape them."
        )
        self.require("C1", logits.rank >= 1, text)
        self.require_same_dims("C1", labels.shape, rows.shape, text)
        return rows

    def decompose(self, logits: Value, labels: Value) -> Value:
        from rlx.ops.compare import Select
        from rlx.ops.normalization import LogSoftmax
        from rlx.ops.reduction import LogSumExp

        wide = logits.convert(logits.dtype.compute)
        if self.form == "logsumexp":
            picked, inside = _picked(wide, labels)
            loss = LogSumExp(axis=logits.rank - 1)(wide) - picked
            return Select()(inside, loss, _zeros(loss)).convert(logits.dtype)
        if self.form == "product":
            logs = -LogSoftmax(axis=-1)(wide)
            chosen = one_hot(labels, logs).convert(logs.dtype) * logs
            return chosen.sum(logits.rank - 1).convert(logits.dtype)
        # The label's element of −log softmax, without the others being written out.
        picked, inside = _picked(wide, labels)
        top = wide.max(-1, keepdims=True)
        total = (wide - top).exp().sum(-1)
        loss = total.log() - (picked - top.reshape(*picked.shape))
        return Select()(inside, loss, _zeros(loss)).convert(logits.dtype)


@define_op("softmax_cross_entropy")
class SoftmaxCrossEntropy(Op):
    """Cross entropy of the softmax of logits against a distribution in each row.

    y = −Σ_c targets_c · log softmax(logits)_c

    Inputs:
        logits: float[..., C]
        targets: float[..., C]   weights of the classes; those of 0 add nothing, even where the
            logit is −Inf.

    Result:
        float[...], one loss for each row.

    Constraints:
        C1: targets have the shape of logits, with at least one axis.
        C2: one floating dtype for both.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::SoftmaxCrossEntropy`; `optax.softmax_cross_entropy`.
    """

    def infer(self, logits: TensorType, targets: TensorType) -> TensorType:
        require_one_float(self, "C2", logits=logits, targets=targets)
        text = (
            f"targets are required to have the shape of logits: {logits}, with at least one axis; "
            f"got {targets}. Reshape them."
        )
        self.require("C1", logits.rank >= 1, text)
        self.require_same_dims("C1", targets.shape, logits.shape, text)
        return logits.with_shape(logits.shape[:-1])

    def decompose(self, logits: Value, targets: Value) -> Value:
        from rlx.ops.compare import Select
        from rlx.ops.normalization import LogSoftmax

        wide = targets.convert(logits.dtype.compute)
        logs = LogSoftmax(axis=-1)(logits.convert(wide.dtype))
        terms = Select()(wide.eq(0.0), _zeros(logs), -logs * wide)
        return terms.sum(logits.rank - 1).convert(logits.dtype)


def one_hot(labels: Value, logits: Value) -> Value:
    """Where the class of the last axis is the label: bool of the shape of logits."""
    from rlx.ops.compare import Compare, Direction
    from rlx.ops.shape import BroadcastInDim, Iota

    axis = logits.rank - 1
    if labels.dtype.bits < DType.I32.bits:  # the classes need not fit into a narrow dtype
        labels = labels.convert(DType.I32)
    classes = Iota(dtype=labels.dtype, shape=logits.shape, axis=axis)()
    wanted = BroadcastInDim(shape=logits.shape, broadcast_dimensions=tuple(range(axis)))(labels)
    return Compare(direction=Direction.EQ)(classes, wanted)


def _picked(logits: Value, labels: Value) -> tuple[Value, Value]:
    """The logit of each row's label, and whether that label is a class."""
    from rlx.ops.indexing import GatherGeneral
    from rlx.ops.shape import DimValue

    dtype = DType.I64 if labels.dtype.bits > DType.I32.bits else DType.I32
    numbers = labels.convert(dtype)
    classes = DimValue(dim=logits.shape[-1], dtype=dtype)()
    inside = (numbers >= 0) & (numbers < classes.broadcast_to(numbers.shape))
    last = logits.rank - 1
    lead = tuple(range(last))
    picked = GatherGeneral(
        slice_sizes=(1,) * logits.rank,
        offset_dims=(),
        collapsed_slice_dims=(last,),
        start_index_map=(last,),
        operand_batching_dims=lead,
        start_indices_batching_dims=lead,
    )(logits, numbers.reshape(*numbers.shape, 1))
    return picked, inside


def _zeros(x: Value) -> Value:
    from rlx.ir.operators import broadcast_to, constant

    return broadcast_to(constant(0.0, x.dtype), x.shape)
