"""Single equations as functions, their effects, and their StableHLO, on JAX 0.7.2 to 0.12."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax._src import core as _core
from jax._src import effects as _effects
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.jaxpr import enable_x64


def function_of(closed: Any) -> Callable[..., list[Any]]:
    """Return a closed jaxpr as a function of its inputs."""
    return jaxpr_as_fun(closed)


def single_equation(equation: Any) -> Any:
    """Return a closed jaxpr that holds one equation; every operand, literal or not, is an input."""
    inputs = [_new_var(atom.aval) for atom in equation.invars]
    outputs = [_new_var(atom.aval) for atom in equation.outvars]
    alone = equation.replace(invars=inputs, outvars=outputs)
    debug_info = _core.DebugInfo(
        "external",
        equation.primitive.name,
        tuple(f"operand_{i}" for i in range(len(inputs))),
        tuple(f"result_{i}" for i in range(len(outputs))),
    )
    jaxpr = _core.Jaxpr((), inputs, outputs, [alone], equation.effects, debug_info)
    return ClosedJaxpr(jaxpr, ())


def _new_var(aval: Any) -> Any:
    try:
        return _core.Var(aval)
    except TypeError:  # 0.7: Var(suffix, aval)
        make: Any = _core.Var
        return make("", aval)


def effect_kinds(equation: Any) -> list[str]:
    """Return the kinds of effect that order an equation; named axes and the like do not count.

    Ordered ones come first, in the order in which a lowered function takes their tokens.
    """
    ordered = _effects.ordered_effects.filter_in(equation.effects)
    kinds = [type(effect).__name__ for effect in ordered]
    lowered = _effects.lowerable_effects.filter_in(equation.effects)
    others = {type(effect).__name__ for effect in lowered if not is_ordered_effect(effect)}
    return [*dict.fromkeys(kinds), *(f"{name}#unordered" for name in sorted(others))]


def is_ordered_effect(effect: Any) -> bool:
    """Tell whether JAX orders this effect with the others of its kind."""
    return bool(_effects.ordered_effects.contains(effect))


def is_ordered(equation: Any) -> bool:
    """Tell whether an equation has an ordered effect."""
    return any(map(is_ordered_effect, equation.effects))


def lower_function(
    function: Callable[..., Any], avals: Sequence[Any], platform: str, *, x64: bool = True
) -> tuple[str, list[Any], Any]:
    """Lower a function of raw arrays to StableHLO text.

    Args:
        function: a JAX function.
        avals: its arguments, as ``jax.ShapeDtypeStruct``.
        platform: ``cpu``, ``cuda``, ``rocm`` or ``tpu``.
        x64: whether JAX makes 64-bit values where no dtype is named.

    Returns:
        The module's text, the host callbacks that it calls by index, and what must be kept alive.
    """
    with enable_x64(x64):
        traced = jax.jit(function, keep_unused=True).trace(*avals)
        lowered = traced.lower(lowering_platforms=(platform,))
    arguments = lowered._lowering.compile_args
    text = mlir.module_text(cast("mlir.ir.Module", lowered.compiler_ir("stablehlo")))
    return text, list(arguments.get("host_callbacks") or ()), arguments.get("keepalive")


def is_wide(aval: Any) -> bool:
    """Tell whether an abstract value is of 64-bit numbers, which JAX makes with x64 alone."""
    dtype = getattr(aval, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.itemsize > (8 if dtype.kind == "c" else 4)


def try_lower(
    function: Callable[..., Any], avals: Sequence[Any], platform: str, *, x64: bool
) -> tuple[str, bool]:
    """Lower for a platform that may lack the primitive.

    Args:
        function: a JAX function.
        avals: its arguments, as ``jax.ShapeDtypeStruct``.
        platform: ``cpu``, ``cuda``, ``rocm`` or ``tpu``.
        x64: whether JAX makes 64-bit values where no dtype is named.

    Returns:
        The text, or an empty string where JAX has no rule for the platform; and whether the
        module calls back into Python.
    """
    try:
        text, callbacks, _ = lower_function(function, avals, platform, x64=x64)
    except (NotImplementedError, ValueError):
        return "", False
    return text, bool(callbacks) or ("python" in text and "callback" in text)
