"""JAX's own tracing errors, said in our form: what is required, what was found, what to do.

They are caught as ``TraceError`` and as the class that JAX raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast, final

import jax.errors

from rlx.dtypes import as_dtype
from rlx.errors import TraceError, also
from rlx_xla._jax_compat import failures, keys
from rlx_xla._jax_compat import jaxpr as jx


@final
@dataclass(frozen=True)
class _Known:
    """A JAX error that has a message of ours.

    Attributes:
        kind: JAX's class.
        pattern: what its text holds.
        required: what is required, and why it is not so.
        advice: what to do; ``{argument}`` stands for the argument's name in quotes.
    """

    kind: type[BaseException]
    pattern: str
    required: str
    advice: str


_STATIC = "or make {argument} static (static_argnames)"

_KNOWN = (
    _Known(
        jax.errors.TracerBoolConversionError,
        "",
        "a Python condition (if, while, and, or, not, assert) is required to be known when "
        "tracing; this one depends on the values of an array",
        f"Use jnp.where, jax.lax.cond or jax.lax.while_loop, {_STATIC}.",
    ),
    _Known(
        jax.errors.TracerIntegerConversionError,
        "",
        "a Python integer (an index of a list, range, a size) is required to be known when "
        "tracing; this one is the value of an array",
        f"Index a jnp array instead of a list, use jax.lax.fori_loop, {_STATIC}.",
    ),
    _Known(
        jax.errors.TracerArrayConversionError,
        "",
        "NumPy is required to get arrays whose values are known when tracing; it got a traced one",
        "Use the function of jax.numpy, or jax.pure_callback for one that has none.",
    ),
    _Known(
        jax.errors.NonConcreteBooleanIndexError,
        "",
        "a boolean index is required to be known when tracing, since it sets the size of the "
        "result; this one depends on the values of an array",
        "Use jnp.where(mask, x, 0), or jnp.nonzero(mask, size=n) with a fixed size.",
    ),
    _Known(
        jax.errors.ConcretizationTypeError,
        "",
        "a Python number is required to be known when tracing; this one is the value of an array",
        f"Keep it an array (x.astype instead of int or float), {_STATIC}.",
    ),
    _Known(
        jax.errors.UnexpectedTracerError,
        "",
        "a traced value is required to stay inside the function that is traced; one was kept "
        "from an earlier trace, in a global, a list, an attribute or a cache",
        "Return it from the function instead, and find where it is stored: "
        "jax.checking_leaks() names the place.",
    ),
    _Known(
        failures.InconclusiveDimensionOperation,
        "",
        "an operation on symbolic dims is required to have one answer for all their sizes",
        "Trace with numbers in place of the symbols, or make the code free of the question "
        "(jnp.where on values instead of if on sizes; reshape with the sizes written out).",
    ),
    _Known(
        TypeError,
        "Shapes must be 1D sequences of concrete values",
        "a shape is required to be known when tracing; this one holds the value of an array",
        f"Take sizes from x.shape, {_STATIC}.",
    ),
    _Known(
        TypeError,
        r"unhashable type: '\w*Tracer'",
        "a key of a dict or member of a set is required to be known when tracing; it is an array",
        f"Index a jnp array instead of a dict, use jax.lax.switch, {_STATIC}.",
    ),
    _Known(
        TypeError,
        "cond_fun must return a boolean scalar",
        "while_loop: cond_fun is required to return bool[]",
        "Reduce its result with jnp.all or jnp.any, or compare numbers of rank 0.",
    ),
    _Known(
        TypeError,
        "branch(es|_fun|) (must have equal|outputs? must have|must have)|true_fun and false_fun",
        "cond, switch: all branches are required to return the same structure and types",
        "Convert or reshape the results of the branches to one type.",
    ),
    _Known(
        TypeError,
        "carry input and carry output must have the same pytree structure",
        "{loop}: the body is required to return its carry with the structure it took",
        "Return the same containers, of the same lengths and keys.",
    ),
)

_ARGUMENT = re.compile(r"depends on the values? of the arguments? ([^\n]*?)\.\s*(?:\n|$)")

_DULL = (
    "See ", "Please see", "for more details", "The error occurred", "The problem", "Revise",
    "If using `jit`",
)  # fmt: skip


@final
class explained:  # noqa: N801 (reads as a verb: with explained(fn))
    """A block that traces with JAX: its tracing errors become ``TraceError``, the rest stay.

    Args:
        name: of the function that is traced.
    """

    def __init__(self, name: str) -> None:
        """Explain errors of a function."""
        self._name = name
        self._filtering = failures.whole_tracebacks()

    def __enter__(self) -> None:
        """Let JAX keep its frames, which tell more than its messages."""
        self._filtering.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> Literal[False]:
        """Raise what explains the error."""
        self._filtering.__exit__(kind, error, trace)
        if error is None:
            return False
        made = explain(error, self._name)
        failures.without_jax_frames(error)
        if made is not None:
            raise made from error
        return False


def explain(error: BaseException, name: str) -> TraceError | None:
    """Return JAX's error in our form, or None for an error that is not about tracing.

    Args:
        error: what was raised, with JAX's frames in its traceback.
        name: of the function that is traced.
    """
    text = str(error)
    if isinstance(error, TypeError) and "carry input and carry output must have equal" in text:
        return _carry(error, name)
    for known in _KNOWN:
        if isinstance(error, known.kind) and re.search(known.pattern, text):
            return _message(error, name, known)
    return None


def refuse_unreferable(fn: Callable[..., Any], where: str) -> None:
    """Refuse a callable that has no weak references: JAX keeps traces by them.

    jaxlib 0.10 crashes when it meets the second such callable.

    Args:
        fn: the callable.
        where: what was called, for the message.

    Raises:
        TraceError: it is one, such as a ufunc of NumPy.
    """
    if not callable(cast("object", fn)):
        raise also(TraceError, TypeError)(
            f"{where}: a function is required; got {type(fn).__name__}. Give a JAX function and "
            "its arguments."
        )
    kind: Any = type(fn)
    if kind.__weakrefoffset__ == 0:
        raise also(TraceError, TypeError)(
            f"{where}: a function that can be referred to weakly is required; got {fn!r} of type "
            f"{kind.__name__}. Wrap it: lambda *args: fn(*args)."
        )


def refuse_leaks(jaxpr: Any, arguments: int, name: str) -> None:
    """Refuse a traced value that came from another trace; JAX adds it to the inputs.

    Args:
        jaxpr: what JAX traced.
        arguments: how many leaves the function was given.
        name: of the function.

    Raises:
        TraceError: there is one.
    """
    opened = jx.open_jaxpr(jaxpr)
    captured = any(isinstance(c, jx.Tracer) for c in jx.constants(jaxpr))
    if len(opened.invars) == arguments and not captured:
        return
    known = {*opened.invars[len(opened.invars) - arguments :]}
    extra = {*opened.constvars, *opened.invars} - known
    users = (e for e in opened.eqns if not extra.isdisjoint(v for v in e.invars if _is_var(v)))
    line = next((jx.source_line(e) for e in users), None)
    where = f" at {line.file}:{line.line}" if line else ""
    (leak,) = (known for known in _KNOWN if known.kind is jax.errors.UnexpectedTracerError)
    made = also(TraceError, leak.kind)
    raise made(f"trace of {name!r}{where}: {leak.required}. {leak.advice}")


def captured_ref(jaxpr: Any) -> Any:
    """The abstract value of a mutable array that a traced function reads or writes, or None."""
    opened = jx.open_jaxpr(jaxpr)
    every = (v.aval for v in (*opened.constvars, *opened.invars))
    return next((aval for aval in every if jx.is_mutable(aval)), None)


def refuse_captured_refs(jaxpr: Any, name: str) -> None:
    """Refuse a mutable array from outside the function: a graph holds values.

    Args:
        jaxpr: what JAX traced.
        name: of the function.

    Raises:
        TraceError: the function reads or writes one.
    """
    found = captured_ref(jaxpr)
    if found is not None:
        raise TraceError(
            f"trace of {name!r}: what a function captures is required to be arrays; "
            f"got the mutable array {found.str_short()}. Pass it to rlx_xla.jit as an argument, "
            "or make it inside the function."
        )


def _is_var(atom: Any) -> bool:
    return not isinstance(atom, jx.Literal)


def _message(error: BaseException, name: str, known: _Known) -> TraceError:
    found = _ARGUMENT.search(str(error))
    names = re.split(r", and |, | and ", found.group(1)) if found else []
    shown = ", ".join(map(repr, names)) or "the argument"
    line = failures.user_line(error)
    where = f" at {line.file}:{line.line}" if line else ""
    because = f", through argument {shown}" if found else ""
    required = known.required.replace("{loop}", failures.loop_name(error))
    advice = known.advice.replace("{argument}", shown)
    return also(TraceError, type(error))(
        f"trace of {name!r}{where}: {required}{because}. JAX says: {_gist(error)} {advice}"
    )


def _gist(error: BaseException) -> str:
    """The sentences of JAX's message that say what was found."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(_DULL)]
    text = " ".join(kept)
    return text[:600] + ("" if text.endswith(".") else ".")


