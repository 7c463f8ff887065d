"""``rlx_xla.quantize``: a traced function whose matmul weights are packed.

Weights are rounded once, here; what multiplies them becomes ``dequant_matmul``, which kernels carry
out on the packed bytes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from rlx.dtypes import as_dtype
from rlx.errors import RlxError, TraceError, did_you_mean
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.rewrite import rewrite
from rlx.ops.dot import DotGeneral
from rlx.ops.io import Param
from rlx.ops.quantized import DequantMatmul
from rlx.ops.shape import Transpose
from rlx.quant import QuantScheme, pack, unpack
from rlx.session import TracedFunction
from rlx.signature import Signature

SHORT: Mapping[str, QuantScheme] = {
    "int8": QuantScheme.int8_block(32),
    "int4": QuantScheme.int4_block(32),
    "fp8_e4m3": QuantScheme.fp8_e4m3(),
    "fp8_e5m2": QuantScheme.fp8_e5m2(),
    "nvfp4": QuantScheme.nvfp4_block(),
    "mxfp4": QuantScheme.mlx_mxfp4(32),
    "mxfp8": QuantScheme.mlx_mxfp8(32),
    "q4_0": QuantScheme.gguf("Q4_0"),
    "q4_1": QuantScheme.gguf("Q4_1"),
    "q5_0": QuantScheme.gguf("Q5_0"),
    "q5_1": QuantScheme.gguf("Q5_1"),
    "q8_0": QuantScheme.gguf("Q8_0"),
    "q4_k": QuantScheme.gguf("Q4_K"),
    "q5_k": QuantScheme.gguf("Q5_K"),
    "q6_k": QuantScheme.gguf("Q6_K"),
}
"""Short names; ``int8:64`` and the like choose the block, and display names serve too."""


@final
@dataclass(frozen=True)
class QuantizedWeight:
    """One line of the table.

    Attributes:
        name: of the param.
        shape: of its numbers.
        nbytes: before.
        packed_bytes: after; 0 where it stays.
        error: root mean square of the rounding, relative to that of the numbers.
        kept: why it stays, or an empty string.
    """

    name: str
    shape: tuple[int, ...]
    nbytes: int
    packed_bytes: int = 0
    error: float = 0.0
    kept: str = ""


@final
@dataclass(frozen=True, eq=False)
class Quantized:
    """A traced function with packed weights: ``session.compile`` takes it; prints as a table.

    Attributes:
        graph: with packed params.
        signature: of the function.
        params: param name → array.
        weights: what became of each matmul weight.
        scheme: of the packed ones.
    """

    graph: Graph
    signature: Signature
    params: Mapping[str, Any]
    weights: tuple[QuantizedWeight, ...]
    scheme: QuantScheme

    def __str__(self) -> str:
        width = max([len(w.name) for w in self.weights] + [len("weight")])
        lines = [f"{'weight':<{width}}  {'bytes':>12}  {self.scheme!s:>12}  error"]
        for w in self.weights:
            after = w.kept or f"{w.packed_bytes:>12,}  {w.error:.2e}"
            lines.append(f"{w.name:<{width}}  {w.nbytes:>12,}  {after}")
        return "\n".join(lines)


def quantize(traced: TracedFunction, scheme: str | QuantScheme, *, where: str = "*") -> Quantized:
    """Pack the matmul weights of a traced function.

    A weight is a param of rank 2 that only products with it as their second factor read, directly
    or transposed.

    Args:
        traced: what ``rlx_xla.trace`` gave, with concrete params.
        scheme: a short name (``"q4_k"``, ``"int8"``, ``"int4:64"``, ``"fp8_e4m3"``, ``"nvfp4"``,
            ``"mxfp4"``), the display name of a ``QuantScheme``, or one.
        where: pattern of param names (``*`` and ``?`` stand for any characters).

    Raises:
        TraceError: no such scheme, or no weight has such a name.
    """
    chosen = scheme if isinstance(scheme, QuantScheme) else _scheme(scheme)
    found = _weights(traced.graph)
    names = [v.name for v in found]
    wanted = [v for v in found if fnmatch.fnmatchcase(v.name, where)]
    if not wanted:
        listing = ", ".join(names) or "none"
        raise TraceError(
            f"quantize [where]: a pattern of matmul weights is required ({listing}); got "
            f"{where!r}.{did_you_mean(where, names)}"
        )
    made: dict[Value, list[Value]] = {}
    params = dict(traced.params)
    table: list[QuantizedWeight] = []
    for weight in wanted:
        line, packed = _pack(weight, found[weight], params[weight.name], chosen)
        table.append(line)
        if not line.kept:
            made[weight] = [
                Param(name=name, dtype=as_dtype(a.dtype), shape=a.shape)()
                for name, a in packed.items()
            ]
            params.update(packed)

    def replace(node: Node) -> Value | None:
        place = _product(node)
        if place is None or place[0] not in made:
            return None
        x = node.inputs[0]
        product: Value = DequantMatmul(scheme=str(chosen))(x, *made[place[0]])
        return product.convert(node.types[0].dtype)

    graph = traced.graph
    listed = [*graph.params, *(v for values in made.values() for v in values)]
    wide = Graph(graph.inputs, listed, graph.outputs, graph.effects, name=graph.name)
    packed_graph = rewrite(wide, replace, nested=False)
    gone = {v.name for v in made}
    kept = [v for v in packed_graph.params if v.name not in gone]
    packed_graph = Graph(
        packed_graph.inputs, kept, packed_graph.outputs, packed_graph.effects, name=graph.name
    )
    left = {v.name: params[v.name] for v in kept}
    return Quantized(packed_graph, traced.signature, left, tuple(table), chosen)


def _scheme(name: str) -> QuantScheme:
    base, colon, block = name.partition(":")
    if name in SHORT:
        return SHORT[name]
    if colon and base in ("int8", "int4") and block.isdecimal():
        make = QuantScheme.int8_block if base == "int8" else QuantScheme.int4_block
        return make(int(block))
    try:
        return QuantScheme.parse(name)
    except RlxError as error:
        raise TraceError(
            f"quantize [scheme]: one of {', '.join(SHORT)}, or the name of a QuantScheme, is "
            f"required; got {name!r}.{did_you_mean(name, SHORT)}"
        ) from error


def _product(node: Node) -> tuple[Value, int] | None:
    """The weight of a product, and the axis of it that is contracted; None for other nodes."""
    op = node.op
    if not isinstance(op, DotGeneral) or op.lhs_batch or len(op.rhs_contracting) != 1:
        return None
    x, weight = node.inputs
    axis = op.rhs_contracting[0]
    if isinstance(weight.node.op, Transpose) and weight.rank == 2:
        axis = weight.node.op.permutation[axis]
        weight = weight.node.inputs[0]
    good = (
        isinstance(weight.node.op, Param)
        and weight.rank == 2
        and weight.dtype.is_float
        and x.dtype.is_float
        and op.lhs_contracting == (x.rank - 1,)
    )
    return (weight, axis) if good else None


def _weights(graph: Graph) -> dict[Value, int]:
    """Params that only products read, with the axis that they contract."""
    found: dict[Value, int] = {}
    other: set[Value] = set(graph.outputs)
    for node in graph.nodes():
        place = _product(node)
        if place is None:
            if not isinstance(node.op, Transpose):
                other.update(node.inputs)
            continue
        weight, axis = place
        other.add(node.inputs[0])
        if found.setdefault(weight, axis) != axis:
            other.add(weight)
    transposed = {v.node.inputs[0] for v in other if isinstance(v.node.op, Transpose)}
    return {v: axis for v, axis in found.items() if v not in other and v not in transposed}


def _pack(
    weight: Value, axis: int, array: Any, scheme: QuantScheme
) -> tuple[QuantizedWeight, dict[str, Any]]:
    shape = tuple(int(d) for d in weight.shape if isinstance(d, int))
    nbytes = weight.type.nbytes
    if array is None:
        return QuantizedWeight(weight.name, shape, nbytes, kept="stays: it has no value"), {}
    numbers = np.asarray(array).astype(np.float32)
    inner = shape[axis]
    numbers = numbers if axis == 0 else numbers.T  # [K, N]
    given = np.ascontiguousarray(numbers.T if scheme.is_rows else numbers)
    unit = scheme.block_size if scheme.is_gguf else scheme.block if scheme.is_rows else 1
    if unit and inner % unit:
        why = f"stays: K = {inner} is not a multiple of {unit}"
        return QuantizedWeight(weight.name, shape, nbytes, kept=why), {}
    if not np.isfinite(given).all():
        return QuantizedWeight(weight.name, shape, nbytes, kept="stays: it is not finite"), {}
    tensors = [t for t in pack(scheme, given) if t is not None]
    back = unpack(scheme, *tensors, size=inner)
    size = float(np.sqrt(np.mean(given.astype(np.float64) ** 2)))
    error = float(np.sqrt(np.mean((back.astype(np.float64) - given) ** 2)))
    names = (f"{weight.name}/codes", f"{weight.name}/scale", f"{weight.name}/zero")
    packed = dict(zip(names, tensors, strict=False))
    line = QuantizedWeight(
        weight.name, shape, nbytes, sum(t.nbytes for t in tensors), error / size if size else 0.0
    )
    return line, packed
