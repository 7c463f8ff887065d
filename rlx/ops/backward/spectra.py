"""Gradient of Whisper's log-mel features."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlx.ir.op import Op, define_op
from rlx.ops.backward.gradients import check_gradient, filled
from rlx.ops.complex_fft import LogMel
from rlx.ops.complex_fft.spectra import LEAST_POWER
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("log_mel_backward")
class LogMelBackward(Op):
    """Gradients of log_mel by the spectrum and by the filters.

    With w = filters · |spectrum|² and m = log10(w): dm = dy / 4 where m ≥ max(m) − 8, and what the
    others would get is shared by the elements that are the maximum;
    dw = dm / (w · ln 10), 0 where w ≤ 1e-10;
    dspectrum = 2 · spectrum · (filtersᵀ · dw);  dfilters = Σ dw ⊗ |spectrum|²

    Inputs:
        spectrum: T[..., frames, 2K]   K real parts, then K imaginary parts.
        filters: T[mels, K]
        dy: T[..., frames, mels]       gradient by the result.

    Result:
        dspectrum and dfilters, of the types of the inputs.

    Constraints:
        C1: log_mel takes spectrum and filters.
        C2: dy has the type of its result.

    Source: RLX's backward of `Op::LogMel`.
    """

    def infer(
        self, spectrum: TensorType, filters: TensorType, dy: TensorType
    ) -> tuple[TensorType, TensorType]:
        check_gradient(self, LogMel(), (spectrum, filters), dy=dy)
        return spectrum, filters

    def decompose(self, spectrum: Value, filters: Value, dy: Value) -> tuple[Value, Value]:
        from rlx.ops.arithmetic import Max
        from rlx.ops.compare import Select
        from rlx.ops.dot import DotGeneral
        from rlx.ops.shape import Concatenate

        last = spectrum.rank - 1
        size = filters.shape[1]
        squares = spectrum * spectrum
        # The second half starts at K, which may be a symbol: fold the halves into an axis.
        halves = squares.reshape(*spectrum.shape[:-1], 2, size)
        power = halves.sum(last)
        mel: Value = DotGeneral(lhs_contracting=(last,), rhs_contracting=(1,))(power, filters)
        floor = filled(LEAST_POWER, mel)
        logs = Max()(mel, floor).log() * (1 / math.log(10.0))
        top = logs.max((-2, -1), keepdims=True).broadcast_to(logs.shape)
        none, given = filled(0.0, dy), dy * 0.25
        cut = logs < top - 8.0
        winners = Select()(logs.eq(top), filled(1.0, logs), filled(0.0, logs))
        lost = Select()(cut, given, none).sum((-2, -1), keepdims=True)
        share = winners / winners.sum((-2, -1), keepdims=True).broadcast_to(logs.shape)
        d_logs = Select()(cut, none, given) + share * lost.broadcast_to(logs.shape)
        d_mel = Select()(mel > floor, d_logs / (Max()(mel, floor) * math.log(10.0)), none)
        d_power: Value = DotGeneral(lhs_contracting=(last,), rhs_contracting=(0,))(d_mel, filters)
        doubled = d_power * 2.0
        d_spectrum = spectrum * Concatenate(axis=last)(doubled, doubled)
        rows = tuple(range(last))
        d_filters: Value = DotGeneral(lhs_contracting=rows, rhs_contracting=rows)(d_mel, power)
        return d_spectrum, d_filters
