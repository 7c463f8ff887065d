"""What a tracing rule gets besides the inputs: result types, constants, inner graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from rlx.dtypes import DType
from rlx.ir.attributes import Opaque
from rlx.ir.graph import Graph, Value
from rlx.ir.operators import broadcast_to, constant
from rlx.types import Dim, Shape, TensorType

if TYPE_CHECKING:
    from rlx_xla.tracing.walk import JaxprWalker


@final
class TraceContext:
    """One equation's view of the trace.

    Attributes:
        out_types: RLX types of the results; rules convert or check against these.
        walker: the trace itself.
        equation: JAX's equation.
    """

    __slots__ = ("equation", "out_types", "walker")

    def __init__(self, walker: JaxprWalker, equation: Any) -> None:
        """Look at the trace from an equation."""
        self.walker = walker
        self.equation = equation
        self.out_types: tuple[TensorType, ...] = tuple(
            [walker.type_of(v.aval) for v in equation.outvars]
        )

    @property
    def in_avals(self) -> tuple[Any, ...]:
        """JAX's abstract values of the arguments."""
        return tuple(v.aval for v in self.equation.invars)

    @property
    def out_avals(self) -> tuple[Any, ...]:
        """JAX's abstract values of the results."""
        return tuple(v.aval for v in self.equation.outvars)

    @property
    def in_types(self) -> tuple[TensorType, ...]:
        """RLX types of the arguments."""
        return tuple(map(self.walker.type_of, self.in_avals))

    @property
    def out_type(self) -> TensorType:
        """Type of the only result."""
        return self.out_types[0]

    def constant(self, data: Any, dtype: DType) -> Value:
        """A constant of a dtype."""
        return constant(data, dtype)

    def full(self, data: Any, type_: TensorType) -> Value:
        """One scalar, broadcast to a type."""
        return broadcast_to(constant(data, type_.dtype), type_.shape)

    def same_shape(self, *values: Value) -> tuple[Value, ...]:
        """Broadcast rank-0 values to the result's shape (JAX lets scalars meet arrays)."""
        shape = self.out_type.shape
        return tuple([v if v.shape == shape else broadcast_to(v, shape) for v in values])

    def dim(self, size: Any) -> Dim:
        """A JAX dimension (an int or a symbolic one) as a dim."""
        return self.walker.dim(size)

    def shape(self, sizes: Sequence[Any]) -> Shape:
        """JAX dimensions as a shape."""
        return tuple(self.walker.dim(size) for size in sizes)

    def graph(self, closed_jaxpr: Any, name: str) -> Graph:
        """An inner jaxpr as a Graph; the same jaxpr gives the same Graph object.

        The jaxpr's constants become leading inputs: ``constants(closed_jaxpr)`` gives the values
        to pass for them. Tokens of its effects come last: ``tokens(effects(closed_jaxpr))`` gives
        them, and ``without_tokens`` takes them from the results.
        """
        return self.walker.inner_graph(closed_jaxpr, name)

    def live(self, body: Graph, *, captured: bool) -> Opaque:
        """The equation, to be kept beside the call of a body that it became."""
        from rlx_xla.tracing.external import live_equation
        from rlx_xla.tracing.live import LiveCall

        return Opaque(LiveCall(live_equation(self.equation), body, captured), counts=False)

    def constants(self, closed_jaxpr: Any) -> tuple[Value, ...]:
        """Values for the captured arrays of an inner jaxpr, in order."""
        return self.walker.constants(closed_jaxpr)

    def effects(self, closed_jaxpr: Any) -> tuple[str, ...]:
        """Kinds of effect of an inner jaxpr, in the order of its graph's tokens."""
        return self.walker.effects(closed_jaxpr)

    def tokens(self, effects: Sequence[str]) -> tuple[Value, ...]:
        """The last token of each chain."""
        return tuple(map(self.walker.token, effects))

    def without_tokens(
        self, results: Value | Sequence[Value], effects: Sequence[str]
    ) -> tuple[Value, ...]:
        """Results of a node, whose last ones are the new tokens; these continue the chains."""
        every = (results,) if isinstance(results, Value) else tuple(results)
        count = len(every) - len(effects)
        self.walker.scope.tokens.update(zip(effects, every[count:], strict=True))
        return every[:count]

    def inline(self, closed_jaxpr: Any, inputs: Sequence[Value]) -> tuple[Value, ...]:
        """Walk an inner jaxpr in place; return its results."""
        return self.walker.inline(closed_jaxpr, inputs)
