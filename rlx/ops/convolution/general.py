"""Convolutions: XLA's general one, and RLX's channels-first forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlx import dims
from rlx.dtypes import DType, as_dtype
from rlx.errors import InconclusiveDimError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops import windows
from rlx.ops.dot import DEFAULT_PRECISION, DotPrecision, accumulator, check_product
from rlx.ops.elementwise import round_to
from rlx.types import Dim, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("conv_general_dilated")
class ConvGeneralDilated(Op):
    """Cross-correlation with strides, padding, dilations and groups, in any layout.

    y[n, o, p] = Σ_{i, k} x[n, i, p·stride + k·rhs_dilation − low] · w[o, i, k]

    Inputs:
        lhs: T[...]   batch, feature and spatial axes, placed by lhs_spec.
        rhs: U[...]   output feature, input feature and spatial axes, placed by rhs_spec.

    Attributes:
        window_strides: one for each spatial axis.
        padding: (low, high) for each spatial axis; negative takes away.
        lhs_dilation: distance between neighbours of lhs once it is dilated with zeros.
        rhs_dilation: the same for the kernel.
        lhs_spec: positions of batch, feature and spatial axes in lhs.
        rhs_spec: positions of output feature, input feature and spatial axes in rhs.
        out_spec: positions of batch, feature and spatial axes in the result.
        feature_group_count: lhs features and output features form so many separate groups.
        batch_group_count: the batch and the output features form so many separate groups.
        precision: for lhs and for rhs.
        preferred_element_type: dtype of the accumulation and the result; None means that of lhs.

    Result:
        T[...] with batch / batch_group_count, output features, and
        ⌊(dilated lhs + low + high − dilated kernel) / stride⌋ + 1 places, at least 0.

    Constraints:
        C1: one rank ≥ 2; the specs are permutations; one attribute entry for each spatial axis.
        C2: window, strides and dilations are positive.
        C3: group counts are positive and at most one exceeds 1; features of lhs are the kernel's
            input features times feature_group_count; output features divide into the groups.
        C4: batch_group_count divides the batch.
        C5: lhs and rhs have one dtype, or preferred_element_type is given and of their kind.
        C6: precision has two entries.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: `jax.lax.conv_general_dilated`, StableHLO `convolution`.
    """

    window_strides: tuple[int, ...]
    padding: tuple[tuple[Dim, ...], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]
    feature_group_count: int = 1
    batch_group_count: int = 1
    precision: tuple[DotPrecision, ...] = DEFAULT_PRECISION
    preferred_element_type: DType | None = None

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        self._check_layout(lhs, rhs)
        source = [lhs.shape[i] for i in self.lhs_spec]
        kernel = [rhs.shape[i] for i in self.rhs_spec]
        windows.check_windows(
            self,
            lhs.rank - 2,
            kernel[2:],
            strides=self.window_strides,
            padding=self.padding,
            dilation=self.lhs_dilation,
            window_dilation=self.rhs_dilation,
        )
        self._check_groups(source, kernel, lhs, rhs)
        dtype = check_product(self, lhs, rhs, self.preferred_element_type, "C5")
        self.require(
            "C6",
            len(self.precision) == 2,
            lambda: (
                f"precision is required to have two entries; got {len(self.precision)}. "
                "Give one for lhs and one for rhs."
            ),
        )
        result: list[Dim] = [dims.floordiv_(source[0], self.batch_group_count), kernel[0]]
        result += map(
            windows.count,
            source[2:],
            kernel[2:],
            self.window_strides,
            self.padding,
            self.lhs_dilation,
            self.rhs_dilation,
        )
        return TensorType(dtype, tuple(result[self.out_spec.index(i)] for i in range(lhs.rank)))

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        left, right = as_dtype(lhs.dtype), as_dtype(rhs.dtype)
        result = self.preferred_element_type or left
        wide = accumulator(left, right, result).numpy
        x = lhs.astype(wide).transpose(self.lhs_spec)
        w = rhs.astype(wide).transpose(self.rhs_spec)
        x = windows.spread(x, ((0, 0), (0, 0), *self.padding), (1, 1, *self.lhs_dilation), 0)
        with np.errstate(all="ignore"):
            groups = [self._one_group(x, w, g) for g in range(self.groups)]
        y = np.concatenate(groups, axis=1)
        return round_to(y.transpose(np.argsort(self.out_spec)), result)

    @property
    def groups(self) -> int:
        """How many separate groups the output features form."""
        return self.feature_group_count * self.batch_group_count

    def _one_group(self, x: Array, w: Array, group: int) -> Array:
        """Batch, the group's output features, places."""
        batch, features = x.shape[0] // self.batch_group_count, w.shape[1]
        if self.batch_group_count > 1:
            x = x[group * batch : (group + 1) * batch]
        else:
            x = x[:, group * features : (group + 1) * features]
        outputs = w.shape[0] // self.groups
        w = w[group * outputs : (group + 1) * outputs]
        rank = x.ndim
        ones = (1, 1)
        seen = windows.view(
            x, (*ones, *w.shape[2:]), (*ones, *self.window_strides), (*ones, *self.rhs_dilation)
        )
        taken = (1, *range(rank + 2, 2 * rank))
        y = np.tensordot(seen, w, (taken, (1, *range(2, rank))))
        # Left: batch, places, two windows of size 1, output features.
        y = y.reshape(*y.shape[: rank - 1], outputs)
        return np.moveaxis(y, -1, 1)

    def _check_layout(self, lhs: TensorType, rhs: TensorType) -> None:
        order = list(range(lhs.rank))
        self.require(
            "C1",
            lhs.rank == rhs.rank >= 2
            and all(sorted(s) == order for s in (self.lhs_spec, self.rhs_spec, self.out_spec)),
            lambda: (
                f"lhs and rhs are required to have one rank of at least 2, and the specs to be "
                f"permutations of its axes; got {lhs} with {self.lhs_spec}, {rhs} with "
                f"{self.rhs_spec}, and {self.out_spec}. Place every axis once."
            ),
        )

    def _check_groups(
        self, source: Sequence[Dim], kernel: Sequence[Dim], lhs: TensorType, rhs: TensorType
    ) -> None:
        counts = (self.feature_group_count, self.batch_group_count)
        self.require(
            "C3",
            min(counts) >= 1 and 1 in counts,
            lambda: (
                f"feature_group_count and batch_group_count are required to be positive, and one "
                f"of them to be 1; got {counts[0]} and {counts[1]}. Use one kind of groups."
            ),
        )
        self.require_same_dims(
            "C3",
            (source[1],),
            (kernel[1] * self.feature_group_count,),
            lambda: (
                f"features of lhs are required to be the kernel's input features × "
                f"{self.feature_group_count}; got {source[1]} in {lhs} and {kernel[1]} in {rhs}. "
                "Check the specs and the group count."
            ),
        )
        divisible(self, "C3", kernel[0], self.groups, f"output features of rhs: {rhs}")
        divisible(self, "C4", source[0], self.batch_group_count, f"the batch of lhs: {lhs}")


