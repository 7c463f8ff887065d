"""Functions with derivatives of their own, on the way to JAX and back.

``custom_fn`` nodes, named ops and ops with derivative rules become ``jax.custom_vjp`` or
``jax.custom_jvp`` functions around a ``jit`` by whose name tracing finds the op again.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rlx.ir.derivatives import differentiable, has_rule
from rlx.ir.graph import make_node
from rlx.ir.op import Op
from rlx.types import TensorType
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla.tracing import composites

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from rlx_xla.tracing.context import TraceContext

MARK = "rlx-own:"
"""Start of the name of a ``jit`` that stands for an op of this process."""

Function = Callable[..., Any]

_numbers = itertools.count()
_marked: weakref.WeakValueDictionary[str, Op] = weakref.WeakValueDictionary()


def marked(op: Op, name: str, body: Function) -> Function:
    """A ``jit`` of a body, by whose name tracing finds the op as long as the function lives."""
    token = str(next(_numbers))
    _marked[token] = op

    def function(*arrays: Any) -> Any:
        assert op is not None  # the op lives as long as the function
        return body(*arrays)

    function.__name__ = function.__qualname__ = f"{MARK}{token}:{name}"
    return jax.jit(function)


def with_rules(
    function: Function,
    inputs: Sequence[TensorType],
    results: Sequence[TensorType],
    vjp: Function | None,
    jvp: Function | None,
    *,
    jvp_takes_results: bool,
) -> Function:
    """A function with derivatives of its own.

    Args:
        function: arrays → list of arrays.
        inputs: types of its arguments.
        results: types of its results.
        vjp: (arguments, results, gradients by the differentiable results) → gradients by the
            differentiable arguments.
        jvp: (arguments, results where it takes them, tangents of the differentiable arguments) →
            tangents of the differentiable results.
        jvp_takes_results: whether jvp takes the results.

    Returns:
        The same function for JAX. With both rules it has forward and reverse mode, but ``vmap``
        of its derivative has none: JAX's ``linear_call`` is not batched.
    """
    given, made = (tuple(bool(differentiable([t])) for t in types) for types in (inputs, results))

    def back(
        primals: Sequence[Any], outputs: Sequence[Any], slopes: Sequence[Any]
    ) -> Sequence[Any]:
        assert vjp is not None
        return vjp(*primals, *outputs, *slopes)

    if jvp is None:
        return _reverse_only(function, given, made, back) if vjp is not None else function
    made_function: Any = jax.custom_jvp(function)

    def forward(primals: Sequence[Any], outputs: Sequence[Any], slopes: Sequence[Any]) -> Any:
        return jvp(*primals, *(outputs if jvp_takes_results else ()), *slopes)

    @made_function.defjvp
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:  # pyright: ignore[reportUnusedFunction]
        outputs = made_function(*primals)
        slopes = _chosen(tangents, given)
        if vjp is None:
            moved = forward(primals, outputs, slopes)
        else:
            moved = jax.custom_derivatives.linear_call(
                lambda known, t: list(forward(known[0], known[1], t)),
                lambda known, t: list(back(known[0], known[1], t)),
                (list(primals), list(outputs)),
                list(slopes),
            )
        rest = iter(moved)
        return outputs, [
            next(rest) if keep else np.zeros(np.shape(y), jax.dtypes.float0)
            for y, keep in zip(outputs, made, strict=True)
        ]

    return made_function


def _reverse_only(
    function: Function, given: Sequence[bool], made: Sequence[bool], back: Function
) -> Function:
    made_function: Any = jax.custom_vjp(function)

    def forwards(*primals: Any) -> Any:
        outputs = made_function(*primals)
        return outputs, (primals, outputs)

    def backwards(kept: Any, cotangents: Sequence[Any]) -> Any:
        primals, outputs = kept
        rest = iter(back(primals, outputs, _chosen(cotangents, made)))
        return tuple(next(rest) if keep else None for keep in given)

    made_function.defvjp(forwards, backwards)
    return made_function


def _chosen(values: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    return [v for v, keep in zip(values, wanted, strict=True) if keep]


def recognise(
    ctx: TraceContext, closed: Any, operands: Sequence[Value]
) -> tuple[Value, ...] | None:
    """The op behind a JAX function with its own derivative, applied to values; else None."""
    opened = jx.open_jaxpr(closed)
    if len(opened.eqns) != 1:
        return None
    (inner,) = opened.eqns
    name = jx.call_name(inner.params)
    whole = list(inner.invars) == list(opened.invars) and list(inner.outvars) == list(
        opened.outvars
    )
    if not whole or not name.startswith((MARK, composites.PREFIX)):
        return None
    if name.startswith(composites.PREFIX):
        body = jx.called_jaxpr(inner.primitive.name, inner.params)
        found = None if body is None else composites.recognise(ctx, name, body, operands)
        return found if found and has_rule(type(found[0].node.op)) else None
    op = _marked.get(name[len(MARK) :].partition(":")[0])
    if op is None or not _fits(op, [v.type for v in operands], ctx.out_types):
        return None
    return make_node(op, tuple(operands)).results


def _fits(op: Op, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> bool:
    """Whether an op takes and gives these types; a batched function of its name does not."""
    from rlx.errors import RlxError

    try:
        return tuple(op.infer_types(inputs)) == tuple(results)
    except RlxError:
        return False


def plain_name(name: str) -> str:
    """The name of a function for people."""
    return name[len(MARK) :].partition(":")[2] if name.startswith(MARK) else name
