"""Walks a jaxpr and makes the RLX graph: one rule call per equation, external nodes otherwise."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from rlx import dims
from rlx.dims import DimExpr
from rlx.dtypes import DType, as_dtype
from rlx.errors import TraceError
from rlx.ir import location as loc
from rlx.ir.graph import Graph, Value
from rlx.ir.operators import constant
from rlx.ops.effect import CreateToken
from rlx.ops.io import Input
from rlx.sharding import MeshAxes
from rlx.types import TOKEN, Dim, TensorType
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla._jax_compat import keys
from rlx_xla.tracing import external, shardings
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import rule_for

LITERAL_LIMIT = 1024
"""Captured arrays of more bytes than this are lifted to params (DESIGN, section 7)."""


@final
@dataclass
class Scope:
    """The graph that is being made, outer or inner.

    Attributes:
        lift: makes the leaf (a param outside, an input inside) for a captured array.
        captured: lifted arrays and their leaves, by identity of the array.
        literals: small constants already made, by dtype, shape and bits.
        tokens: the last token of each chain, by kind of effect, in the order of their first use.
        first_tokens: inside a body, the inputs that start the chains; None outside.
    """

    lift: Callable[[Any, int], Value]
    captured: dict[int, tuple[Any, Value]] = field(default_factory=dict[int, "tuple[Any, Value]"])
    literals: dict[Any, Value] = field(default_factory=dict[Any, Value])
    tokens: dict[str, Value] = field(default_factory=dict[str, Value])
    first_tokens: list[Value] | None = None


@final
@dataclass
class Inner:
    """A walked inner jaxpr: its graph, and what to pass for its leading and last inputs.

    Attributes:
        jaxpr: kept alive, since it is found by identity.
        graph: takes the captured arrays, the jaxpr's arguments, then a token for each effect.
        captured: the arrays.
        effects: kinds of the effects, in the order of the tokens.
    """

    jaxpr: Any
    graph: Graph
    captured: list[Any]
    effects: tuple[str, ...]


@final
class JaxprWalker:
    """The state of one trace.

    Attributes:
        modelled: how many equations became ops, by primitive.
        opaque: how many equations became external nodes, by primitive.
        meshes: those of the ``shard_map``s around the equation, the innermost last.
    """

    def __init__(
        self, lift: Callable[[Any, int], Value], symbols: Mapping[str, DimExpr] | None = None
    ) -> None:
        """Start a trace whose outermost captured arrays are lifted by ``lift``.

        Args:
            lift: see above.
            symbols: those that are declared with bounds.
        """
        self._declared = symbols
        self.scope = Scope(lift)
        self.modelled: dict[str, int] = {}
        self.opaque: dict[str, int] = {}
        self.meshes: list[MeshAxes] = []
        self._inner: dict[int, Inner] = {}
        self._dims: dict[Any, Dim] = {}
        self._types: dict[Any, TensorType] = {}
        self._lines: dict[Hashable, jx.SourceLine | None] = {}
        self._labels: dict[Hashable, str] = {}

    def dim(self, size: Any) -> Dim:
        """A JAX dimension as a dim."""
        if isinstance(size, int | np.integer):
            return int(size)
        found = self._dims.get(size)
        if found is None:
            found = self._dims[size] = dims.parse(str(size), self._declared)
        return found

    def symbols(self) -> dict[str, Any]:
        """JAX's dimension of each symbol that was met alone."""
        return {str(d): n for n, d in self._dims.items() if str(d).isidentifier()}

    def type_of(self, aval: Any) -> TensorType:
        """RLX type of an abstract value; keys are ``u32[..., n]``, tokens ``token``."""
        if isinstance(aval, jx.AbstractToken):
            return TOKEN
        key = (aval.shape, aval.dtype)
        found = self._types.get(key)
        if found is None:
            found = self._types[key] = self._type_of_array(aval)
        return found

    def _type_of_array(self, aval: Any) -> TensorType:
        shape = tuple(map(self.dim, aval.shape))
        if keys.is_key(aval):
            return TensorType(DType.U32, (*shape, *keys.key_shape(aval.dtype)))
        if not isinstance(aval.dtype, np.dtype) or keys.is_float0(aval.dtype):
            return TensorType(keys.extended_dtype(aval.dtype), shape)
        return TensorType(as_dtype(aval.dtype), shape)

    def walk(
        self, jaxpr: Any, consts: Sequence[Value], inputs: Sequence[Value]
    ) -> tuple[Value, ...]:
        """Make nodes for every equation of an open jaxpr; return its results."""
        env: dict[Any, Value] = {}
        env.update(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Value:
            return (
                self.literal(jx.literal_value(atom)) if isinstance(atom, jx.Literal) else env[atom]
            )

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            results = self._equation(equation, operands)
            env.update(zip(equation.outvars, results, strict=True))
        return tuple(read(atom) for atom in jaxpr.outvars)

    def literal(self, array: Any) -> Value:
        """A captured array: a constant when small, a lifted leaf otherwise."""
        if keys.is_wrapped(array):
            array = keys.key_data(array)
        size = array.nbytes if hasattr(array, "nbytes") else np.asarray(array).nbytes
        if size > LITERAL_LIMIT:
            found = self.scope.captured.get(id(array))
            if found is None:
                leaf = self.scope.lift(array, len(self.scope.captured))
                found = self.scope.captured[id(array)] = (array, leaf)
            return found[1]
        data = np.asarray(array)
        key = (data.dtype, data.shape, data.tobytes())
        made = self.scope.literals.get(key)
        if made is None:
            made = self.scope.literals[key] = constant(data)
        return made

    def inner_graph(self, closed: Any, name: str) -> Graph:
        """An inner jaxpr as a graph, made once per jaxpr object."""
        return self._walk_inner(closed, name).graph

    def constants(self, closed: Any) -> tuple[Value, ...]:
        """Values of this scope for the leading inputs of an inner graph."""
        return tuple(self.literal(a) for a in self._walk_inner(closed, "body").captured)

    def effects(self, closed: Any) -> tuple[str, ...]:
        """Kinds of effect of an inner graph, in the order of its tokens."""
        return self._walk_inner(closed, "body").effects

    def inline(self, closed: Any, inputs: Sequence[Value]) -> tuple[Value, ...]:
        """Walk an inner jaxpr in this scope."""
        consts = [self.literal(c) for c in jx.constants(closed)]
        return self.walk(jx.open_jaxpr(closed), consts, inputs)

    def token(self, effect: str) -> Value:
        """The last token of a chain; the first is made on demand, and is an input of a body."""
        found = self.scope.tokens.get(effect)
        if found is not None:
            return found
        inputs = self.scope.first_tokens
        if inputs is None:
            made: Value = CreateToken()()
        else:
            made = Input(name=f"token_{len(inputs)}", dtype=DType.TOKEN, shape=())()
            inputs.append(made)
        self.scope.tokens[effect] = made
        return made

    def _walk_inner(self, closed: Any, name: str) -> Inner:
        opened = jx.open_jaxpr(closed)
        found = self._inner.get(id(opened))
        if found is not None:
            return found
        leaves: list[Value] = []

        def lift(array: Any, index: int) -> Value:
            dtype = as_dtype(np.dtype(array.dtype))
            shape = tuple(int(n) for n in array.shape)
            leaf: Value = Input(name=f"captured_{index}", dtype=dtype, shape=shape)()
            leaves.append(leaf)
            return leaf

        tokens: list[Value] = []
        outer, self.scope = self.scope, Scope(lift, first_tokens=tokens)
        try:
            inputs = [
                Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)()
                for i, t in enumerate(self.type_of(v.aval) for v in opened.invars)
            ]
            with loc.at(loc.UNKNOWN):
                consts = [self.literal(c) for c in jx.constants(closed)]
            results = self.walk(opened, consts, inputs)
            captured = [array for array, _ in self.scope.captured.values()]
            chains = dict(self.scope.tokens)
            graph = Graph((*leaves, *inputs, *tokens), (), results, chains.values(), name=name)
        finally:
            self.scope = outer
        made = self._inner[id(opened)] = Inner(opened, graph, captured, tuple(chains))
        return made

    def _equation(self, equation: Any, operands: Sequence[Value]) -> Sequence[Value]:
        name = equation.primitive.name
        where = self._location(equation)
        with loc.at(where):
            ctx = TraceContext(self, equation)
            rule = rule_for(name)
            params, wanted = shardings.split(name, equation.params)
            made = NotImplemented if rule is None else rule(ctx, params, *operands)
            if wanted is not None and made is not NotImplemented:
                made = shardings.constrained(made, wanted)
            if made is NotImplemented:
                self.opaque[name] = self.opaque.get(name, 0) + 1
                operands = shardings.placed_operands(name, equation.params, operands)
                return external.node(self, equation, operands, ctx.out_types)
            self.modelled[name] = self.modelled.get(name, 0) + 1
        results = (made,) if isinstance(made, Value) else tuple(made)
        for index, (result, wanted) in enumerate(zip(results, ctx.out_types, strict=True)):
            if result.type != wanted:
                raise TraceError(
                    f"trace: the rule for primitive {name!r} is required to give {wanted} as "
                    f"result {index}; it gave {result.type} at {where}. This is a defect of "
                    f"the rule; parameters: {equation.params}."
                )
        return results

    def _location(self, equation: Any) -> loc.Location:
        # A loop in Python makes many equations at one line, and a scope holds many.
        traceback, names = jx.place(equation)
        if traceback in self._lines:
            line = self._lines[traceback]
        else:
            line = self._lines[traceback] = jx.source_line(equation)
        label = self._labels.get(names)
        if label is None:
            label = self._labels[names] = jx.name_stack(equation)
        # JAX keeps no line inside of its own jitted functions.
        place = loc.enclosing() if line is None else line
        return loc.intern(place.file, place.line, label)
