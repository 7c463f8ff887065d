"""Runs one case of JAX's harness suite: traced, compiled, run, and compared with ``jax.jit``."""

from __future__ import annotations

import enum
import functools
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rlx
import rlx_xla
from rlx.dtypes import as_dtype
from rlx.errors import RlxError
from tests.conformance.runner import mismatch

TENTH = 10
"""The normal suite runs one case of this many in each group, and at least one."""

# What JAX leaves undefined: the primitive fills the upper triangle with what it finds there.
_DEFINED = {"cholesky": np.tril}

# What a library raises on purpose. Another class stops the run: it is a defect of the runner.
_FAILURES = (
    ArithmeticError, AttributeError, LookupError, RlxError, RuntimeError, TypeError, ValueError,
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
        group: the primitive, as the harness names it.
        name: the case, with its group in front.
        status: refused is JAX's own refusal on the CPU; external is a right result with an
            opaque node.
        detail: the opaque primitives, the first difference, or the error's class and text.
    """

    group: str
    name: str
    status: Status
    detail: str = ""


@functools.cache
def cases() -> tuple[Any, ...]:
    """Every case that the installed JAX carries, in its order."""
    from jax._src.internal_test_util import test_harnesses

    return tuple(test_harnesses.all_harnesses)


@functools.cache
def groups() -> dict[str, list[Any]]:
    """The cases of each group."""
    table: dict[str, list[Any]] = {}
    for case in cases():
        table.setdefault(case.group_name, []).append(case)
    return table


def tenth(group: str) -> list[Any]:
    """A fixed tenth of a group's cases, spread evenly; one at least."""
    return groups()[group][::TENTH]


def run_all(chosen: Sequence[Any]) -> Iterator[Outcome]:
    """Run cases one after another; JAX's caches are emptied now and then."""
    session = rlx.Session("cpu")
    for number, case in enumerate(chosen):
        yield run_case(case, session)
        if number % 100 == 99:
            jax.clear_caches()


def run_case(case: Any, session: rlx.Session) -> Outcome:
    """Run one case; the arguments depend on its name alone."""

    def ended(status: Status, detail: str = "") -> Outcome:
        return Outcome(case.group_name, case.fullname, status, detail)

    # The cases mix ranks and 64-bit dtypes, and JAX warns where it leaves the latter out.
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.simplefilter("ignore")
        seed = zlib.crc32(case.fullname.encode())
        made = case.dyn_args_maker(np.random.RandomState(seed))
        arguments = [jnp.asarray(a) if isinstance(a, np.ndarray) else a for a in made]
        try:
            wanted = jax.tree.leaves(jax.jit(case.dyn_fun)(*arguments))
        except _FAILURES as error:
            return ended(Status.REFUSED, _told(error))
        try:
            traced = rlx_xla.trace(case.dyn_fun, *arguments)
            found = jax.tree.leaves(session.compile(traced)(*arguments))
        except _FAILURES as error:
            return ended(Status.ERROR, _told(error))
        if len(found) != len(wanted):
            return ended(Status.WRONG, f"{len(found)} results instead of {len(wanted)}")
        found, wanted = (_in_one_order(case, results) for results in (found, wanted))
        found, wanted = _settled(case, found), _settled(case, wanted)
        for index, pair in enumerate(zip(found, wanted, strict=True)):
            defined = _DEFINED.get(case.group_name, np.asarray)
            ours, theirs = (defined(_data(x)) for x in pair)
            message = _difference(ours, theirs)
            if message and not (
                _nearer(case, arguments, index, ours, theirs)
                or _is_sum(case, arguments, ours, theirs)
            ):
                return ended(Status.WRONG, f"result {index}: {message}")
    opaque = [name for name, (_, count) in traced.coverage().by_primitive.items() if count]
    return ended(Status.EXTERNAL if opaque else Status.MODELLED, ", ".join(opaque))


def _in_one_order(case: Any, results: list[Any]) -> list[Any]:
    """Results of an unstable sort, which may leave equal keys in any order, in one of those."""
    if case.group_name != "sort" or case.params["is_stable"] or len(results) == 1:
        return results
    arrays, axis = [_data(x) for x in results], case.params["dimension"]
    order = np.lexsort(arrays[::-1], axis=axis)
    return [np.take_along_axis(x, order, axis) for x in arrays]


def _settled(case: Any, results: list[Any]) -> list[Any]:
    """The results of a sort that leaves ties in any order, with ties ordered by what follows."""
    if case.group_name != "sort" or case.params.get("is_stable", True) or len(results) < 2:
        return results
    axis = case.params["dimension"]
    arrays = [np.asarray(r) for r in results]
    order = np.lexsort(arrays[::-1], axis=axis)
    return [np.take_along_axis(a, order, axis) for a in arrays]


def _difference(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> str:
    if found.dtype == wanted.dtype and wanted.dtype == jax.dtypes.float0:
        return ""
    as_dtype(wanted.dtype)  # a dtype that RLX lacks is an error, not a difference
    return mismatch(found, wanted)


def _nearer(case: Any, arguments: Sequence[Any], index: int, ours: Any, theirs: Any) -> bool:
    """Whether a 16-bit result is at least as near to that of f32 arguments as ``jax.jit``'s is.

    Sums in another order, or in f32, round elsewhere than JAX's own do.
    """
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if ours.dtype not in (np.float16, jnp.bfloat16):
        return False
    wide = [a.astype(np.float32) if _narrow(a) else a for a in arguments]
    reference = _data(jax.tree.leaves(jax.jit(case.dyn_fun)(*wide))[index])
    if reference.dtype != np.float32:
        return False
    errors = [np.abs(x.astype(np.float32) - reference).max() for x in (ours, theirs)]
    return bool(errors[0] <= errors[1])


def _is_sum(case: Any, arguments: list[Any], ours: Any, theirs: Any) -> bool:
    """Whether two sums of products of f32 differ by roundings of their terms alone.

    Where terms cancel, an error is small beside the terms and not beside what is left of them.
    """
    if case.group_name not in ("conv_general_dilated", "dot_general") or ours.dtype != np.float32:
        return False
    terms = _data(jax.tree.leaves(jax.jit(case.dyn_fun)(*map(jnp.abs, arguments)))[0])
    return bool(np.all(np.abs(ours - theirs) <= 2 * np.finfo(np.float32).eps * terms))


def _narrow(argument: Any) -> bool:
    return isinstance(argument, jax.Array) and argument.dtype in (np.float16, jnp.bfloat16)


def _data(array: Any) -> np.ndarray[Any, Any]:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


def _told(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]
