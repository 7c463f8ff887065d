"""Runs one of jax2onnx's cases: traced, compiled, run, and compared with ``jax.jit``."""

from __future__ import annotations

import enum
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import numpy as np

import rlx
import rlx_xla
from rlx.errors import RlxError
from rlx_xla.tracing.traced import Traced
from tests.conformance.jax2onnx.cases import SIZES, Case, refused_symbols, static
from tests.conformance.runner import mismatch

# What a library raises on purpose. Another class stops the run: it is a defect of the runner.
_FAILURES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RlxError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip


class Status(enum.Enum):
    """How a case ended."""

    MODELLED = "modelled"
    EXTERNAL = "external"
    REFUSED = "refused"
    WRONG = "wrong"
    ERROR = "error"


@dataclass(frozen=True)
class Outcome:
    """The end of one case.

    Attributes:
        context: where the case belongs.
        name: the case.
        status: refused is JAX's own refusal; external is a right result with an opaque node.
        sizes: ``symbolic`` when one graph served every size, ``fixed`` when the case has no
            symbolic size, ``each`` when JAX cannot trace the symbols and each size was traced.
        detail: the opaque primitives, the first difference, or the error's class and text.
    """

    context: str
    name: str
    status: Status
    sizes: str
    detail: str = ""


def run_case(case: Case, session: rlx.Session) -> Outcome:
    """Run one case at every size."""
    # The cases mix ranks, and warn where 64-bit dtypes are left out.
    with (
        warnings.catch_warnings(),
        jax.numpy_rank_promotion("allow"),
        jax.enable_x64(case.x64) if hasattr(jax, "enable_x64") else _enable_x64(case.x64),
    ):
        warnings.simplefilter("ignore")
        return _run(case, session)


def _enable_x64(enabled: bool) -> Any:
    from jax.experimental import enable_x64

    return enable_x64(enabled)


def _run(case: Case, session: rlx.Session) -> Outcome:
    sizes = "symbolic" if case.symbols else "fixed"

    def ended(status: Status, detail: str = "") -> Outcome:
        return Outcome(case.context, case.name, status, sizes, detail)

    try:
        # A model with arrays in it has no hash, which jax.jit asks of what it is given.
        fn = functools.partial(_call, case.make(), static(case))
        drawn = [case.arguments(size) for size in (SIZES if case.symbols else SIZES[:1])]
        jitted = jax.jit(fn)
        wanted = [jax.tree.leaves(jitted(*arguments)) for arguments in drawn]
    except _FAILURES as error:
        return ended(Status.REFUSED, _told(error))
    if case.symbols and refused_symbols(fn, case):
        sizes = "each"
    try:
        given: list[Any] = case.specs() if sizes == "symbolic" else drawn[0]
        traced = rlx_xla.trace(fn, *given)
        compiled = session.compile(traced)
        found = [jax.tree.leaves(compiled(*drawn[0]))]
        for arguments in drawn[1:]:
            if sizes == "each":
                compiled = session.compile(rlx_xla.trace(fn, *arguments))
            found.append(jax.tree.leaves(compiled(*arguments)))
    except _FAILURES as error:
        return ended(Status.ERROR, _told(error))
    for arguments, ours, theirs in zip(drawn, found, wanted, strict=True):
        message = _difference(ours, theirs, lambda a=arguments: _spread(fn, a))
        if message:
            return ended(Status.WRONG, message)
    opaque = _opaque(traced)
    return ended(Status.EXTERNAL if opaque else Status.MODELLED, opaque)


def _call(fn: Callable[..., Any], keywords: Mapping[str, Any], *arguments: Any) -> Any:
    return fn(*arguments, **keywords)


def _opaque(traced: Traced) -> str:
    counts = traced.coverage().by_primitive
    return ", ".join(name for name, (_, opaque) in counts.items() if opaque)


def _difference(
    found: Sequence[Any], wanted: Sequence[Any], spread: Callable[[], list[float]]
) -> str:
    if len(found) != len(wanted):
        return f"{len(found)} results instead of {len(wanted)}"
    for index, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        message = mismatch(_data(ours), _data(theirs))
        if message and not _within(_data(ours), _data(theirs), spread()[index]):
            return f"result {index}: {message}"
    return ""


def _within(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], spread: float) -> bool:
    """Whether floats differ no more than twice as much as JAX differs from JAX."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape or ours.dtype.kind != "f":
        return False
    return bool(np.abs(ours - theirs).max() <= 2 * spread)


def _spread(fn: Callable[..., Any], arguments: Sequence[Any]) -> list[float]:
    """How far each result of JAX's own is from JAX's result op by op, at most.

    Deep models amplify what a sum in another order rounds, beyond any bound per dtype.
    """
    by_op = jax.tree.leaves(fn(*arguments))
    at_once = jax.tree.leaves(jax.jit(fn)(*arguments))
    pairs = zip(map(_data, by_op), map(_data, at_once), strict=True)
    return [
        float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) if a.size else 0.0
        for a, b in pairs
    ]


def _data(array: Any) -> np.ndarray[Any, Any]:
    if jax.dtypes.issubdtype(getattr(array, "dtype", None), jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


def _told(error: BaseException) -> str:
    """The error's class and first words, without the paths that JAX adds to them."""
    text = " ".join(str(error).split()).partition(" The error occurred")[0]
    return f"{type(error).__name__}: {text}"[:200]
