"""A function with derivatives of its own, all of them graphs: they are saved with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.errors import DTypeError
from rlx.ir.derivatives import differentiable
from rlx.ir.graph import Graph
from rlx.ir.op import Op, define_op
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("custom_fn")
class CustomFn(Op):
    """A graph applied to operands, with derivatives of its own.

    y = fwd(*operands)

    Inputs:
        operands: one for each input of fwd, in order.

    Attributes:
        fwd: what is computed.
        vjp: (operands, results, gradient by each float or complex result) → gradient by each
            float or complex operand; None where reverse mode follows jvp or fwd.
        jvp: (operands, tangent of each float or complex operand) → tangent of each float or
            complex result; it may take the results before the tangents. None where forward mode
            follows fwd; with a vjp alone there is none.
        name: the function's name, for people.

    Result:
        The outputs of fwd. Differentiation (`rlx_xla.to_jax`) uses vjp and jvp, in JAX's
        convention for complex numbers. With both, JAX cannot batch (vmap) the derivative.

    Constraints:
        C1: fwd has no params and no effects, and an input for each operand.
        C2: each operand has the type of fwd's input.
        C3: vjp has no params and no effects, and takes and returns the types above.
        C4: jvp has no params and no effects, and takes and returns the types above.

    Source: `jax.custom_vjp`, `jax.custom_jvp`; RLX `Op::CustomFn`.
    """

    fwd: Graph
    vjp: Graph | None = None
    jvp: Graph | None = None
    name: str = "custom_fn"

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        fwd = self.fwd
        self.require(
            "C1",
            not fwd.params and not fwd.effects and len(fwd.inputs) == len(operands),
            f"fwd is required to have no params, no effects, and an input for each of "
            f"{listed(operands)}; it has {len(fwd.params)} params, {len(fwd.effects)} effects and "
            f"takes {listed([v.type for v in fwd.inputs])}. Pass what it takes.",
        )
        for index, (leaf, found) in enumerate(zip(fwd.inputs, operands, strict=True)):
            text = (
                f"operands[{index}] is required to be {leaf.type}, input {leaf.name!r} of fwd; "
                f"got {found}. Convert or reshape it."
            )
            self.require("C2", found.dtype is leaf.type.dtype, text, DTypeError)
            self.require_same_dims("C2", found.shape, leaf.type.shape, text)
        results = tuple(v.type for v in fwd.outputs)
        slopes, given = differentiable(results), differentiable(operands)
        if self.vjp is not None:
            _check_rule(self, "C3", "vjp", self.vjp, ((*operands, *results, *slopes),), given)
        if self.jvp is not None:
            takes = ((*operands, *given), (*operands, *results, *given))
            _check_rule(self, "C4", "jvp", self.jvp, takes, slopes)
        return results

    def decompose(self, *operands: Value) -> tuple[Value, ...]:
        from rlx.ops.control_flow import Call

        return Call(body=self.fwd, name=self.name)(*operands)


def listed(types: Sequence[TensorType]) -> str:
    """Types as text."""
    return f"({', '.join(map(str, types))})"


def _check_rule(
    op: Op,
    label: str,
    name: str,
    graph: Graph,
    takes: Sequence[Sequence[TensorType]],
    gives: Sequence[TensorType],
) -> None:
    found = tuple(v.type for v in graph.inputs)
    made = tuple(v.type for v in graph.outputs)
    ways = " or ".join(listed(way) for way in takes)
    op.require(
        label,
        not graph.params
        and not graph.effects
        and any(found == tuple(way) for way in takes)
        and made == tuple(gives),
        f"{name} is required to take {ways} and to return {listed(gives)}, without params and "
        f"effects; it takes {listed(found)} and {len(graph.params)} params, and returns "
        f"{listed(made)}. Change the graph.",
    )
