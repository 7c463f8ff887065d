"""Walks a StableHLO module and makes RLX graphs: one per function and per region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from rlx.dtypes import as_dtype
from rlx.errors import DTypeError, FormatError, ShapeError
from rlx.ir import location as loc
from rlx.ir.graph import Graph, Value, make_node
from rlx.ops.effect import CreateToken
from rlx.ops.io import Constant, Input
from rlx.types import TensorType
from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.mlir import ir
from rlx_xla.lowering.foreign import MAX_TENSOR_BYTES
from rlx_xla.tracing.stablehlo import calls, opaque
from rlx_xla.tracing.stablehlo.captures import captured_values
from rlx_xla.tracing.stablehlo.context import OpContext
from rlx_xla.tracing.stablehlo.findings import Findings
from rlx_xla.tracing.stablehlo.literals import Locations
from rlx_xla.tracing.stablehlo.registry import rule_for
from rlx_xla.tracing.stablehlo.shardings import Shardings

RETURNS = frozenset({"func.return", "stablehlo.return", "chlo.return", "sdy.return"})
TOKENS = frozenset({"stablehlo.create_token", "stablehlo.after_all"})
"""Only effects use tokens, and effects are refused or make their own."""

OUTSIDE = frozenset({
    "stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv",
    "stablehlo.async_start", "stablehlo.async_done",
})  # fmt: skip
"""Never imported, not even as external nodes."""


Found: TypeAlias = "Value | tuple[Any, ...] | None"
"""What an MLIR value is here: a value, a tuple of such, or nothing when it could not be made."""


@final
@dataclass
class Scope:
    """The graph that is being made.

    Attributes:
        values: MLIR value → ours.
        outer: the scope around a region, from which constants are taken.
        tokens: the last token of each chain of effects.
        effects: whether effects may happen here.
    """

    values: dict[ir.Value, Found] = field(default_factory=dict[ir.Value, Found])
    outer: Scope | None = None
    tokens: dict[str, Value] = field(default_factory=dict[str, Value])
    effects: bool = True

    def find(self, value: ir.Value) -> Found:
        """Our value, or None; a constant of an outer scope is made anew."""
        if value in self.values:
            return self.values[value]
        found = None if self.outer is None else self.outer.find(value)
        if isinstance(found, Value) and isinstance(found.node.op, Constant):
            found = make_node(found.node.op, (), found.node.location).results[found.index]
        self.values[value] = found
        return found

    def token(self, kind: str) -> Value:
        """The last token of an effect's chain; the first is made on demand."""
        found = self.tokens.get(kind)
        return CreateToken()() if found is None else found


