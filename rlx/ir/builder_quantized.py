"""RLX's builder names for quantised compute."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, cast

from rlx.errors import RegistryError, did_you_mean
from rlx.ir.builder_names import listed, value_of

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from rlx.ops.quantized import ScaleMode, SteKind
    from rlx.quant import QuantScheme, ScaledFormat, ScaleLayout

Member = TypeVar("Member", bound=Enum)


class AbstractQuantizedNames:
    """Methods of ``GraphBuilder``; schemes, formats and layouts are objects or their names."""

    def quantize(self, x: Value, scale: float, zero_point: int = 0) -> Value:
        """Signed bytes for numbers, with one scale for all."""
        from rlx.ops.quantized import Quantize

        made: Value = Quantize(scales=(scale,), zero_points=(zero_point,))(x)
        return made

    def quantize_per_channel(
        self, x: Value, axis: int, scales: Sequence[float], zero_points: Sequence[int] = ()
    ) -> Value:
        """Signed bytes for numbers, with a scale for each place of an axis."""
        from rlx.ops.quantized import Quantize

        factors = listed("quantize_per_channel", "scales", scales)
        zeros = listed("quantize_per_channel", "zero_points", zero_points)
        op = Quantize(scales=factors, zero_points=zeros, axis=axis)
        return cast("Value", op(x))

    def dequantize(self, x: Value, scale: float, zero_point: int = 0) -> Value:
        """Numbers for signed bytes, with one scale for all."""
        from rlx.ops.quantized import Dequantize

        made: Value = Dequantize(scales=(scale,), zero_points=(zero_point,))(x)
        return made

    def dequantize_per_channel(
        self, x: Value, axis: int, scales: Sequence[float], zero_points: Sequence[int] = ()
    ) -> Value:
        """Numbers for signed bytes, with a scale for each place of an axis."""
        from rlx.ops.quantized import Dequantize

        factors = listed("dequantize_per_channel", "scales", scales)
        zeros = listed("dequantize_per_channel", "zero_points", zero_points)
        op = Dequantize(scales=factors, zero_points=zeros, axis=axis)
        return cast("Value", op(x))

    def fake_quantize(
        self,
        x: Value,
        bits: int = 8,
        axis: int | None = None,
        *,
        state: Value | None = None,
        ste: SteKind | str = "identity",
        scale_mode: ScaleMode | str = "per_batch",
        decay: float = 0.99,
    ) -> Value | tuple[Value, Value]:
        """Numbers rounded to the grid of a few bits.

        Returns:
            The numbers; with ``scale_mode="ema"`` also the new state, since graphs are pure.

        Raises:
            RegistryError: no such estimator or mode.
        """
        from rlx.ops.quantized import FakeQuantize, ScaleMode, SteKind

        if isinstance(ste, str):
            ste = _named(SteKind, "fake_quantize: ste", ste)
        if isinstance(scale_mode, str):
            scale_mode = _named(ScaleMode, "fake_quantize: scale_mode", scale_mode)
        op = FakeQuantize(bits=bits, axis=axis, ste=ste, scale_mode=scale_mode, decay=decay)
        made: Value | tuple[Value, Value] = op(*([x] if state is None else [x, state]))
        return made

    def q_matmul(
        self,
        x: Value,
        w: Value,
        bias: Value,
        *,
        x_zp: int = 0,
        w_zp: int = 0,
        out_zp: int = 0,
        mult: float = 1.0,
    ) -> Value:
        """Product of signed bytes, brought back to signed bytes."""
        from rlx.ops.quantized import QMatmul

        made: Value = QMatmul(x_zp=x_zp, w_zp=w_zp, out_zp=out_zp, mult=mult)(x, w, bias)
        return made

    def q_conv2d(
        self,
        x: Value,
        w: Value,
        bias: Value,
        *,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        x_zp: int = 0,
        w_zp: int = 0,
        out_zp: int = 0,
        mult: float = 1.0,
    ) -> Value:
        """Convolution of signed bytes, brought back to signed bytes."""
        from rlx.ops.quantized import QConv2d

        op = QConv2d(
            stride=cast("tuple[int, int]", listed("q_conv2d", "stride", stride)),
            padding=cast("tuple[int, int]", listed("q_conv2d", "padding", padding)),
            dilation=cast("tuple[int, int]", listed("q_conv2d", "dilation", dilation)),
            groups=groups,
            x_zp=x_zp,
            w_zp=w_zp,
            out_zp=out_zp,
            mult=mult,
        )
        return cast("Value", op(x, w, bias))

    def dequant_matmul(
        self,
        x: Value,
        weight: Value,
        scale: Value | None = None,
        zero: Value | None = None,
        *,
        scheme: QuantScheme | str,
    ) -> Value:
        """Product with a packed weight of any scheme."""
        from rlx.ops.quantized import DequantMatmul

        op = DequantMatmul(scheme=str(scheme))
        return cast("Value", op(*(v for v in (x, weight, scale, zero) if v is not None)))

    def dequant_matmul_packed(self, x: Value, weight: Value, scheme: QuantScheme | str) -> Value:
        """Product with rows of GGUF blocks: x·Wᵀ."""
        return self.dequant_matmul(x, weight, scheme=scheme)

    def dequant_matmul_nvfp4(
        self, x: Value, weight: Value, scale: Value, global_scale: Value
    ) -> Value:
        """Product with NVFP4 nibbles, their E4M3 scales and the scale of all."""
        return self.dequant_matmul(x, weight, scale, global_scale, scheme="nvfp4/16")

    def dequant_gather(
        self,
        table: Value,
        indices: Value,
        scale: Value | None = None,
        zero: Value | None = None,
        *,
        scheme: QuantScheme | str,
    ) -> Value:
        """Rows (f32) of a packed table: an embedding lookup."""
        from rlx.ops.quantized import DequantGather

        op = DequantGather(scheme=str(scheme))
        return cast("Value", op(*(v for v in (table, indices, scale, zero) if v is not None)))

    def scaled_quantize(
        self,
        x: Value,
        format: ScaledFormat | str = "f8e4m3",  # noqa: A002  RLX's word
        layout: ScaleLayout | str = "per_tensor",
    ) -> tuple[Value, Value]:
        """Codes of a small float, and the scales that they are for."""
        from rlx.ops.quantized import ScaledQuantize, ScaledQuantScale

        scale: Value = ScaledQuantScale(format=str(format), layout=str(layout))(x)
        codes: Value = ScaledQuantize(format=str(format), layout=str(layout))(x, scale)
        return codes, scale

    def scaled_dequantize(
        self,
        codes: Value,
        scale: Value,
        format: ScaledFormat | str = "f8e4m3",  # noqa: A002  RLX's word
        layout: ScaleLayout | str = "per_tensor",
    ) -> Value:
        """Numbers of codes and their scales."""
        from rlx.ops.quantized import ScaledDequantize

        made: Value = ScaledDequantize(format=str(format), layout=str(layout))(codes, scale)
        return made

    def scaled_matmul(
        self,
        lhs: Value,
        rhs: Value,
        lhs_scale: Value,
        rhs_scale: Value,
        *,
        lhs_format: ScaledFormat | str = "f8e4m3",
        rhs_format: ScaledFormat | str = "f8e4m3",
        layout: ScaleLayout | str = "per_tensor",
    ) -> Value:
        """Product of codes: lhs [m, k] with rhs [n, k]."""
        from rlx.ops.quantized import ScaledMatmul

        op = ScaledMatmul(
            lhs_format=str(lhs_format), rhs_format=str(rhs_format), layout=str(layout)
        )
        return cast("Value", op(lhs, rhs, lhs_scale, rhs_scale))

    def scaled_matmul_bias(
        self,
        lhs: Value,
        rhs: Value,
        lhs_scale: Value,
        rhs_scale: Value,
        bias: Value,
        *,
        lhs_format: ScaledFormat | str = "f8e4m3",
        rhs_format: ScaledFormat | str = "f8e4m3",
        layout: ScaleLayout | str = "per_tensor",
    ) -> Value:
        """Product of codes, and a bias [n]."""
        from rlx.ops.quantized import ScaledMatmul

        op = ScaledMatmul(
            lhs_format=str(lhs_format), rhs_format=str(rhs_format), layout=str(layout)
        )
        return cast("Value", op(lhs, rhs, lhs_scale, rhs_scale, bias))

    def synth_matmul(self, x: Value, idx: Value, codebook: Value) -> Value:
        """Product with the weight that indices into a codebook stand for."""
        from rlx.ops.quantized import SynthMatmul

        made: Value = SynthMatmul()(x, idx, codebook)
        return made

    def synth_matmul_qcodebook(self, x: Value, idx: Value, codebook: Value, scale: Value) -> Value:
        """The same with a codebook of signed bytes [C, d] and scales that broadcast to it."""
        where = "synth_matmul_qcodebook"
        scale = value_of(where, scale)
        return self.synth_matmul(x, idx, value_of(where, codebook).convert(scale.dtype) * scale)

    def spline_activation(
        self, x: Value, coeff: Value, grid_min: float = -1.0, grid_max: float = 1.0
    ) -> Value:
        """Sum of Gaussian bumps with heights coeff [C, G] on an even grid."""
        from rlx.ops.quantized import SplineActivation

        bases = coeff.shape[-1] if value_of("spline_activation", coeff).rank else 0
        op = SplineActivation(
            num_basis=bases if isinstance(bases, int) else 0, grid_min=grid_min, grid_max=grid_max
        )
        return cast("Value", op(x, coeff))


def _named(kind: type[Member], where: str, name: str) -> Member:
    known = {member.value: member for member in kind}
    if name not in known:
        raise RegistryError(
            f"{where}: one of {', '.join(known)} is required; got {name!r}."
            f"{did_you_mean(name, known)}"
        )
    return known[name]
