"""``rlx_xla.from_stablehlo``: a StableHLO module becomes an RLX graph."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlx.dtypes import DType
from rlx.errors import FormatError, TraceError
from rlx.ir import location as loc
from rlx.ir.graph import Graph, Value
from rlx.ops.control_flow import PlatformIndex
from rlx.ops.io import Input
from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.mlir import ir
from rlx_xla.tracing.stablehlo import calls
from rlx_xla.tracing.stablehlo import source as sources
from rlx_xla.tracing.stablehlo.literals import argument_name
from rlx_xla.tracing.stablehlo.shardings import texts_of
from rlx_xla.tracing.stablehlo.walk import Scope, Walker

_PREFIX = re.compile(r"^(?:jit|pjit|rlx)_+")
PLATFORM_INDEX = "_platform_index"


def from_stablehlo(
    source: Any,
    *,
    name: str = "main",
    allow_custom_calls: Collection[str] = frozenset(),
    shapes: Sequence[Any] | None = None,
    shardings: bool = True,
) -> Graph:
    """Import a StableHLO program as a graph; nothing of it is executed.

    Args:
        source: StableHLO text, MLIR bytecode, a portable artifact, the bytes of a ``jax.export``
            file, or a ``jax.export.Exported``.
        name: the function to import.
        allow_custom_calls: targets of custom calls (LAPACK's, for instance) that may become
            ``external`` nodes. They run code that XLA has registered under these names and trusts
            to be called with the right shapes: allow them for files that you trust.
        shapes: a static type for each argument (``"f32[8, 64]"``) where the program has dynamic
            ones.
        shardings: keep where arguments, results and constrained values live; a graph with them
            needs as many devices as their mesh has. False makes a program for one device.

    Returns:
        The graph. Inputs have the names of the function's arguments. Shardings of HLO, which
        number devices, get a mesh with axes ``axis_0``, ``axis_1``, …. Those of no form in RLX
        (parts of an axis, devices in an order of their own) are left out, with a warning.

    Raises:
        FormatError: the source is damaged, too large, or of no known kind.
        CompileError: MLIR refuses the text.
        TraceError: something has no form in RLX; all of it is listed, with counts and locations.
    """
    found = sources.read(source, shapes)
    module = mlir.parse_module(found.text)
    walker = Walker(module, frozenset(allow_custom_calls), found.platforms, shardings=shardings)
    function = walker.functions.get(name)
    if function is None:
        raise FormatError(
            f"from_stablehlo: the module must have a function @{name} with a body; it has "
            f"{', '.join('@' + f for f in list(walker.functions)[:8]) or 'none'}. Pass name=."
        )
    _require_static(function, name)
    graph = _entry(walker, function, name, _graph_name(module, name))
    if graph is None:
        raise walker.findings.error(name)
    left_out, kept = walker.shardings.left_out, walker.shardings.kept
    if left_out:
        rest = f"{kept} were kept" if kept else "the graph is a program for one device"
        warnings.warn(
            f"from_stablehlo: {left_out} sharding annotations of @{name} were left out; {rest}.",
            stacklevel=2,
        )
    return graph


def _entry(walker: Walker, function: ir.Operation, entry: str, title: str) -> Graph | None:
    block = function.regions[0].blocks[0]
    attributes = _attributes(function, "arg_attrs", len(block.arguments))
    names = _unique(
        [_name(index, value, attributes[index]) for index, value in enumerate(block.arguments)]
    )
    scope = Scope()
    inputs: list[Value] = []
    for value, name, attribute in zip(block.arguments, names, attributes, strict=True):
        type_ = walker.type_of(value.type)
        if type_ is None:
            walker.findings.add(f"argument {name!r} must be a static tensor; it is {value.type}",
                                loc.UNKNOWN)  # fmt: skip
            continue
        platform = attribute.get("jax.global_constant") == PLATFORM_INDEX
        with loc.at(loc.UNKNOWN):
            if platform and walker.platforms and type_.dtype is DType.I32 and not type_.shape:
                groups = tuple((p,) for p in walker.platforms)
                scope.values[value] = PlatformIndex(platforms=groups)()
                continue
            placed: dict[str, Any] = walker.shardings.leaf(attribute, type_)
            leaf: Value = Input(name=name, dtype=type_.dtype, shape=type_.shape, **placed)()
        scope.values[value] = leaf
        inputs.append(leaf)
    outputs = walker.block(block, scope)
    known = [v for v in outputs if isinstance(v, Value)]
    if walker.findings:
        return None
    if len(known) != len(outputs):
        walker.findings.add("an output is a token or tuple, which RLX does not return", loc.UNKNOWN)
        return None
    results = _attributes(function, "res_attrs", len(known))
    placed_outputs = [
        walker.shardings.constrained(value, attribute)
        for value, attribute in zip(known, results, strict=True)
    ]
    return Graph(inputs, (), placed_outputs, scope.tokens.values(), name=title)


def _require_static(function: ir.Operation, name: str) -> None:
    block = function.regions[0].blocks[0]
    dynamic = [f"{i}: {v.type}" for i, v in enumerate(block.arguments) if "?" in str(v.type)]
    if dynamic:
        raise TraceError(
            f"from_stablehlo: arguments of @{name} must have static shapes; found "
            f"{'; '.join(dynamic[:5])}. Export with static shapes, or pass shapes=[...] with a "
            "type such as 'f32[8, 64]' for each argument."
        )


def _attributes(function: ir.Operation, key: str, count: int) -> list[Mapping[str, str]]:
    """Texts and shardings that stand on each argument or result."""
    if key not in function.attributes:
        return [{}] * count
    found: list[Mapping[str, str]] = []
    for entry in ir.ArrayAttr(function.attributes[key]):
        named = ir.DictAttr(entry)
        found.append(texts_of((named[i].name, named[i].attr) for i in range(len(named))))
    return found


def _name(index: int, value: ir.Value, attributes: Mapping[str, str]) -> str:
    """The name in an attribute or location, as ``params/dense/kernel``; else ``arg0`` and so on."""
    given = attributes.get("jax.arg_info") or attributes.get("jax.global_constant") or ""
    given = given or argument_name(value.location)
    parts = re.findall(r"[^\[\]'\".]+", given)
    return "/".join(parts) if parts and "jit(" not in given else f"arg{index}"


def _unique(names: Sequence[str]) -> list[str]:
    taken: set[str] = set()
    unique: list[str] = []
    for index, name in enumerate(names):
        wanted = name if name not in taken else f"{name}_{index}"
        while wanted in taken:
            wanted += "_"
        taken.add(wanted)
        unique.append(wanted)
    return unique


def _graph_name(module: ir.Module, entry: str) -> str:
    if entry != "main" or "sym_name" not in module.operation.attributes:
        return entry
    given = _PREFIX.sub("", calls.name_of(module.operation.attributes["sym_name"]))
    return given or entry
