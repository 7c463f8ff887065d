"""Derivative rules of ops, attached from outside: ``@vjp_rule(MyOp)``, ``@jvp_rule(MyOp)``.

A rule is written with graph values. ``rlx_xla.to_jax`` gives it to JAX in place of the derivative
of the op's decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rlx.errors import RegistryError
from rlx.ir.graph import Graph, Value

if TYPE_CHECKING:
    from rlx.ir.op import Op
    from rlx.types import TensorType

Values: TypeAlias = "tuple[Value, ...]"
Rule: TypeAlias = "Callable[[Op, Values, Values, Values], Sequence[Value | None]]"
"""(op, inputs, results, gradients by the results) → gradients by the inputs, None for zero; or
(op, inputs, results, tangents of the inputs) → tangents of the results. Only floats and complex
numbers have gradients and tangents."""

_VJP: dict[type[Op], Rule] = {}
_JVP: dict[type[Op], Rule] = {}


def vjp_rule(*ops: type[Op]) -> Callable[[Rule], Rule]:
    """Register how gradients go back through ops.

    Raises:
        RegistryError: another module has a rule for an op.
    """
    return _register("vjp_rule", _VJP, ops)


def jvp_rule(*ops: type[Op]) -> Callable[[Rule], Rule]:
    """Register how tangents go through ops.

    Raises:
        RegistryError: another module has a rule for an op.
    """
    return _register("jvp_rule", _JVP, ops)


def has_rule(op: type[Op]) -> bool:
    """Whether an op has a derivative rule of either kind."""
    return op in _VJP or op in _JVP


def rules_of(op: type[Op]) -> tuple[Rule | None, Rule | None]:
    """The op's rules for gradients and for tangents."""
    return _VJP.get(op), _JVP.get(op)


def rule_graphs(
    op: Op, types: Sequence[TensorType], vjp: Rule | None, jvp: Rule | None
) -> tuple[Graph | None, Graph | None]:
    """What rules say for an op on inputs of given types, as the graphs that `custom_fn` takes.

    Raises:
        RegistryError: a rule gives values of other types than it must.
    """
    results = op.infer_types(types)
    given, made = differentiable(types), differentiable(results)
    return (
        None if vjp is None else _graph("vjp", op, vjp, (types, results, made), given),
        None if jvp is None else _graph("jvp", op, jvp, (types, results, given), made),
    )


def differentiable(types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Those types that have gradients and tangents: of floats and complex numbers."""
    return tuple(t for t in types if t.dtype.is_float or t.dtype.is_complex)


def _graph(
    kind: str,
    op: Op,
    rule: Rule,
    groups: tuple[Sequence[TensorType], Sequence[TensorType], Sequence[TensorType]],
    wanted: Sequence[TensorType],
) -> Graph:
    from rlx.ir.operators import broadcast_to, constant
    from rlx.ops.io import Input

    leaves = [
        tuple(Input(name=f"{name}{i}", dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types))
        for name, types in zip(("x", "y", "d"), groups, strict=True)
    ]
    made = tuple(rule(op, *leaves))
    found = [w if v is None else v.type for v, w in zip(made, wanted, strict=False)]
    if len(made) != len(wanted) or found != list(wanted):
        raise RegistryError(
            f"{kind} of {op.op_name!r}: the rule is required to return "
            f"({', '.join(map(str, wanted))}), None for zero; got "
            f"({', '.join('None' if v is None else str(v.type) for v in made)}). Change the rule."
        )
    outputs = [
        broadcast_to(constant(0, w.dtype), w.shape) if v is None else v
        for v, w in zip(made, wanted, strict=True)
    ]
    return Graph([v for group in leaves for v in group], (), outputs, name=kind)


def _register(
    where: str, table: dict[type[Op], Rule], ops: Sequence[type[Op]]
) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for op in ops:
            other = table.get(op)
            if other is not None and other.__module__ != rule.__module__:
                raise RegistryError(
                    f"{where}: op {op.op_name!r} has a rule {other.__module__}.{other.__name__}; "
                    f"{rule.__module__}.{rule.__name__} is a second one."
                )
            table[op] = rule
        return rule

    return register