def divisible(op: Op, label: str, size: Dim, divisor: int, what: str) -> None:
    """Check that a size divides into so many groups."""
    try:
        good = dims.divisible(size, divisor)
    except InconclusiveDimError as error:
        raise InconclusiveDimError(f"{op.op_name} [{label}]: {error}", label=label) from error
    op.require(
        label,
        good,
        lambda: (
            f"{what} are required to be a multiple of {divisor}; got {size}. "
            "Change the group count."
        ),
    )


class _Windowed(Protocol):
    """What the two channels-first convolutions have in common."""

    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def padding(self) -> tuple[int, ...]: ...
    @property
    def dilation(self) -> tuple[int, ...]: ...
    @property
    def groups(self) -> int: ...


def _check_channels_first(
    op: Any, attributes: _Windowed, x: TensorType, weight: TensorType, *extra: Sequence[int]
) -> None:
    """Check C1 (rank and attribute lengths), C2 (sizes) and C4 (dtype)."""
    spatial = x.rank - 2
    lengths = [len(v) for v in (attributes.stride, attributes.padding, attributes.dilation, *extra)]
    op.require(
        "C1",
        x.rank == weight.rank >= 2 and all(n == spatial for n in lengths),
        lambda: (
            f"x and weight are required to have one rank of at least 2, and the attributes "
            f"{spatial} entries each; got {x}, {weight} and {lengths}. Give one entry for each "
            "spatial axis."
        ),
    )
    op.require(
        "C2",
        all(n >= 1 for n in (*attributes.stride, *attributes.dilation, attributes.groups))
        and all(n >= 0 for v in (attributes.padding, *extra) for n in v),
        lambda: (
            f"stride, dilation and groups are required to be positive and padding not negative; "
            f"got stride {attributes.stride}, dilation {attributes.dilation}, groups "
            f"{attributes.groups}, padding {attributes.padding}. Correct the attribute."
        ),
    )
    check_product(op, x, weight, None, "C4")


