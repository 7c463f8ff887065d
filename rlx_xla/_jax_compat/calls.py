"""A primitive that calls a jaxpr: what its rules need of JAX 0.7.2 to 0.12."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, final

import jax
import numpy as np
from jax._src import config as _config
from jax._src import core as _core
from jax._src import mesh as _mesh
from jax._src import sharding_impls as _sharding
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _pe
from jax.extend.core import ClosedJaxpr

from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.jaxpr import abstract, open_jaxpr, typeof, without_refs

Zero: Any = vars(_ad)["Zero"]
UndefinedPrimal = _ad.UndefinedPrimal
trace_context: Callable[[], Any] = _config.trace_context
"""Everything but arguments that a trace depends on, as a tuple."""


def jit_disabled() -> bool:
    """Tell whether ``jax.disable_jit`` is in force in this thread."""
    return bool(_config.disable_jit.value)


def default_device() -> Any:
    """Return the device that ``jax.default_device`` names, or None."""
    return _config.default_device.value


def traced(function: Callable[..., Any], avals: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Trace a function of arrays to a closed jaxpr without constants.

    Args:
        function: takes and returns flat arrays.
        avals: arrays, tracers or abstract values.

    Returns:
        The jaxpr, whose first inputs are what the function captures; and the captured values.
    """
    closed = jax.make_jaxpr(function)(*map(_struct, avals))
    return hoisted(without_refs(closed))


def hoisted(closed: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a closed jaxpr with its constants as leading inputs, and the constants."""
    consts = tuple(closed.consts)
    if not consts:
        return closed, ()
    return ClosedJaxpr(_pe.convert_constvars_jaxpr(open_jaxpr(closed)), ()), consts


def _struct(value: Any) -> Any:
    return described(value if isinstance(value, _core.ShapedArray) else typeof(value))


def described(aval: Any) -> Any:
    """Return an abstract value as an argument of a trace, its mesh kept.

    Over explicit axes the sharding is a part of the type, and the function's results have theirs
    from it; over others the mesh is, by which JAX names the shardings of results.
    """
    weak = bool(getattr(aval, "weak_type", False))
    plain = abstract(aval.shape, aval.dtype, weak_type=weak)
    more = _over_manual_axes(aval)
    sharding = getattr(aval, "sharding", None)
    kinds = getattr(getattr(sharding, "mesh", None), "axis_types", None) or ()
    if more or any(getattr(kind, "name", "") in ("Explicit", "Auto") for kind in kinds):
        more["sharding"] = sharding
    if not more:
        return plain
    return jax.ShapeDtypeStruct(plain.shape, plain.dtype, weak_type=weak, **more)


def _over_manual_axes(aval: Any) -> dict[str, Any]:
    """What a type says of the manual axes around it, those of ``shard_map``, by parameter."""
    kind = getattr(aval, "mat", None)
    if kind is not None:
        return {"manual_axis_type": kind} if kind.varying or kind.unreduced or kind.reduced else {}
    varying = getattr(aval, "vma", None)
    return {"vma": varying} if varying else {}


def tangent_aval(aval: Any) -> Any:
    """Return the type of an array's tangent, or None where it has none (integers, keys)."""
    found = aval.to_tangent_aval()
    return None if found.dtype == jax.dtypes.float0 else found


def is_nonzero(tangent: Any) -> bool:
    """Tell whether a tangent is an array that can differ from zero."""
    return type(tangent) is not Zero and tangent.dtype != jax.dtypes.float0


def zero_tangent(aval: Any) -> Any:
    """Return the symbolic zero tangent of an array."""
    return Zero(aval.to_tangent_aval())


def primitives_of(jaxpr: Any) -> Iterator[str]:
    """Yield the names of all primitives of a jaxpr, inner ones included."""
    stack = [open_jaxpr(jaxpr)]
    while stack:
        current = stack.pop()
        for equation in current.eqns:
            yield equation.primitive.name
            stack.extend(map(open_jaxpr, _core.jaxprs_in_params(equation.params)))


@final
class LoweringPlace:
    """Where JAX lowers a primitive.

    Attributes:
        platforms: what is lowered for.
        alone: whether the program runs on one device without named axes.
    """

    __slots__ = ("alone", "platforms")

    def __init__(self, ctx: Any) -> None:
        """Look at a lowering rule's context."""
        self.platforms = tuple(ctx.platforms or ctx.module_context.platforms)
        axes = ctx.module_context.axis_context
        devices = getattr(axes, "num_devices", None)
        self.alone = isinstance(axes, _sharding.ShardingContext) and devices in (None, 1)


def lower_as_jax(ctx: Any, closed: Any, operands: Sequence[Any]) -> Any:
    """Lower a closed jaxpr as JAX does."""
    function = _mlir.lower_fun(_core.jaxpr_as_fun(closed), multiple_results=True)
    return function(ctx, *operands)


def constant(array: np.ndarray) -> Any:
    """Return an array as a StableHLO constant at the insertion point."""
    kind = mlir.element_type(array.dtype)
    packed = np.packbits(array, bitorder="little") if array.dtype == bool else array
    attribute = mlir.ir.DenseElementsAttr.get(
        cast("Any", np.ascontiguousarray(packed)), type=kind, shape=array.shape
    )
    return mlir.stablehlo.constant(attribute)


def without_unused(closed: Any) -> tuple[Any, tuple[bool, ...]]:
    """Return a closed jaxpr without inputs that no result and no effect needs.

    Returns:
        The jaxpr, and for each input whether it is kept.
    """
    opened = open_jaxpr(closed)
    kept, used = _pe.dce_jaxpr(opened, [True] * len(opened.outvars))
    if all(used):
        return closed, tuple(used)
    return ClosedJaxpr(kept, tuple(closed.consts)), tuple(used)


def is_elsewhere(aval: Any) -> bool:
    """Tell whether arrays of a type lie in another memory than the device's own, the host's say."""
    space = getattr(aval, "memory_space", None)
    return getattr(space, "name", "Device") not in ("Device", "Any")


def in_mesh() -> bool:
    """Tell whether a mesh is set around the caller: what is run then lies over its devices."""
    contexts = (_mesh.thread_resources.env.physical_mesh, _mesh.get_concrete_mesh())
    return any(mesh is not None and not mesh.empty for mesh in contexts)


def execution_refused() -> bool:
    """Tell whether ``jax.no_execution`` is in force in this thread."""
    return bool(_config.no_execution.value)


def is_tracing() -> bool:
    """Tell whether some JAX transformation is at work in this thread."""
    return not _core.trace_state_clean()