@final
class Walker:
    """The state of one import.

    Attributes:
        functions: the module's functions by name.
        symbols: all that has a name: functions and meshes.
        allowed: targets of custom calls that may become external nodes.
        findings: what cannot be imported.
        platforms: see ``Source``.
        shardings: where values live.
    """

    def __init__(
        self,
        module: ir.Module,
        allowed: frozenset[str],
        platforms: Sequence[str] = (),
        *,
        shardings: bool = True,
    ) -> None:
        """Look at a module."""
        self.functions = calls.functions(module)
        self.symbols = calls.symbols_of(module)
        self.allowed = allowed
        self.platforms = tuple(platforms)
        self.findings = Findings()
        self.shardings = Shardings(module, shardings)
        self.locations = Locations()
        self._graphs: dict[str, Graph | None] = {}

    def type_of(self, type_: ir.Type) -> TensorType | None:
        """RLX type of a static tensor type; None for any other.

        Raises:
            FormatError: it claims an absurd size.
        """
        static = mlir.static_type(type_)
        if static is None:
            return None
        dtype, shape = static
        size = 16
        for dim in shape:
            size *= dim
        if size > MAX_TENSOR_BYTES:
            raise FormatError(
                f"from_stablehlo: a tensor may hold at most {MAX_TENSOR_BYTES:,} bytes; "
                f"found {type_}."
            )
        return TensorType(as_dtype(dtype), shape)

    def refuse(self, reason: str, op: Any) -> None:
        """Record that an op cannot be imported."""
        self.findings.add(reason, self.locations.of(op.location))

    def block(self, block: ir.Block, scope: Scope) -> list[Found]:
        """Make nodes for every op of a block; return what it returns."""
        for view in block.operations:
            op = view.operation
            if op.name in RETURNS:
                return [scope.find(v) for v in op.operands]
            with loc.at(self.locations.of(op.location)):
                results = self._operation(op, scope)
            scope.values.update(zip(op.results, results, strict=True))
        return []

    def region(
        self, region: ir.Region, captured: Sequence[ir.Value], scope: Scope, name: str
    ) -> Graph | None:
        """A region as a graph: inputs for the captured values, then for the block's arguments.

        Returns:
            None when something in it cannot be made.
        """
        blocks = list(region.blocks)
        if len(blocks) != 1:
            return None
        inner = Scope(outer=scope, effects=False)
        leaves = self._leaves(inner, captured, "captured_")
        leaves += self._leaves(inner, list(blocks[0].arguments), "x")
        if None in leaves:
            return None
        outputs = self.block(blocks[0], inner)
        return _graph(leaves, outputs, (), name)

    def function(self, name: str) -> Graph | None:
        """A private function as a graph, made once; None when something cannot be made."""
        if name not in self._graphs:
            for inner in calls.order(name, self.functions):
                if inner not in self._graphs:
                    self._graphs[inner] = self._function(inner)
        return self._graphs[name]

    def inline(self, name: str, operands: Sequence[Found], scope: Scope) -> list[Found]:
        """Write a function's body in place."""
        calls.order(name, self.functions)
        block = self.functions[name].regions[0].blocks[0]
        inner = Scope(tokens=scope.tokens, effects=scope.effects)
        inner.values.update(zip(block.arguments, operands, strict=True))
        return self.block(block, inner)

    def _function(self, name: str) -> Graph | None:
        block = self.functions[name].regions[0].blocks[0]
        scope = Scope(effects=False)
        leaves = self._leaves(scope, list(block.arguments), "x")
        if None in leaves:
            self.findings.add(
                f"function @{name}: its arguments must be static tensors", loc.UNKNOWN
            )
            return None
        return _graph(leaves, self.block(block, scope), (), name)

    def _leaves(self, scope: Scope, values: Sequence[ir.Value], prefix: str) -> list[Value | None]:
        leaves: list[Value | None] = []
        for index, value in enumerate(values):
            type_ = self.type_of(value.type)
            leaf = None
            if type_ is not None:
                with loc.at(loc.UNKNOWN):
                    leaf = Input(name=f"{prefix}{index}", dtype=type_.dtype, shape=type_.shape)()
            scope.values[value] = leaf
            leaves.append(leaf)
        return leaves

    def _operation(self, op: ir.Operation, scope: Scope) -> Sequence[Found]:
        nothing: list[Found] = [None] * len(op.results)
        if op.name in TOKENS:
            return nothing
        if op.name in OUTSIDE:
            self.refuse(f"{op.name}: it reaches outside of one program", op)
            return nothing
        operands = [scope.find(v) for v in op.operands]
        captured = list(captured_values(op))
        if any(v is None for v in (*operands, *map(scope.find, captured))):
            if any("token" in str(v.type) for v in op.operands):
                self.refuse(f"{op.name}: effects ordered by tokens have no form in RLX", op)
            return nothing  # otherwise, what it needs was refused already
        if op.name in TUPLES:
            return [TUPLES[op.name](op, operands)]
        if op.name == "func.call" and _has_tuples(op):
            return self.inline(calls.name_of(op.attributes["callee"]), operands, scope)
        types = self._result_types(op)
        if types is None:
            return nothing
        ctx = OpContext(self, scope, op, types, captured)
        rule = rule_for(op.name)
        try:
            made = NotImplemented if rule is None else rule(ctx, *operands)
        except (ShapeError, DTypeError):
            made = NotImplemented  # valid StableHLO that RLX's op does not take
        if made is NotImplemented:
            made = opaque.node(ctx)
        if made is None:  # refused
            return nothing
        results = (made,) if isinstance(made, Value) else tuple(made)
        for result, wanted in zip(results, types, strict=True):
            if isinstance(result, Value) and result.type != wanted:
                self.refuse(f"{op.name}: it gives {result.type}, but must give {wanted}", op)
                return nothing
        return [results] if _is_tuple(op) else results

    def _result_types(self, op: ir.Operation) -> list[TensorType] | None:
        """Types of the results (of the one tuple's elements); None when one is refused."""
        declared = result_types(op)
        types = [t for t in map(self.type_of, declared) if t is not None]
        if len(types) == len(declared):
            return types
        wrong = next(t for t in declared if self.type_of(t) is None)
        self.refuse(f"{op.name}: its result must be a static tensor; it is {wrong}", op)
        return None


def result_types(op: ir.Operation) -> list[ir.Type]:
    """MLIR types of an op's results; the elements' where the only result is a tuple."""
    declared = [r.type for r in op.results]
    if not _is_tuple(op):
        return declared
    found = ir.TupleType(declared[0])
    return [found.get_type(i) for i in range(found.num_types)]


def _is_tuple(op: ir.Operation) -> bool:
    return len(op.results) == 1 and str(op.results[0].type).startswith("tuple<")


def _has_tuples(op: ir.Operation) -> bool:
    return any(str(v.type).startswith("tuple<") for v in (*op.operands, *op.results))


def _element(op: ir.Operation, operands: Sequence[Found]) -> Found:
    (parts,) = operands
    index = ir.IntegerAttr(op.attributes["index"]).value
    return parts[index] if isinstance(parts, tuple) and index < len(parts) else None


TUPLES: dict[str, Callable[[ir.Operation, Sequence[Found]], Found]] = {
    "stablehlo.tuple": lambda op, operands: tuple(operands),
    "stablehlo.get_tuple_element": _element,
}


def _graph(
    leaves: Sequence[Value | None],
    outputs: Sequence[Found],
    effects: Sequence[Value],
    name: str,
) -> Graph | None:
    known = [v for v in outputs if isinstance(v, Value)]
    if len(known) != len(outputs):
        return None
    return Graph([v for v in leaves if v is not None], (), known, effects, name=name)