@define_op("conv")
class Conv(Op):
    """Cross-correlation of channels-first arrays with zero padding on both sides.

    y[n, o, p] = Σ_{i, k} x[n, i, p·stride + k·dilation − padding] · weight[o, i, k]

    Inputs:
        x: T[N, C, *spatial]
        weight: T[O, C / groups, *kernel]

    Attributes:
        stride: one for each spatial axis.
        padding: zeros on both sides of each spatial axis.
        dilation: distance between neighbours of the kernel.
        groups: channels form so many separate groups.

    Result:
        T[N, O, *⌊(spatial + 2·padding − dilation·(kernel − 1) − 1) / stride⌋ + 1].

    Constraints:
        C1: x and weight have one rank ≥ 2; one attribute entry for each spatial axis.
        C2: stride, dilation and groups are positive, padding is not negative.
        C3: channels of x are those of weight times groups; groups divide O.
        C4: one dtype.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: RLX `Op::Conv`.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def infer(self, x: TensorType, weight: TensorType) -> TensorType:
        _check_channels_first(self, self, x, weight)
        self.require_same_dims(
            "C3",
            (x.shape[1],),
            (weight.shape[1] * self.groups,),
            lambda: (
                f"channels of x are required to be weight's × {self.groups} groups; "
                f"got {x} and {weight}. Check groups."
            ),
        )
        divisible(self, "C3", weight.shape[0], self.groups, f"output channels of weight: {weight}")
        return self._general(x.rank).infer(x, weight)

    def decompose(self, x: Value, weight: Value) -> Value:
        return self._general(x.rank)(x, weight)

    def _general(self, rank: int) -> ConvGeneralDilated:
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
        )


@define_op("conv_transpose")
class ConvTranspose(Op):
    """The gradient of `conv` by its input: upsampling by a learned kernel, channels first.

    y[n, o, p·stride + k·dilation − padding] += x[n, i, p] · weight[i, o, k]

    Inputs:
        x: T[N, C, *spatial]
        weight: T[C, O / groups, *kernel]

    Attributes:
        stride: one for each spatial axis.
        padding: places cut from both sides of each spatial axis of the result.
        output_padding: places added at the end of each spatial axis.
        dilation: distance between neighbours of the kernel.
        groups: channels form so many separate groups.

    Result:
        T[N, O, *(spatial − 1)·stride − 2·padding + dilation·(kernel − 1) + output_padding + 1].

    Constraints:
        C1: x and weight have one rank ≥ 2; one attribute entry for each spatial axis.
        C2: stride, dilation and groups are positive, paddings are not negative.
        C3: x and weight have C channels, a multiple of groups.
        C4: one dtype.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: RLX `Op::ConvTranspose2d` and `Op::ConvTranspose3d`.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def infer(self, x: TensorType, weight: TensorType) -> TensorType:
        _check_channels_first(self, self, x, weight, self.output_padding)
        self.require_same_dims(
            "C3",
            x.shape[1:2],
            weight.shape[:1],
            lambda: (
                f"x and weight are required to have as many channels; got {x} and {weight}. "
                "The first axis of weight counts x's channels."
            ),
        )
        divisible(self, "C3", x.shape[1], self.groups, f"channels of x: {x}")
        flipped = (
            weight.shape[1] * self.groups,
            dims.floordiv_(weight.shape[0], self.groups),
            *weight.shape[2:],
        )
        return self._general(weight.shape).infer(x, weight.with_shape(flipped))

    def decompose(self, x: Value, weight: Value) -> Value:
        from rlx.ops.shape import Reverse, Transpose

        rank = x.rank
        spatial = tuple(range(2, rank))
        channels = dims.floordiv_(weight.shape[0], self.groups)
        w: Value = Reverse(axes=spatial)(weight)
        w = w.reshape(self.groups, channels, *weight.shape[1:])
        w = Transpose(permutation=(0, 2, 1, *(i + 1 for i in spatial)))(w)
        w = w.reshape(weight.shape[1] * self.groups, channels, *weight.shape[2:])
        return self._general(weight.shape)(x, w)

    def _general(self, weight: Sequence[Dim]) -> ConvGeneralDilated:
        order = tuple(range(len(weight)))
        reach = [windows.dilated(k, d) - 1 for k, d in zip(weight[2:], self.dilation, strict=True)]
        return ConvGeneralDilated(
            window_strides=(1,) * len(reach),
            padding=tuple(
                (r - p, r - p + more)
                for r, p, more in zip(reach, self.padding, self.output_padding, strict=True)
            ),
            lhs_dilation=self.stride,
            rhs_dilation=self.dilation,
            lhs_spec=order,
            rhs_spec=order,
            out_spec=order,
            feature_group_count=self.groups,
        )