def _carry(error: TypeError, name: str) -> TraceError:
    loop = failures.loop_name(error)
    found = failures.drifts(error)
    line = failures.user_line(error)
    where = f" ({line.file}:{line.line})" if line else ""
    head = (
        f"trace of {name!r}: {loop}{where} is required to get from its body a carry of the "
        "types it gave;"
    )
    made = also(TraceError, type(error))
    if not found:
        return made(
            f"{head} JAX says: {_gist(error)} Convert or reshape the result, or the initial value."
        )
    parts = [_drift(drift) for drift in found]
    return made(f"{head} {' '.join(parts)}")


def _drift(drift: failures.Drift) -> str:
    before, after = _type(drift.before), _type(drift.after)
    inside = f" at {drift.path}" if drift.path else ""
    line = f" because of body line {drift.line.file}:{drift.line.line}" if drift.line else ""
    return f"carry[{drift.index}]{inside} {before} -> {after}{line}; {_advice(drift)}."


def _advice(drift: failures.Drift) -> str:
    before, after = drift.before, drift.after
    if before.dtype != after.dtype:
        same = before.shape == after.shape
        start = f"init with dtype {after.dtype}" if same else f"init {_zeros(after, dtype=True)}"
        return f"use x.astype(jnp.{before.dtype}) or {start}"
    single = all(n == 1 for n in (*before.shape, *after.shape))
    if single and not before.shape:
        return f"use x[{', '.join('0' for _ in after.shape)}] or init {_zeros(after)}"
    if single:
        return f"use x.reshape{tuple(before.shape)} or init {_zeros(after)}"
    return f"reduce, slice or broadcast x to {_type(before)} or init {_zeros(after)}"


def _zeros(aval: Any, *, dtype: bool = False) -> str:
    shape = aval.shape[0] if len(aval.shape) == 1 else tuple(aval.shape)
    return f"jnp.zeros({shape}{f', jnp.{aval.dtype}' if dtype else ''})"


def _type(aval: Any) -> str:
    if keys.is_key(aval):
        return str(aval.str_short(short_dtypes=True))
    return f"{as_dtype(aval.dtype)}[{', '.join(map(str, aval.shape))}]"
