"""Quantisation passes: scaled low-precision matmuls, quantised tensors, redundant rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

from rlx.dtypes import DType
from rlx.errors import PassError, did_you_mean
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.rewrite import rewrite, rule, sweep
from rlx.ir.text import value_names
from rlx.ops.activation import Relu
from rlx.ops.dot import DotGeneral, Matmul
from rlx.ops.pooling import Pool, WindowKind
from rlx.ops.quantized import (
    Dequantize,
    FakeQuantize,
    FakeQuantizeLsq,
    Quantize,
    ScaledMatmul,
    ScaledQuantize,
    ScaledQuantScale,
    ScaleMode,
)
from rlx.ops.shape import Concatenate, Narrow, Reshape, Slice, Transpose
from rlx.passes.base import AbstractPass, PassContext
from rlx.quant.calibration import CalibrationRecord, TensorScale
from rlx.quant.minifloat import ScaledFormat
from rlx.quant.scaled import ScaledQuantConfig, ScaleKind

_LOW = (DType.F32, DType.F16, DType.BF16)


@final
@dataclass(frozen=True, kw_only=True)
class InsertScaledMatmul(AbstractPass):
    """Quantises both operands of every product of two matrices to a small float.

    Operands become [m, k] and [n, k]; scales and codes are made once for each tensor and format;
    the product is f32 and converted to what it was. Products of f64 and of integers stay.

    Attributes:
        config: formats and scale layout.
    """

    name: ClassVar[str] = "insert-scaled-matmul"
    config: ScaledQuantConfig

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        inserting = _Inserting(self.config)
        result = rewrite(graph, inserting.replace)
        if inserting.count:
            ctx.note(f"{inserting.count} matmuls in {self.config}")
            for line in _lost(self.config):
                ctx.note(line)
        for line in inserting.kept:
            ctx.note(line)
        return result


def _lost(config: ScaledQuantConfig) -> list[str]:
    """What scales that are E4M3 numbers lose: groups whose scale rounds to 0 become 0."""
    if config.layout.kind is not ScaleKind.NVFP4:
        return []
    formats = dict.fromkeys((config.lhs, config.rhs))
    return [
        f"groups of {form} whose largest |x| is at most {form.max_finite * 2**-10:g} become 0: "
        f"their scales round to 0 in {config.layout}; mx_e8m0/32 keeps them"
        for form in formats
        if form.max_finite * 2**-10 >= 0.1
    ]


@final
class _Inserting:
    """One run of the pass."""

    def __init__(self, config: ScaledQuantConfig) -> None:
        self._config = config
        self._pairs: dict[tuple[Value, int, ScaledFormat], tuple[Value, Value]] = {}
        self.count = 0
        self.kept: list[str] = []

    def replace(self, node: Node) -> Value | None:
        axes = _contracted(node)
        if axes is None or any(v.type.dtype not in _LOW for v in node.inputs):
            return None
        lhs, rhs = node.inputs
        if self._config.layout.is_blocked and type(lhs.shape[axes[0]]) is not int:
            self.kept.append(f"{node!r} stays: blocks need a number for k. Bind its symbols.")
            return None
        self.count += 1
        left, left_scale = self._quantized(lhs, axes[0], self._config.lhs)
        right, right_scale = self._quantized(rhs, axes[1], self._config.rhs)
        product = ScaledMatmul(
            lhs_format=str(self._config.lhs),
            rhs_format=str(self._config.rhs),
            layout=str(self._config.layout),
        )
        made: Value = product(left, right, left_scale, right_scale)
        return made.convert(node.types[0].dtype)

    def _quantized(self, x: Value, axis: int, form: ScaledFormat) -> tuple[Value, Value]:
        """Codes and scales of a matrix with the contracted axis last."""
        key = (x, axis, form)
        found = self._pairs.get(key)
        if found is None:
            rows = x if axis == 1 else x.transpose(1, 0)
            names = {"format": str(form), "layout": str(self._config.layout)}
            scale: Value = ScaledQuantScale(**names)(rows)
            codes: Value = ScaledQuantize(**names)(rows, scale)
            found = self._pairs[key] = (codes, scale)
        return found


def _contracted(node: Node) -> tuple[int, int] | None:
    """The contracted axes of a product of two matrices, or None for other nodes."""
    op = node.op
    if not isinstance(op, Matmul | DotGeneral) or any(v.rank != 2 for v in node.inputs):
        return None
    if isinstance(op, Matmul):
        return 1, 0
    if op.lhs_batch or len(op.lhs_contracting) != 1:
        return None
    return op.lhs_contracting[0], op.rhs_contracting[0]


@final
@dataclass(frozen=True, kw_only=True)
class InsertQDQ(AbstractPass):
    """Quantises recorded tensors to signed bytes and back, for what reads them.

    Attributes:
        calibration: scales by the names of tensors.
    """

    name: ClassVar[str] = "insert-qdq"
    calibration: CalibrationRecord

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        names = value_names(graph)
        known = set(names.values())
        scales = dict(self.calibration.entries)
        unknown = [name for name in scales if name not in known]
        if unknown:
            raise PassError(
                f"insert-qdq: recorded tensors are required to be in the graph; {unknown[0]!r} is "
                f"not.{did_you_mean(unknown[0], known)} Record this graph.",
                pass_name=self.name,
            )
        places = {
            number: [scales.get(names[v]) for v in node.results]
            for number, node in enumerate(graph.nodes())
        }
        graphs = iter(graph.all_graphs())  # inner ones first, the graph itself last

        def start() -> Callable[[Node], tuple[Value, ...] | None]:
            outer = next(graphs) is graph
            numbers = iter(places)

            def visit(node: Node) -> tuple[Value, ...] | None:
                found = places[next(numbers)] if outer else []
                if not any(found):
                    return None
                return tuple(
                    v if scale is None else _there_and_back(v, scale)
                    for v, scale in zip(node.results, found, strict=True)
                )

            return visit

        result = sweep(graph, start)
        if result is not graph:
            ctx.note(f"{len(scales)} tensors quantised")
        return result


def _there_and_back(value: Value, scale: TensorScale) -> Value:
    numbers = {"scales": scale.scales, "zero_points": scale.zero_points, "axis": scale.axis}
    codes: Value = Quantize(**numbers)(value)  # pyright: ignore[reportArgumentType]
    back: Value = Dequantize(**numbers)(codes)  # pyright: ignore[reportArgumentType]
    return back.convert(value.dtype)


@final
@dataclass(frozen=True, kw_only=True)
class PropagateQuantization(AbstractPass):
    """Removes a fake quantisation of what is on its grid already.

    A grid with one given scale (FIXED, learned) goes through reshape, transpose, slices, concat,
    relu and max-pooling. One that follows the greatest element goes through reshape and transpose
    only, since a part of a tensor has another greatest element; and, as its second rounding may
    move the last bit, not under ``strict``.
    """

    name: ClassVar[str] = "propagate-quantization"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        strict = ctx.options.strict
        count = 0

        @rule(FakeQuantize, FakeQuantizeLsq)
        def drop(node: Node) -> Value | None:
            nonlocal count
            op = node.op
            if not isinstance(op, FakeQuantize | FakeQuantizeLsq) or op.axis is not None:
                return None
            if isinstance(op, FakeQuantize) and op.scale_mode is ScaleMode.EMA:
                return None  # the new state must still follow x
            given = len(node.inputs) == 2
            if (strict and not given) or not _on_grid(node.inputs[0], node, given):
                return None
            count += 1
            return node.inputs[0]

        result = rewrite(graph, drop)
        if count:
            ctx.note(f"{count} redundant fake quantisations removed")
        return result


def _on_grid(value: Value, wanted: Node, given: bool) -> bool:
    """Whether every path to a value comes from a fake quantisation with the same scale."""
    pending, seen = [value], set[Value]()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        node = current.node
        if _same_grid(node, wanted):
            continue
        passes = isinstance(node.op, Reshape | Transpose) or (given and _keeps_grid(node))
        if not passes:
            return False
        pending.extend(node.inputs)
    return True


def _keeps_grid(node: Node) -> bool:
    op = node.op
    if isinstance(op, Pool):
        return op.kind is WindowKind.MAX and not any(op.padding)
    return isinstance(op, Narrow | Slice | Concatenate | Relu)


def _same_grid(node: Node, wanted: Node) -> bool:
    op, other = node.op, wanted.op
    if isinstance(op, FakeQuantize) and isinstance(other, FakeQuantize):
        same_mode = op.scale_mode is other.scale_mode
    elif isinstance(op, FakeQuantizeLsq) and isinstance(other, FakeQuantizeLsq):
        same_mode = True
    else:
        return False
    same = (op.bits, op.axis) == (other.bits, other.axis) and same_mode
    return same and node.inputs[1:] == wanted.inputs[1:]
