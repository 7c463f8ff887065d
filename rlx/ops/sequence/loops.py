"""A loop over steps, written as a function of values; the node count does not grow with steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Value
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.control_flow import Scan
from rlx.ops.dot import DotGeneral, DotPrecision
from rlx.ops.io import Input
from rlx.ops.shape import BroadcastInDim
from rlx.types import Shape, TensorType

Values: TypeAlias = "Sequence[Value]"
Step: TypeAlias = "Callable[[Values, Values, Values], tuple[Values, Values]]"


def scan(
    step: Step, carry: Values, xs: Values, *, consts: Values = (), reverse: bool = False
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Loop over the leading axis of arrays.

    Args:
        step: (constants, carry, slices) → (new carry, what is stacked).
        carry: values before the first step.
        xs: arrays [T, ...], at least one.
        consts: values that each step reads.
        reverse: run from the last step to the first.

    Returns:
        The last carry, and the stacked arrays.
    """
    length = xs[0].shape[0]
    types = [
        *(v.type for v in (*consts, *carry)),
        *(x.type.with_shape(x.shape[1:]) for x in xs),
    ]
    names = [
        *(f"const{i}" for i in range(len(consts))),
        *(f"carry{i}" for i in range(len(carry))),
        *(f"x{i}" for i in range(len(xs))),
    ]
    leaves = [leaf(name, type_) for name, type_ in zip(names, types, strict=True)]
    first, last = len(consts), len(consts) + len(carry)
    state, stacked = step(leaves[:first], leaves[first:last], leaves[last:])
    body = Graph(leaves, (), (*state, *stacked), name="step")
    op = Scan(
        body=body, length=length, reverse=reverse, num_consts=len(consts), num_carry=len(carry)
    )
    made = op(*consts, *carry, *xs)
    results = cast("tuple[Value, ...]", made if isinstance(made, tuple) else (made,))
    return results[: len(carry)], results[len(carry) :]


def leaf(name: str, type_: TensorType) -> Value:
    """An input of an inner graph."""
    return Input(name=name, dtype=type_.dtype, shape=type_.shape)()


def zeros(dtype: DType, shape: Shape) -> Value:
    """An array of zeros."""
    return broadcast_to(constant(0.0, dtype), shape)


def spread(x: Value, shape: Shape, *axes: int) -> Value:
    """Put the axes of x at the given positions of a shape, and repeat it along the others."""
    return BroadcastInDim(shape=shape, broadcast_dimensions=axes)(x)


def contract(lhs: Value, rhs: Value, lhs_axis: int, rhs_axis: int, batch: int) -> Value:
    """A product summed over one axis of each, over ``batch`` leading axes of both, exactly."""
    axes = tuple(range(batch))
    return DotGeneral(
        lhs_contracting=(lhs_axis,),
        rhs_contracting=(rhs_axis,),
        lhs_batch=axes,
        rhs_batch=axes,
        precision=(DotPrecision.HIGHEST, DotPrecision.HIGHEST),
    )(lhs, rhs)
