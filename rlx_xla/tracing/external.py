"""Equations that are not modelled, as ``external`` nodes that still run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx.ir.attributes import Opaque
from rlx.ir.graph import Value, make_node
from rlx.ops.external import External
from rlx.types import TOKEN, TensorType
from rlx_xla._jax_compat import equations, keys
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla._jax_compat.jaxpr import abstract
from rlx_xla.lowering.registry import PLATFORMS

if TYPE_CHECKING:
    from rlx_xla.tracing.walk import JaxprWalker


@final
@dataclass(frozen=True, eq=False)
class LiveEquation:
    """One JAX equation in memory.

    Attributes:
        name: the primitive.
        jaxpr: a closed jaxpr with this equation alone; every operand is an argument.
        in_avals: abstract values of the operands.
        out_avals: abstract values of the results.
        ordered: whether the effect is ordered with others of its kind.
        x64: whether JAX makes 64-bit values in it where no dtype is named, as it did when tracing.
    """

    name: str
    jaxpr: Any
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    ordered: bool
    x64: bool

    def function(self, *operands: Any) -> list[Any]:
        """The equation as a JAX function of raw arrays (keys as u32 data)."""
        wrapped = [
            keys.wrap_key(x, keys.key_impl(a.dtype)) if keys.is_key(a) else x
            for x, a in zip(operands, self.in_avals, strict=True)
        ]
        results = equations.function_of(self.jaxpr)(*wrapped)
        return [
            keys.key_data(r) if keys.is_key(a) else r
            for r, a in zip(results, self.out_avals, strict=True)
        ]

    def evaluate(self, *operands: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """Run the equation eagerly on arrays; tokens pass through."""
        token = operands[len(self.in_avals) :]
        with jx.enable_x64(self.x64):
            results = self.function(*operands[: len(self.in_avals)])
            return (*(np.asarray(r) for r in results), *token)

    def portable(self) -> tuple[tuple[str, str], ...]:
        """StableHLO text for every platform that has the primitive, host callbacks excepted."""
        if any(jx.is_symbolic(n) for a in self.in_avals for n in a.shape):
            return ()
        avals = [
            abstract((*a.shape, *keys.key_shape(a.dtype)), np.uint32)
            if keys.is_key(a)
            else abstract(a.shape, a.dtype)
            for a in self.in_avals
        ]
        found: list[tuple[str, str]] = []
        for platform in PLATFORMS:
            text, callbacks = equations.try_lower(self.function, avals, platform, x64=self.x64)
            if callbacks:
                return ()
            if text:
                found.append((platform, text))
        return tuple(found)


def live_equation(equation: Any) -> LiveEquation:
    """Keep an equation apart from its jaxpr."""
    avals = [v.aval for v in (*equation.invars, *equation.outvars)]
    return LiveEquation(
        equation.primitive.name,
        equations.single_equation(equation),
        tuple(v.aval for v in equation.invars),
        tuple(v.aval for v in equation.outvars),
        equations.is_ordered(equation),
        jx.x64_enabled() or any(map(equations.is_wide, avals)),
    )


def node(
    walker: JaxprWalker, equation: Any, operands: Sequence[Value], types: Sequence[TensorType]
) -> tuple[Value, ...]:
    """Make the external node of an equation; its tokens join the chains of its effects."""
    effects = equations.effect_kinds(equation)
    live = live_equation(equation)
    made_types = (*types, *[TOKEN] * len(effects))
    op = External(
        name=live.name,
        dtypes=tuple(t.dtype for t in made_types),
        shapes=tuple(t.shape for t in made_types),
        effect=", ".join(effects),
        live=Opaque(live, live.evaluate, live.portable),
    )
    results = make_node(op, (*operands, *map(walker.token, effects))).results
    count = len(types)
    walker.scope.tokens.update(zip(effects, results[count:], strict=True))
    return results[:count]
