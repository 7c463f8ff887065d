"""What JAX knows about a failed trace, on JAX 0.7.2 to 0.12: frames, lines, carries that drift.

JAX's messages say what is wrong, not always where. Its frames, which it hides from people, hold
the rest: they are read here, and where a version's frames look different, less is found.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.errors
from jax._src import config as _config
from jax._src import core as _core
from jax._src import source_info_util as _source_info
from jax._src import traceback_util as _traceback_util

from rlx_xla._jax_compat.jaxpr import Literal, SourceLine, open_jaxpr, source_line

_OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_NOT_THE_USERS = tuple(os.path.join(_OURS, name) for name in ("tracing", "_jax_compat"))

InconclusiveDimensionOperation: type[Exception] = _core.InconclusiveDimensionOperation


@final
@dataclass(frozen=True)
class Drift:
    """One carried value whose type a loop's body changes.

    Attributes:
        index: position among the leaves of the user's carry.
        path: of the leaf inside the carry, such as ``['b']``; empty for a carry of one leaf.
        before: abstract value that the body takes.
        after: abstract value that the body returns.
        line: the user's line that made the result, if JAX knows it.
    """

    index: int
    path: str
    before: Any
    after: Any
    line: SourceLine | None


def whole_tracebacks() -> Any:
    """Return a context in which JAX leaves its own frames in tracebacks."""
    return _config.traceback_filtering("off")


def without_jax_frames(error: BaseException) -> None:
    """Take JAX's own frames from an error's traceback, as JAX does by default."""
    mode = _config.traceback_filtering.value
    if mode != "off" and error.__traceback__ is not None:
        error.with_traceback(_traceback_util.filter_traceback(error.__traceback__))


def user_line(error: BaseException) -> SourceLine | None:
    """Return the innermost line of an error that is neither JAX's, nor ours, nor a library's."""
    found = [
        SourceLine(frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for frame, line in _frames(error)
        if _source_info.is_user_filename(frame.f_code.co_filename)
        and not frame.f_code.co_filename.startswith(_NOT_THE_USERS)
    ]
    own = [line for line in found if "site-packages" not in line.file]
    return next(reversed(own or found), None)


def loop_name(error: BaseException) -> str:
    """Return the loop function that the user called: ``scan``, ``while_loop`` or ``fori_loop``."""
    names = {frame.f_code.co_name for frame, _ in _loop_frames(error)}
    return next((n for n in ("fori_loop", "while_loop", "scan") if n in names), "loop")


def drifts(error: BaseException) -> list[Drift]:
    """Return the carried values whose types differ; empty where the frames do not tell."""
    frames = {frame.f_code.co_name: frame for frame, _ in _loop_frames(error)}
    check = frames.get("_check_carry_type")
    if check is None:
        return []
    before, paths = _carry_in(check.f_locals)
    after = _carry_out(check.f_locals)
    if not before or len(before) != len(after):
        return []
    jaxpr = _body(frames.get("while_loop") or frames.get("scan"), after)
    hidden = _hidden_carry(frames.get("fori_loop"), len(before))
    found: list[Drift] = []
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if not _same_type(old, new):
            path = _inner(paths[index]) if hidden else paths[index]
            line = None if jaxpr is None else _made_at(jaxpr, index)
            found.append(Drift(index - hidden, path, old, new, line))
    return found


def _inner(path: str) -> str:
    """A path without its first step."""
    return path[path.index("]") + 1 :]


def _carry_in(local: dict[str, Any]) -> tuple[list[Any], list[str]]:
    carry: Any = local.get("in_carry")
    keystr = jax.tree_util.keystr
    paths = getattr(carry, "paths", None)
    if paths is not None:
        return list(carry), [keystr(p) for p in paths]
    leaves = jax.tree_util.tree_leaves_with_path(carry)
    return [jax.typeof(x) for _, x in leaves], [keystr(p) for p, _ in leaves]


def _carry_out(local: dict[str, Any]) -> list[Any]:
    return list(local["out_avals"] if "out_avals" in local else local.get("out_carry", ()))


def _body(frame: types.FrameType | None, after: Sequence[Any]) -> Any | None:
    """The body's jaxpr among the locals of a loop function: its first results are the carry."""
    if frame is None:
        return None
    for value in frame.f_locals.values():
        opened = open_jaxpr(value)
        if not isinstance(opened, _core.Jaxpr) or len(opened.outvars) < len(after):
            continue
        found = [v.aval for v in opened.outvars[: len(after)]]
        if all(_same_type(a, b) for a, b in zip(found, after, strict=True)):
            return opened
    return None


def _same_type(lhs: Any, rhs: Any) -> bool:
    return (lhs.shape, lhs.dtype) == (rhs.shape, rhs.dtype)


def _hidden_carry(frame: types.FrameType | None, count: int) -> int:
    """How many carried values fori_loop puts before the user's."""
    if frame is None or "init_val" not in frame.f_locals:
        return 0
    return count - len(jax.tree_util.tree_leaves(frame.f_locals["init_val"]))


def _made_at(jaxpr: Any, index: int) -> SourceLine | None:
    result = jaxpr.outvars[index]
    if isinstance(result, Literal):
        return None
    for equation in reversed(jaxpr.eqns):
        if result in equation.outvars:
            return source_line(equation)
    return None


def _loop_frames(error: BaseException) -> list[tuple[types.FrameType, int]]:
    """Frames of the innermost loop function that failed."""
    found = [f for f in _frames(error) if f[0].f_code.co_filename.endswith("loops.py")]
    kept: list[tuple[types.FrameType, int]] = []
    for frame in reversed(found):
        kept.append(frame)
        if frame[0].f_code.co_name == "scan" and _caller_is(frame[0], "fori_loop"):
            continue
        if frame[0].f_code.co_name == "while_loop" and _caller_is(frame[0], "fori_loop"):
            continue
        if frame[0].f_code.co_name in ("scan", "while_loop", "fori_loop"):
            break
    return kept


def _caller_is(frame: types.FrameType, name: str) -> bool:
    """Whether a frame was called by a function of a name, JAX's wrappers left out."""
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename.endswith("traceback_util.py"):
        caller = caller.f_back
    return caller is not None and caller.f_code.co_name == name


def _frames(error: BaseException) -> Iterator[tuple[types.FrameType, int]]:
    entry = error.__traceback__
    while entry is not None:
        yield entry.tb_frame, entry.tb_lineno
        entry = entry.tb_next
