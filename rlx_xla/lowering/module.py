"""From a lowered graph (LIR) to a StableHLO module with a function ``main``.

``main`` takes the graph's inputs, then its params; it returns the outputs. Tokens do not cross
the boundary: each chain starts with a fresh token and its last one is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from rlx.dtypes import DType
from rlx.errors import LoweringError
from rlx.ir.graph import Graph, Node, Value, inner_first
from rlx.ir.location import Location
from rlx.ops.control_flow import Call
from rlx.sharding import Mesh, mesh_of
from rlx.types import TensorType
from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.mlir import func, ir
from rlx_xla.lowering.context import LoweringContext, location_of
from rlx_xla.lowering.meshes import MeshSymbols
from rlx_xla.lowering.registry import LEAVES, PLATFORMS, is_platform, rule_for, rule_refusal

Emit = Callable[..., Any]


@final
@dataclass(frozen=True, slots=True)
class LoweredModule:
    """A StableHLO module and what it needs to run.

    Attributes:
        module: the module, with a function ``main``.
        host_callbacks: Python callbacks that it calls by index.
        keepalive: objects that must live as long as the executable.
    """

    module: ir.Module
    host_callbacks: tuple[Any, ...]
    keepalive: tuple[Any, ...]


@final
class ModuleLowering:
    """The state of one lowering."""

    def __init__(
        self,
        platform: str,
        *,
        portable: bool = False,
        emitters: Mapping[Node, Emit] | None = None,
        context: ir.Context | None = None,
        as_written: bool = False,
    ) -> None:
        """Start a module.

        Args:
            platform: what is lowered for.
            portable: forbid CHLO and custom calls in the result.
            emitters: nodes whose chosen implementation is a kernel → its ``lower`` function.
            context: where the module lives; a fresh one if None.
            as_written: leave out what only makes XLA's code faster.
        """
        self.platform = platform
        self.portable = portable
        self.as_written = as_written or portable
        self.emitters = dict(emitters or {})
        self.host_callbacks: list[Any] = []
        self.callback_base = 0
        self.keepalive: list[Any] = []
        self.channels = 0
        self.context = mlir.new_context() if context is None else context
        self._types: dict[TensorType, ir.Type] = {}
        self._locations: dict[Location, ir.Location] = {}
        self._functions: dict[int, tuple[Graph, func.FuncOp]] = {}
        with self.context, ir.Location.unknown():
            self.module = ir.Module.create()
            self.meshes = MeshSymbols(self.module)
            self.symbols = ir.SymbolTable(self.module.operation)

    def mlir_type(self, type_: TensorType) -> ir.Type:
        """MLIR type of a static RLX type.

        Raises:
            LoweringError: a dim is symbolic.
        """
        found = self._types.get(type_)
        if found is None:
            if type_.dtype is DType.TOKEN:
                found = ir.Type.parse("!stablehlo.token", self.context)
            else:
                sizes: list[int] = []
                for dim in type_.shape:
                    if not isinstance(dim, int):
                        raise LoweringError(
                            f"lowering: static shapes are required; got {type_}. "
                            "Bind the symbolic dims first (rlx.bind)."
                        )
                    sizes.append(dim)
                found = mlir.tensor_type(sizes, type_.dtype.numpy, self.context)
            self._types[type_] = found
        return found

    def location(self, location: Location) -> ir.Location:
        """MLIR location of a node's location."""
        found = self._locations.get(location)
        if found is None:
            found = self._locations[location] = location_of(location, self.context)
        return found

    def function(self, graph: Graph, name: str, *, public: bool) -> func.FuncOp:
        """Emit a graph as a function of its inputs, then its params, then its effects' tokens."""
        leaves = (*graph.inputs, *graph.params)
        results = graph.outputs if public else (*graph.outputs, *graph.effects)
        signature = ir.FunctionType.get(
            [self.mlir_type(v.type) for v in leaves], [self.mlir_type(v.type) for v in results]
        )
        with ir.InsertionPoint(self.module.body), ir.Location.unknown():
            made = func.FuncOp(name, signature, visibility="public" if public else "private")
        places = [ir.Location.name(v.name, context=self.context) for v in leaves]
        mesh = mesh_of(graph) if public and not self.portable else None
        if mesh is not None and mesh.size == 1:
            mesh = None
        if public and leaves:
            made.arg_attrs = [ir.DictAttr.get(self._argument(v, mesh)) for v in leaves]
        if mesh is not None:
            self._place(made, graph, mesh)
        block = made.body.blocks.append(*signature.inputs, arg_locs=places)
        with ir.InsertionPoint(block), ir.Location.unknown():
            values = self.inline(graph, list(block.arguments))
            func.return_(values[: len(results)])
        return made

    def _argument(self, leaf: Value, mesh: Mesh | None) -> dict[str, ir.Attribute]:
        """The attributes of an argument of ``main``: its name, and where it lies."""
        attributes: dict[str, ir.Attribute] = {"jax.arg_info": ir.StringAttr.get(leaf.name)}
        if mesh is not None:
            attributes["sdy.sharding"] = self.meshes.argument(leaf, mesh)
        return attributes

    def _place(self, main: func.FuncOp, graph: Graph, mesh: Mesh) -> None:
        """Say over how many devices ``main`` is spread, and where its results lie."""
        stated = [self.meshes.result(v) for v in graph.outputs]
        main.result_attrs = ir.ArrayAttr.get(
            [ir.DictAttr.get({} if s is None else {"sdy.sharding": s}) for s in stated]
        )
        for what, count in (("partitions", mesh.size), ("replicas", 1)):
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), count)
            self.module.operation.attributes[f"mhlo.num_{what}"] = number

    def call(self, graph: Graph, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Call a graph as a private function that is emitted once per graph object."""
        if id(graph) not in self._functions:
            self._emit_called(graph)
        return list(func.CallOp(self._functions[id(graph)][1], list(arguments)).results)

    def _emit_called(self, graph: Graph) -> None:
        """Emit a function and those that it calls, inner ones first: calls nest at any depth."""
        found = inner_first(graph, lambda inner: id(inner) not in self._functions)
        calls = [n.op for inner in found for n in inner.nodes() if isinstance(n.op, Call)]
        called = {id(graph), *(id(op.body) for op in calls)}
        for inner in found:
            if id(inner) in called and id(inner) not in self._functions:
                made = self.function(inner, _symbol(inner.name), public=False)
                self.symbols.insert(made.operation)
                self._functions[id(inner)] = (inner, made)

    def inline(self, graph: Graph, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Emit a graph's nodes at the insertion point; return its outputs, then its tokens."""
        leaves = (*graph.inputs, *graph.params)
        known: dict[Value, ir.Value] = dict(zip(leaves, arguments, strict=True))
        for node in graph.nodes():
            if node.op.op_name in LEAVES:
                continue
            with self.location(node.location):
                results = self.emit(node, [known[v] for v in node.inputs])
            known.update(zip(node.results, results, strict=True))
        return [known[v] for v in (*graph.outputs, *graph.effects)]

    def emit(self, node: Node, operands: Sequence[ir.Value]) -> list[ir.Value]:
        """Emit one node by its kernel or rule.

        Raises:
            LoweringError: there is neither, or the rule refuses the node.
        """
        ctx = LoweringContext(self, node)
        rule = self.emitters.get(node)
        if rule is None:
            rule = rule_for(type(node.op), self.platform)
            if rule is None:
                raise missing_rule(node, self.platform)
            reason = rule_refusal(node.op, ctx.input_types, self.platform)
            if reason is not None:
                raise ctx.refuse(reason)
        made = rule(ctx, node.op, *operands)
        return [made] if isinstance(made, ir.Value) else list(made)


def lower_to_module(
    graph: Graph,
    platform: str,
    *,
    portable: bool = False,
    emitters: Mapping[Node, Emit] | None = None,
    context: ir.Context | None = None,
    as_written: bool = False,
) -> LoweredModule:
    """Return the StableHLO module of a static graph, verified; in a context of its own if None.

    Raises:
        LoweringError: an op has no rule, or MLIR finds the module malformed.
    """
    if not is_platform(platform):
        raise LoweringError(f"lowering: platform is one of {PLATFORMS}; got {platform!r}.")
    lowering = ModuleLowering(
        platform, portable=portable, emitters=emitters, context=context, as_written=as_written
    )
    with lowering.context, ir.Location.unknown():
        main = lowering.function(graph, "main", public=True)
        lowering.symbols.insert(main.operation)
        lowering.module.operation.attributes["sym_name"] = ir.StringAttr.get(
            "rlx_" + _symbol(graph.name)
        )
        try:
            lowering.module.operation.verify()
        except ir.MLIRError as error:
            raise LoweringError(f"lowering: MLIR refuses the module: {error}") from error
    return LoweredModule(lowering.module, tuple(lowering.host_callbacks), tuple(lowering.keepalive))


def missing_rule(node: Node, platform: str) -> LoweringError:
    """The error for an op that cannot be lowered on a platform."""
    name = node.op.op_name
    has = [p for p in PLATFORMS if rule_for(type(node.op), p) is not None]
    where = f" at {node.location}" if node.location else ""
    cls = type(node.op).__name__
    return LoweringError(
        f"no lowering for op {name!r} on {platform!r}{where} (has: {', '.join(has) or 'none'}). "
        f'Add one with @lowers({cls}, platform="{platform}") or allow its decomposition '
        "(CompileOptions.kernel_dispatch)."
    )


def _symbol(name: str) -> str:
    clean = "".join(c if c.isalnum() or c in "_." else "_" for c in name) or "graph"
    return clean if not clean[0].isdigit() else f"_{clean}"
