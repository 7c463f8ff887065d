"""Binds JAX's control flow with given bodies, on JAX 0.7.2 to 0.12.

The public functions close over what their bodies use, and so choose the order and number of the
operands; and they add clamps, and turn sums into other primitives. Here the operands and bodies are
as given: JAX's function makes an equation of the right form on abstract values, which is bound
again with the wanted bodies in its parameters. So no version's list of parameters is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src import core as _core
from jax._src.lax.control_flow import conditionals as _conditionals

from rlx_xla._jax_compat.jaxpr import abstract, open_jaxpr

Function = Callable[..., Sequence[Any]]


def max_size(lhs: Any, rhs: Any) -> Any:
    """Return the larger of two sizes, which may be symbolic."""
    return _core.max_dim(lhs, rhs)


def min_size(lhs: Any, rhs: Any) -> Any:
    """Return the smaller of two sizes, which may be symbolic."""
    return _core.min_dim(lhs, rhs)


def size_value(size: Any, dtype: Any) -> Any:
    """Return a size, which may be symbolic, as an array of rank 0."""
    return lax.convert_element_type(_core.dimension_as_value(size), dtype)


def closed(function: Function, avals: Sequence[Any]) -> Any:
    """Return a function of arrays as a closed jaxpr whose results have no weak types."""

    def strong(*arrays: Any) -> list[Any]:
        return [_strong(r) for r in function(*arrays)]

    return jax.make_jaxpr(strong)(*avals)


def platform_index(platforms: Sequence[Sequence[str]]) -> Any:
    """Return the index of the group that holds the platform; an empty group takes any."""
    groups = tuple(tuple(group) or None for group in platforms)
    bind: Any = _conditionals.platform_index_p.bind
    return bind(platforms=groups)


def cond(
    index: Any,
    branches: Sequence[Function],
    operands: Sequence[Any],
    platforms: Sequence[Sequence[str]] | None = None,
) -> list[Any]:
    """Run one of several functions, by an i32 index that is in range.

    Args:
        index: i32[].
        branches: functions of the operands, with results of the same types.
        operands: arrays.
        platforms: groups of platforms, one per branch, where the index is that of the platform.
    """
    avals = [_aval(x) for x in operands]
    jaxprs = [closed(branch, avals) for branch in branches]
    outs = [abstract(v.shape, v.dtype) for v in jaxprs[0].out_avals]

    def template(number: Any, *arrays: Any) -> Any:
        return lax.switch(number, [lambda *a, n=n: _filled(outs, n) for n in range(2)], *arrays)

    primitive, params = _equation(template, [abstract((), "int32"), *avals], "cond")
    params = {**params, "branches": tuple(jaxprs)}
    if platforms is not None and "branches_platforms" in params:
        params["branches_platforms"] = tuple(tuple(group) or None for group in platforms)
    return primitive.bind(index, *operands, **params)


def while_(
    condition: Function,
    body: Function,
    cond_consts: Sequence[Any],
    body_consts: Sequence[Any],
    carry: Sequence[Any],
) -> list[Any]:
    """Run ``body(*body_consts, *carry)`` while ``condition(*cond_consts, *carry)`` holds."""
    avals = [_aval(x) for x in carry]

    def template(*arrays: Any) -> Any:
        return lax.while_loop(lambda c: c[0].size < 0, lambda c: c, (jnp.zeros(()), *arrays))

    primitive, params = _equation(template, avals, "while")
    params = {
        **params,
        "cond_jaxpr": closed(condition, [*(_aval(x) for x in cond_consts), *avals]),
        "body_jaxpr": closed(body, [*(_aval(x) for x in body_consts), *avals]),
        "cond_nconsts": len(cond_consts),
        "body_nconsts": len(body_consts),
    }
    return primitive.bind(*cond_consts, *body_consts, *carry, **params)


def scan(
    body: Function,
    consts: Sequence[Any],
    carry: Sequence[Any],
    xs: Sequence[Any],
    *,
    length: Any,
    reverse: bool,
    unroll: int,
) -> list[Any]:
    """Run ``body(*consts, *carry, *slices)`` along the leading axis of ``xs``.

    Returns:
        The last carry, then the stacked results.
    """
    count, carried = len(consts), len(carry)
    slices = [abstract(x.shape[1:], x.dtype) for x in xs]
    avals = [*(_aval(x) for x in (*consts, *carry)), *slices]
    jaxpr = closed(body, avals)
    call = jax.jit(body)

    def template(*arrays: Any) -> Any:
        given, first, scanned = (
            arrays[:count],
            arrays[count : count + carried],
            arrays[count + carried :],
        )

        def step(state: Any, parts: Any) -> Any:
            results = list(call(*given, *state, *parts))
            return tuple(map(_strong, results[:carried])), results[carried:]

        return lax.scan(
            step, tuple(first), tuple(scanned), length=length, reverse=reverse, unroll=unroll
        )

    distinct = [*(_aval(x) for x in (*consts, *carry)), *(abstract(x.shape, x.dtype) for x in xs)]
    primitive, params = _equation(template, distinct, "scan")
    params = {**params, "jaxpr": jaxpr}
    return primitive.bind(*consts, *carry, *xs, **params)


def reduce(
    body: Function, arrays: Sequence[Any], initial: Sequence[Any], axes: Sequence[int]
) -> list[Any]:
    """Reduce arrays jointly with a computation on scalars, (accumulators, elements) → results."""
    scalars = [abstract((), x.dtype) for x in (*arrays, *arrays)]
    jaxpr = closed(body, scalars)

    def template(*operands: Any) -> Any:
        half = len(operands) // 2
        return lax.reduce(operands[:half], operands[half:], _first, tuple(axes))

    avals = [_aval(x) for x in (*arrays, *initial)]
    primitive, params = _equation(template, avals, "reduce")
    return primitive.bind(*arrays, *initial, **_with_computation(params, jaxpr, body))


def reduce_window(
    body: Function, arrays: Sequence[Any], initial: Sequence[Any], **window: Any
) -> list[Any]:
    """Reduce windows of arrays jointly with a computation on scalars.

    Args:
        body: (accumulators, elements) → results.
        arrays: n arrays.
        initial: n arrays of rank 0.
        window: as ``jax.lax.reduce_window`` names it.
    """
    scalars = [abstract((), x.dtype) for x in (*arrays, *arrays)]
    jaxpr = closed(body, scalars)

    def template(*operands: Any) -> Any:
        half = len(operands) // 2
        return lax.reduce_window(operands[:half], operands[half:], _first, **window)

    avals = [_aval(x) for x in (*arrays, *initial)]
    primitive, params = _equation(template, avals, "reduce_window")
    return primitive.bind(*arrays, *initial, **_with_computation(params, jaxpr, body))


def _with_computation(params: dict[str, Any], jaxpr: Any, body: Function) -> dict[str, Any]:
    opened = params["jaxpr"] is open_jaxpr(params["jaxpr"])
    changed = {**params, "jaxpr": open_jaxpr(jaxpr) if opened else jaxpr}
    if "consts" in params:
        changed["consts"] = tuple(jaxpr.consts)
    if "computation" in params:
        changed["computation"] = body
    return changed


def _first(accumulators: Any, elements: Any) -> Any:
    """A computation that JAX takes for no sum, product, minimum or maximum."""
    return accumulators


def _filled(avals: Sequence[Any], number: int) -> list[Any]:
    del number
    return [lax.full(a.shape, 0, a.dtype) for a in avals]


def _strong(array: Any) -> Any:
    if getattr(array, "weak_type", False):
        return lax.convert_element_type(array, array.dtype)
    return array


def _aval(array: Any) -> Any:
    return abstract(array.shape, array.dtype)


def _equation(function: Any, avals: Sequence[Any], name: str) -> tuple[Any, dict[str, Any]]:
    """Return primitive and parameters of the only equation of that primitive."""
    opened = open_jaxpr(jax.make_jaxpr(function)(*avals))
    (equation,) = [e for e in opened.eqns if e.primitive.name == name]
    return equation.primitive, dict(equation.params)
