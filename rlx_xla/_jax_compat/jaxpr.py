"""Jaxprs as JAX 0.7.2 to 0.12 make them: names, tracing, locations, control-flow parameters."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax._src import core as _core
from jax._src import source_info_util as _source_info
from jax._src.interpreters import pxla as _pxla
from jax._src.state.types import AbstractRef as _AbstractRef

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr as ClosedJaxpr
    from jax.extend.core import Jaxpr as Jaxpr
    from jax.extend.core import JaxprEqn as JaxprEqn
    from jax.extend.core import Literal as Literal
    from jax.extend.core import Primitive as Primitive
    from jax.extend.core import Var as Var
else:  # the same classes: importing jax.extend loads Pallas, 0.8 MiB
    Jaxpr, JaxprEqn, Literal = _core.Jaxpr, _core.JaxprEqn, _core.Literal
    Primitive, Var = _core.Primitive, _core.Var
    ClosedJaxpr = getattr(_core, "ClosedJaxpr", Jaxpr)  # one class in JAX 0.12

DropVar = _core.DropVar
Tracer = jax.core.Tracer
ShapedArray = jax.core.ShapedArray
AbstractToken = _core.AbstractToken
JAX_VERSION: tuple[int, ...] = jax.__version_info__

CALL_PRIMITIVES = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"}
    | {"rlx_jit", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin"}
    | {"custom_vmap_call", "eval_jaxpr"}
)
"""Primitives that only call a jaxpr; ``called_jaxpr`` gives it."""


@final
@dataclass(frozen=True, slots=True)
class SourceLine:
    """Where the user wrote an equation.

    Attributes:
        file: path as Python knows it.
        line: 1-based line.
        function: qualified name of the function.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


@final
@dataclass(frozen=True, slots=True)
class TracedFunction:
    """A function traced for given types.

    Attributes:
        jaxpr: closed jaxpr; one invar for each leaf of the arguments, unused ones included.
        out_info: the results' structure with ``jax.ShapeDtypeStruct`` leaves.
    """

    jaxpr: ClosedJaxpr
    out_info: Any


def abstract(
    shape: Sequence[Any], dtype: np.dtype | type | str, *, weak_type: bool = False
) -> jax.ShapeDtypeStruct:
    """Return an abstract argument; sizes are ints or ``jax.export`` symbolic dimensions."""
    return jax.ShapeDtypeStruct(tuple(shape), dtype, weak_type=weak_type)


