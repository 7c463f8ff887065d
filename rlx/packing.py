"""Packing the weights of a traced function, and what became of each.

Weights are rounded once, here; what multiplies them becomes ``dequant_matmul``, which kernels carry
out on the packed bytes, and lookups become ``dequant_gather``, which unpack the rows they read.
"""

from __future__ import annotations

import fnmatch
import html
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast, final, runtime_checkable

import numpy as np

from rlx.dtypes import as_dtype
from rlx.errors import CompileError, ParseError, TraceError, did_you_mean
from rlx.ir.graph import Graph, Value
from rlx.ops.io import Param
from rlx.ops.quantized.rounded import takes_rounded
from rlx.passes.base import PassContext, PassRecord
from rlx.passes.canonicalize import Canonicalize
from rlx.passes.inline_calls import InlineCalls
from rlx.passes.pack_weights import (
    Packed,
    Weight,
    find_packed,
    find_weights,
    replace_weights,
)
from rlx.quant import QuantScheme, all_schemes, pack, unpack
from rlx.quant.native import KINDS, native_parts, take_apart
from rlx.signature import Signature
from rlx.template import AbstractTemplate

if TYPE_CHECKING:
    from rlx.session import TracedFunction

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

DEFAULT = "q8_0"
"""The scheme of ``CompileOptions(weights="packed")``: the most exact of the short names."""

