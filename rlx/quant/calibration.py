"""Calibration: the ranges that tensors of a graph take, and the scales that follow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from rlx.dtypes import DType
from rlx.errors import RlxError, did_you_mean
from rlx.ir.graph import Graph, Value
from rlx.ir.text import value_names

_PRODUCTS = ("matmul", "dot_general", "conv", "conv_general_dilated", "conv_transpose")
"""Ops whose floating operands are worth quantising."""


@final
@dataclass(frozen=True)
class TensorScale:
    """How one tensor is quantised.

    Attributes:
        scales: one for all, or one for each place of the axis; > 0, in units of the tensor.
        zero_points: as many codes of zero; empty means zeros.
        axis: where scales differ, or None.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...] = ()
    axis: int | None = None

    @staticmethod
    def from_range(low: float, high: float, *, symmetric: bool = True) -> TensorScale:
        """The scale that covers low … high (and zero) with signed bytes."""
        low, high = min(low, 0.0), max(high, 0.0)
        if symmetric:
            return TensorScale((max(high, -low) / 127 or 1.0,))
        scale = (high - low) / 255 or 1.0
        return TensorScale((scale,), (int(np.clip(round(-128 - low / scale), -128, 127)),))


@final
@dataclass(frozen=True)
class CalibrationRecord:
    """Scales by the names of tensors: of inputs and params, and ``%n`` as the graph prints.

    Attributes:
        entries: (name, scale), each name once.
    """

    entries: tuple[tuple[str, TensorScale], ...] = ()

    @staticmethod
    def of(scales: Mapping[str, TensorScale]) -> CalibrationRecord:
        """A record of scales by name."""
        return CalibrationRecord(tuple(scales.items()))

    @staticmethod
    def observe(
        graph: Graph,
        batches: Iterable[Mapping[str, Any]],
        params: Mapping[str, Any] | None = None,
        *,
        tensors: Sequence[str] | None = None,
        symmetric: bool = True,
    ) -> CalibrationRecord:
        """Run batches through the interpreter, and record the ranges that come up.

        Args:
            graph: what is to be quantised.
            batches: inputs by name, one mapping for each run.
            params: arrays by name.
            tensors: names to record; None means every floating operand of a matmul or convolution.
            symmetric: no zero points.

        Raises:
            RlxError: no such tensor, one that is not floating, or a range that is not finite.
        """
        from rlx.ir.interpret import interpret

        known = {name: value for value, name in value_names(graph).items()}
        wanted = _operands(graph) if tensors is None else [_find(known, t) for t in tensors]
        wanted = list(dict.fromkeys(wanted))
        watched = Graph(
            graph.inputs, graph.params, wanted, graph.effects, name=graph.name, asked=graph.asked,
            keyed=graph.keyed,
        )  # fmt: skip
        low, high = [math.inf] * len(wanted), [-math.inf] * len(wanted)
        for batch in batches:
            for place, array in enumerate(interpret(watched, batch, params)):
                if array.size:
                    wide = array.astype(np.float64)
                    low[place] = min(low[place], float(wide.min()))
                    high[place] = max(high[place], float(wide.max()))
        names = value_names(graph)
        made: dict[str, TensorScale] = {}
        for value, least, most in zip(wanted, low, high, strict=True):
            if not (math.isfinite(least) and math.isfinite(most)):
                raise RlxError(
                    f"calibration: {names[value]!r} is required to take finite values; got "
                    f"{least} to {most}. Pass batches that it has elements in, without NaN."
                )
            made[names[value]] = TensorScale.from_range(least, most, symmetric=symmetric)
        return CalibrationRecord.of(made)

    def __str__(self) -> str:
        return f"{len(self.entries)} tensors"


def _operands(graph: Graph) -> list[Value]:
    return [
        value
        for node in graph.nodes()
        if node.op.op_name in _PRODUCTS
        for value in node.inputs
        if value.type.dtype.is_float
    ]


def _find(known: Mapping[str, Value], name: str) -> Value:
    value = known.get(name)
    if value is None:
        raise RlxError(
            f"calibration: {name!r} is required to be a tensor of the graph."
            f"{did_you_mean(name, known)} Print the graph for its names."
        )
    if value.type.dtype not in (DType.F32, DType.F16, DType.BF16, DType.F64):
        raise RlxError(
            f"calibration: {name!r} is required to be floating; got {value.type}. Leave it out."
        )
    return value