def trace_function(
    fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> TracedFunction:
    """Trace a function to a closed jaxpr.

    Args:
        fn: any JAX function; static arguments must be bound already.
        args: pytrees of arrays, scalars or ``jax.ShapeDtypeStruct`` (see ``abstract``).
        kwargs: keyword arguments, the same.

    Returns:
        The jaxpr, whose invars are the leaves of ``(args, kwargs)`` in pytree order.
    """
    traced = jax.jit(fn, keep_unused=True).trace(*args, **(kwargs or {}))
    return TracedFunction(without_refs(traced.jaxpr), traced.out_info)


def without_refs(closed: Any) -> Any:
    """Return a closed jaxpr whose own mutable arrays (``jax.new_ref``) are values passed on."""
    kind = getattr(_core, "InternalMutableArrayEffect", None)
    if kind is None or not any(isinstance(effect, kind) for effect in closed.effects):
        return closed
    return _pxla._discharge_internal_refs(closed)


def is_mutable(aval: Any) -> bool:
    """Tell whether an abstract value is one of a mutable array (``jax.new_ref``)."""
    return isinstance(aval, _AbstractRef)


def forget_traces(fn: Callable[..., Any]) -> None:
    """Let ``trace_function`` run a function again rather than give what it gave before."""
    jitted: Any = jax.jit(fn, keep_unused=True)
    jitted.clear_cache()


def open_jaxpr(jaxpr: Any) -> Any:
    """Return the jaxpr inside a closed one; 0.12 has one class for both."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def closed_jaxpr(jaxpr: Any) -> Any:
    """Return a closed jaxpr for an open one that captures nothing, or the closed one itself."""
    if isinstance(jaxpr, ClosedJaxpr):
        return jaxpr
    return ClosedJaxpr(jaxpr, ())


def constants(jaxpr: Any) -> tuple[Any, ...]:
    """Return the captured arrays of a closed jaxpr, in the order of its constvars.

    Newer versions may hold captured arrays as literals instead: see ``literal_value``.
    """
    return tuple(getattr(jaxpr, "consts", ()))


def literal_value(literal: Literal) -> np.ndarray | jax.Array:
    """Return a literal's value as an array of its aval's dtype."""
    value: Any = literal.val
    if isinstance(value, jax.Array):
        return value
    dtype = getattr(literal.aval, "dtype", None)
    return np.asarray(value) if dtype is None else np.asarray(value, dtype)


def is_drop(variable: Any) -> bool:
    """Tell whether an equation's result is thrown away."""
    return isinstance(variable, DropVar)


def is_key_dtype(dtype: Any) -> bool:
    """Tell whether a dtype is that of new-style PRNG keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def is_symbolic(size: Any) -> bool:
    """Tell whether a size is a symbolic dimension rather than an integer."""
    return not isinstance(size, int | np.integer)


def name_stack(equation: JaxprEqn) -> str:
    """Return the names that surround an equation: ``"encoder/layer_0"``, or ``""``."""
    return str(equation.source_info.name_stack)


def place(equation: JaxprEqn) -> tuple[Hashable, Hashable]:
    """Return what ``source_line`` and ``name_stack`` read: equal ones have the same of each."""
    info = equation.source_info
    return info.traceback, info.name_stack


def source_line(equation: JaxprEqn) -> SourceLine | None:
    """Return the user's line that made an equation, or None when JAX recorded none."""
    frame = _source_info.user_frame(equation.source_info.traceback)
    if frame is None:
        return None
    return SourceLine(frame.file_name, frame.start_line, frame.function_name)


@contextlib.contextmanager
def enable_x64(enabled: bool = True) -> Iterator[None]:
    """Let JAX make and trace 64-bit values inside the block, in this thread."""
    with _enable_x64(enabled):
        yield


def _find_enable_x64() -> Callable[[bool], Any]:
    if JAX_VERSION >= (0, 8, 0):
        return jax.enable_x64
    return importlib.import_module("jax.experimental").enable_x64


_enable_x64 = _find_enable_x64()


@final
@dataclass(frozen=True, slots=True)
class ScanParams:
    """Parameters of ``scan``: operands are consts, then the carry, then the scanned arrays.

    Attributes:
        jaxpr: the body; (consts, carry, slices) → (carry, slices).
        length: number of steps.
        reverse: whether steps run from the end.
        num_consts: operands that every step sees unchanged.
        num_carry: values that pass from step to step.
        unroll: steps to unroll.
    """

    jaxpr: Any
    length: Any
    reverse: bool
    num_consts: int
    num_carry: int
    unroll: int


@final
@dataclass(frozen=True, slots=True)
class WhileParams:
    """Parameters of ``while``: operands are condition consts, body consts, then the carry.

    Attributes:
        cond_jaxpr: (condition consts, carry) → bool.
        body_jaxpr: (body consts, carry) → carry.
        cond_consts: number of condition consts.
        body_consts: number of body consts.
    """

    cond_jaxpr: Any
    body_jaxpr: Any
    cond_consts: int
    body_consts: int


def scan_params(params: Mapping[str, Any]) -> ScanParams:
    """Return scan's parameters by one set of names on every version."""
    if "num_carry" in params:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
    else:
        consts, carry, _ = params["ft_in"].unpack()
        num_consts, num_carry = len(consts), len(carry)
    return ScanParams(
        params["jaxpr"],
        params["length"],
        bool(params["reverse"]),
        int(num_consts),
        int(num_carry),
        int(params["unroll"]),
    )


def while_params(params: Mapping[str, Any]) -> WhileParams:
    """Return the parameters of ``while`` by one set of names on every version."""
    return WhileParams(
        params["cond_jaxpr"],
        params["body_jaxpr"],
        int(params["cond_nconsts"]),
        int(params["body_nconsts"]),
    )


def cond_branches(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the branches of ``cond``; the first operand is the branch's index, clamped."""
    return tuple(params["branches"])


def called_jaxpr(name: str, params: Mapping[str, Any]) -> Any | None:
    """Return the closed jaxpr that a calling primitive runs, or None for any other primitive.

    For ``custom_jvp_call`` and ``custom_vjp_call`` this is the undifferentiated function, for
    ``custom_vmap_call`` the unbatched one.

    Args:
        name: the primitive's name.
        params: the equation's parameters.
    """
    if name not in CALL_PRIMITIVES:
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        if key in params:
            return closed_jaxpr(params[key])
    return None


def wants_inlining(params: Mapping[str, Any]) -> bool:
    """Tell whether a ``jit`` equation's caller asked for its body in place.

    A bool before 0.12, an enumeration since: ``JAX_EARLY`` and ``JAX_LATE`` inline within JAX.
    """
    inline = params.get("inline", False)
    return inline is True or getattr(inline, "name", "").startswith("JAX_")


def call_name(params: Mapping[str, Any]) -> str:
    """Return the name of the function that a ``jit`` equation calls, or ``""``."""
    return str(params.get("name", ""))


def function_name(jaxpr: Any) -> str:
    """Return the name of the function that a jaxpr was traced from, or ``""`` for a lambda."""
    info = getattr(open_jaxpr(jaxpr), "debug_info", None)
    name = "" if info is None else str(info.func_name)
    return name if name.isidentifier() else ""


def x64_enabled() -> bool:
    """Tell whether JAX makes 64-bit values in this thread."""
    return bool(jax.config.read("jax_enable_x64"))


def typeof(array: Any) -> Any:
    """Return the abstract value of an array or tracer."""
    get: Any = getattr(_core, "typeof", None) or getattr(_core, "get_aval")  # noqa: B009  moved
    return get(array)