PARTS = ("codes", "scale", "zero")
"""What a packed param's name gets after that of the weight and a slash."""


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
        uses: products and lookups that read it; they share one buffer.
    """

    name: str
    shape: tuple[int, ...]
    nbytes: int
    packed_bytes: int = 0
    error: float = 0.0
    kept: str = ""
    uses: int = 1


@final
@dataclass(frozen=True, eq=False)
class Quantized:
    """A traced function with packed weights: ``session.compile`` takes it; prints as a table.

    Attributes:
        graph: with packed params.
        signature: of the function.
        params: param name → array.
        weights: what became of each weight.
        scheme: of the packed ones.
        template: traces and packs again for given sizes; None where there are no symbols.
    """

    graph: Graph
    signature: Signature
    params: Mapping[str, Any]
    weights: tuple[QuantizedWeight, ...]
    scheme: QuantScheme
    template: AbstractTemplate | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights of the table before."""
        return sum(w.nbytes for w in self.weights)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights of the table now, those that stay included."""
        return sum(w.packed_bytes or w.nbytes for w in self.weights)

    def to_json(self) -> dict[str, Any]:
        """The table as plain values."""
        return {
            "scheme": str(self.scheme),
            "bytes": self.nbytes,
            "packed_bytes": self.packed_bytes,
            "weights": [asdict(w) | {"shape": list(w.shape)} for w in self.weights],
        }

    def __str__(self) -> str:
        width = max([len(w.name) for w in self.weights] + [len("together")])
        lines = [f"{'weight':<{width}}  {'bytes':>12}  {self.scheme!s:>12}  error"]
        for w in self.weights:
            after = w.kept or f"{w.packed_bytes:>12,}  {w.error:.2e}"
            lines.append(f"{w.name:<{width}}  {w.nbytes:>12,}  {after}")
        lines.append(f"{'together':<{width}}  {self.nbytes:>12,}  {self.packed_bytes:>12,}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        heads = ("weight", "shape", "bytes", str(self.scheme), "error")
        rows = [_cells("th", heads)]
        for w in self.weights:
            shape = "×".join(map(str, w.shape))
            after = (w.kept, "") if w.kept else (f"{w.packed_bytes:,}", f"{w.error:.2e}")
            rows.append(_cells("td", (w.name, shape, f"{w.nbytes:,}", *after)))
        rows.append(
            _cells("th", ("together", "", f"{self.nbytes:,}", f"{self.packed_bytes:,}", ""))
        )
        return f"<table>{''.join(rows)}</table>"


@final
@dataclass(frozen=True, eq=False)
class Repacked:
    """A traced function whose weights are native integers.

    Attributes:
        graph: with their products.
        signature: of the function.
        params: param name → array, or None.
    """

    graph: Graph
    signature: Signature
    params: Mapping[str, Any]


def _cells(kind: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{html.escape(t)}</{kind}>" for t in texts) + "</tr>"


INPUTS = ("exact", "int8")
"""What products with packed weights may take in."""


def quantize(
    traced: TracedFunction,
    scheme: str | QuantScheme,
    *,
    where: str | Callable[[str], bool] = "*",
    inputs: str = "exact",
) -> Quantized:
    """Pack the weights of a traced function.

    A weight is a float param of rank 2 or more that only products, with all of its other axes free,
    and lookups of whole rows read: directly, transposed, converted, or inside the bodies of calls,
    loops and branches, where a scan may take slices of it. What reads it otherwise (a convolution,
    a sum) keeps it as it is, and the table says so. However often it is used, it is packed once.

    Args:
        traced: what ``rlx_xla.trace`` gave, with concrete params.
        scheme: a short name (``"q4_k"``, ``"int8"``, ``"int4:64"``, ``"fp8_e4m3"``, ``"nvfp4"``,
            ``"mxfp4"``), the display name of a ``QuantScheme``, or one.
        where: pattern of param names (``*`` and ``?`` stand for any characters), or a predicate on
            them.
        inputs: what products take in: ``"exact"``, or ``"int8"`` for inputs that are rounded to
            signed bytes with a scale for each block (op ``dequant_matmul_int8``), which kernels
            multiply faster; not every scheme has it.

    Raises:
        TraceError: this is no traced function, no such scheme, no weight has such a name, or the
            scheme's products do not take such inputs.
    """
    if not hasattr(traced, "graph") or not hasattr(traced, "params"):
        raise TraceError(
            "quantize: what rlx_xla.trace gave, or quantize itself, is required; got "
            f"{type(traced).__name__}. Trace the function first, with params=."
        )
    chosen = scheme if isinstance(scheme, QuantScheme) else scheme_named(scheme)
    _require_inputs(inputs, chosen)
    graph = _plain(traced.graph)
    found = find_weights(graph)
    if not found:
        listing = ", ".join(v.name for v in graph.params) or "none"
        raise TraceError(
            "quantize: params that a product or a lookup reads are required; the graph has none "
            f"(params: {listing}). Bind the weights with rlx_xla.trace(..., params=0)."
        )
    names = [w.param.name for w in found]
    wanted = [w for w in found if _is_meant(w.param.name, where)]
    if not wanted:
        listing = ", ".join(names)
        hint = did_you_mean(where, names) if isinstance(where, str) else ""
        raise TraceError(
            f"quantize [where]: a pattern of matmul weights is required ({listing}); got "
            f"{where!r}.{hint}"
        )
    packing = _Packing(chosen, inputs == "int8")
    packed, left, table = packing.applied(traced, graph, wanted)
    template = traced.template if isinstance(traced, _Templated) else None
    if template is not None:
        template = template.changed(lambda at: packing.again(at, where))
    return Quantized(packed, traced.signature, left, tuple(table), chosen, template)


@runtime_checkable
class _Templated(Protocol):
    """A trace that can be made again for given sizes."""

    @property
    def template(self) -> AbstractTemplate | None:
        """Traces anew."""
        ...


@final
class _Packing:
    """One call of `quantize`: each weight is packed once, however often it is traced."""

    def __init__(self, scheme: QuantScheme, rounded: bool) -> None:
        self._scheme = scheme
        self._rounded = rounded
        self._made: dict[Any, tuple[Any, tuple[QuantizedWeight, list[np.ndarray[Any, Any]]]]] = {}

    def applied(
        self, traced: TracedFunction, graph: Graph, wanted: Iterable[Weight]
    ) -> tuple[Graph, dict[str, Any], list[QuantizedWeight]]:
        """The graph with packed weights, the values of its params, and a line for each weight.

        Args:
            traced: what the graph is of.
            graph: as `find_weights` saw it.
            wanted: weights to pack.
        """
        made: dict[Value, Packed] = {}
        params = dict(traced.params)
        table: list[QuantizedWeight] = []
        for weight in wanted:
            name = weight.param.name
            line, arrays = self._packed(weight, params[name])
            table.append(line)
            if line.kept:
                continue
            del params[name]
            named = {f"{name}/{part}": a for part, a in zip(PARTS, arrays, strict=False)}
            params |= named
            tensors = tuple(_param(key, array) for key, array in named.items())
            made[weight.param] = Packed(weight, self._scheme, tensors, rounded=self._rounded)
        packed = replace_weights(graph, made) if made else traced.graph
        return packed, {v.name: params[v.name] for v in packed.params}, table

    def again(self, at: Any, where: str | Callable[[str], bool]) -> Any:
        """The same for a trace for other sizes, which may read fewer weights."""
        graph = _plain(at.graph)
        wanted = [w for w in find_weights(graph) if _is_meant(w.param.name, where)]
        packed, left, _ = self.applied(at, graph, wanted)
        return replace(at, graph=packed, params=left)

    def _packed(
        self, weight: Weight, array: Any
    ) -> tuple[QuantizedWeight, list[np.ndarray[Any, Any]]]:
        key = id(array), weight.param.name, weight.leading, weight.order, *weight.reasons
        found = self._made.get(key)
        if found is None:
            # The array is kept with what it became, so that no other one gets its number.
            found = self._made[key] = array, _pack(weight, array, self._scheme)
        return found[1]


def _is_meant(name: str, where: str | Callable[[str], bool]) -> bool:
    if isinstance(where, str):
        return fnmatch.fnmatchcase(name, where)
    if not callable(where):
        raise TraceError(
            "quantize [where]: a pattern of names or a predicate on them is required; got "
            f"{where!r}. Write where='*/kernel', or where=lambda name: ..."
        )
    return where(name)


def _require_inputs(inputs: str, scheme: QuantScheme) -> None:
    if inputs not in INPUTS:
        raise TraceError(
            f"quantize [inputs]: one of {', '.join(map(repr, INPUTS))} is required; got {inputs!r}."
            f"{did_you_mean(inputs, INPUTS)}"
        )
    if inputs == "int8" and not takes_rounded(scheme):
        raise TraceError(
            "quantize [inputs]: a scheme whose products take rounded inputs is required: GGUF's "
            "with blocks of 32 or 256, int8 and int4 with blocks that are multiples of 32; got "
            f"{scheme}. Choose one, or leave inputs out."
        )


def packed_function(traced: TracedFunction, name: str) -> tuple[TracedFunction, list[PassRecord]]:
    """What ``CompileOptions(weights=name)`` compiles, and a record of it for the report.

    A function without weights, one that came packed say, stays as it is.

    Raises:
        CompileError: no param has a value.
    """
    if not any(value is not None for value in traced.params.values()):
        raise CompileError(
            "CompileOptions.weights: a function with params that have values is required; got "
            f"{traced.graph.name!r}, in which none has. Trace it with arrays, params=…, or leave "
            "weights out."
        )
    started = time.perf_counter()
    chosen = scheme_named(DEFAULT if name == "packed" else name)
    if not find_weights(_plain(traced.graph)):
        return traced, []
    found = quantize(traced, chosen)
    record = PassRecord(
        name=f"pack-weights{{scheme={chosen}}}",
        seconds=time.perf_counter() - started,
        before=traced.graph.node_count(nested=True),
        after=found.graph.node_count(nested=True),
        changed=found.graph is not traced.graph,
        notes=tuple(str(found).split("\n")),
    )
    return found, [record]


def repacked(traced: TracedFunction) -> TracedFunction:
    """The same function with GGUF blocks as native integers, which XLA's TPU products read.

    Codes of 4 or 8 bits lie as [K, N] in memory, with scales for each group of 16 or 32, and
    become numbers inside the product; queries of rounded inputs take exact ones. Together they have
    the bytes of the blocks. It is done once, on the host; abstract params stay so. What does not
    come apart stays as it is.

    Args:
        traced: a function with params of GGUF blocks, such as `quantize` gives.
    """
    graph = _plain(traced.graph)
    made: dict[Value, Packed] = {}
    params = dict(traced.params)
    for weight in find_packed(graph):
        scheme = QuantScheme.parse(weight.scheme)
        if scheme.kind not in KINDS:
            continue
        shape = cast("tuple[int, ...]", weight.param.shape)
        lead, block = shape[: weight.leading or 0], shape[weight.leading or 0 :]
        inner = block[1] // scheme.block_bytes * scheme.block_size
        parts = native_parts(scheme, inner)
        name = weight.param.name
        value = params.pop(name)
        arrays: list[Any] = [None] * len(parts)
        if value is not None:
            slabs = np.asarray(value).reshape((-1, *block))
            each = [take_apart(scheme, slab) for slab in slabs]
            arrays = [np.stack(t).reshape((*lead, *t[0].shape)) for t in zip(*each, strict=True)]
        tensors: list[Value] = []
        for part, array in zip(parts, arrays, strict=True):
            key = f"{name}/{part.name}"
            params[key] = array
            sizes = (*lead, inner // part.every, block[0])
            tensors.append(Param(name=key, dtype=part.dtype, shape=sizes)())
        made[weight.param] = Packed(weight, scheme, tuple(tensors))
    if not made:
        return traced
    packed = replace_weights(graph, made)
    left = {v.name: params[v.name] for v in packed.params}
    return Repacked(packed, traced.signature, left)


def is_scheme(name: str) -> bool:
    """Whether `scheme_named` knows a name."""
    base, colon, block = name.partition(":")
    if colon:
        return base in ("int8", "int4") and block.isdecimal() and 0 < int(block) < 2**31
    return name in SHORT or name in map(str, all_schemes())


def scheme_named(name: str) -> QuantScheme:
    """The scheme of a short name, ``int8:64``, or a display name.

    Raises:
        TraceError: there is none; the closest one is suggested.
    """
    if not isinstance(cast("object", name), str):
        raise TraceError(
            f"quantize [scheme]: the name of a scheme is required, such as 'q4_k'; got {name!r}."
        )
    base, colon, block = name.partition(":")
    if name in SHORT:
        return SHORT[name]
    if colon and base in ("int8", "int4") and block.isdecimal() and 0 < int(block) < 2**31:
        make = QuantScheme.int8_block if base == "int8" else QuantScheme.int4_block
        return make(int(block))
    try:
        return QuantScheme.parse(name)
    except ParseError as error:
        raise TraceError(
            f"quantize [scheme]: one of {', '.join(SHORT)}, or the name of a QuantScheme, is "
            f"required; got {name!r}.{did_you_mean(name, SHORT)}"
        ) from error


def _plain(graph: Graph) -> Graph:
    """The graph with calls written in place and transposes inside products."""
    ctx = PassContext()
    return Canonicalize().run(InlineCalls().run(graph, ctx), ctx)


def _param(name: str, array: Any) -> Value:
    made: Value = Param(name=name, dtype=as_dtype(array.dtype), shape=array.shape)()
    return made


def _pack(
    weight: Weight, array: Any, scheme: QuantScheme
) -> tuple[QuantizedWeight, list[np.ndarray[Any, Any]]]:
    name, nbytes = weight.param.name, weight.param.type.nbytes
    shape = tuple(int(d) for d in weight.param.shape if isinstance(d, int))

    def stays(why: str) -> tuple[QuantizedWeight, list[np.ndarray[Any, Any]]]:
        line = QuantizedWeight(name, shape, nbytes, kept=f"stays: {why}", uses=weight.uses)
        return line, []

    unit = scheme.block_size if scheme.is_gguf else scheme.block if scheme.is_rows else 1
    if weight.reasons:
        return stays(weight.reasons[0])
    if array is None:
        return stays("it has no value")
    if not all(shape):
        return stays("it has no elements")
    if unit and weight.inner % unit:
        return stays(f"K = {weight.inner} is not a multiple of {unit}")
    lead = weight.leading or 0
    numbers = np.asarray(array).reshape((-1, *weight.slice_shape))
    parts: list[list[np.ndarray[Any, Any]]] = []
    lost = size = 0.0
    for one in numbers:
        given = one.astype(np.float32).transpose(weight.order).reshape(weight.inner, -1)
        given = np.ascontiguousarray(given.T if scheme.is_rows else given)
        if not np.isfinite(given).all():
            return stays("it is not finite")
        parts.append([t for t in pack(scheme, given) if t is not None])
        back = unpack(scheme, *parts[-1], size=weight.inner)
        lost += float(np.sum(np.square(back - given, dtype=np.float64)))
        size += float(np.sum(np.square(given, dtype=np.float64)))
    stacked = [np.stack(t) if lead else t[0] for t in zip(*parts, strict=True)]
    arrays = [a.reshape((*shape[:lead], *a.shape[1:])) if lead else a for a in stacked]
    error = float(np.sqrt(lost / size)) if size else 0.0
    line = QuantizedWeight(
        name, shape, nbytes, sum(a.nbytes for a in arrays), error, uses=weight.uses
    )
    return line, arrays
