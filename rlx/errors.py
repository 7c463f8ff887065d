"""Every error that RLX raises.

Form of a message: *where [label]: what is required; what was found. What to do.*
Inputs are named and fully typed. Graph excerpts are attached with ``add_note``.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast, final


class RlxError(Exception):
    """Base of all errors of RLX.

    Attributes:
        label: the constraint's label (``"C2"``), or None.
    """

    label: str | None = None

    def __init__(self, message: str, *, label: str | None = None) -> None:
        """Make an error from its whole message."""
        # Not super(): in a class that ``also`` makes, another library's class comes next.
        Exception.__init__(self, message)
        self.label = label


@final
class RegistryError(RlxError, TypeError):
    """A duplicate or malformed op, rule, kernel or backend."""


@final
class ShapeError(RlxError, ValueError):
    """An op's inputs have shapes that the op does not take."""


@final
class DTypeError(RlxError, TypeError):
    """An op's inputs have dtypes that the op does not take."""


class DimError(RlxError, ValueError):
    """A dimension, a binding or a dimension's text is wrong."""


@final
class InconclusiveDimError(DimError):
    """A question about symbolic dimensions has no single answer for all bindings."""


@final
class UnboundDimError(DimError):
    """A symbolic dimension is needed as a number but has no binding."""


@final
class ParseError(RlxError, ValueError):
    """Text is not a graph, a type or a dimension.

    Attributes:
        line: 1-based line of the fault, 0 when there is only one line.
        column: 1-based column of the fault.
    """

    def __init__(self, message: str, *, line: int = 0, column: int = 0) -> None:
        """Make an error that points at a place in a text."""
        where = f"line {line}, column {column}: " if line else ""
        super().__init__(where + message)
        self.line = line
        self.column = column


@final
class FormatError(RlxError, ValueError):
    """A file is not an RLX container, or it is damaged, or it claims what it does not hold."""


@final
class VerifyError(RlxError):
    """A graph breaks the rules of the IR.

    Attributes:
        findings: one line for each fault, with node and location.
    """

    def __init__(self, findings: Sequence[str]) -> None:
        """Make an error from all findings at once."""
        self.findings = tuple(findings)
        count = len(self.findings)
        head = f"verify: {count} finding{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  {f}" for f in self.findings)]))


@final
class PassError(RlxError):
    """A pass failed; the cause is chained.

    Attributes:
        pass_name: the pass that failed.
        earlier: the passes that ran before it, in order.
    """

    def __init__(self, message: str, *, pass_name: str, earlier: Sequence[str] = ()) -> None:
        """Make an error that names the pass and those before it."""
        super().__init__(message)
        self.pass_name = pass_name
        self.earlier = tuple(earlier)


@final
class LoweringError(RlxError):
    """An op has no way to be lowered, or a lowering's precondition fails."""


@final
class KernelError(RlxError):
    """A kernel was refused on request, or its library or symbol is missing."""


@final
class TraceError(RlxError):
    """A function cannot be traced, or an opaque node cannot do what is asked."""


@final
class DeviceError(RlxError, RuntimeError):
    """A device is unknown or not available."""


@final
class CompileError(RlxError, RuntimeError):
    """XLA refused or failed to compile a module."""


class RunError(RlxError, ValueError):
    """A call's inputs or params are wrong: name, count, shape or dtype."""


@final
class CompileStormWarning(UserWarning):
    """Most calls compile a program of their own."""


_Ours = TypeVar("_Ours", bound=RlxError)


@functools.cache
def also(ours: type[_Ours], other: type[BaseException]) -> type[_Ours]:
    """A class of errors that are caught as ours, and as those of another library.

    So code that was written for the other library's errors keeps its ``except`` clauses.

    Args:
        ours: one of the classes above that is made from a message alone.
        other: the class that the other library raises.
    """
    if issubclass(ours, other):
        return ours

    def reduce(error: RlxError) -> tuple[Any, ...]:
        return _again, (ours, other, str(error), error.label)

    own = {
        "__init__": RlxError.__init__,
        "__reduce__": reduce,
        "__str__": Exception.__str__,
        "__module__": ours.__module__,
        "__qualname__": ours.__qualname__,
        "__doc__": ours.__doc__,
    }
    return cast("type[_Ours]", type(ours.__name__, (ours, other), own))


SizesError = also(DimError, RunError)
"""Inputs of a call have sizes that the graph's dims do not take: an error of both kinds."""


def _again(
    ours: type[RlxError], other: type[BaseException], message: str, label: str | None
) -> RlxError:
    """Make an error that was pickled."""
    return also(ours, other)(message, label=label)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest known name, or an empty string."""
    if not isinstance(cast("object", name), str):
        return ""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if not close:
        lowered = {k.lower(): k for k in known}
        close = [lowered[name.lower()]] if name.lower() in lowered else []
    return f" Did you mean {close[0]!r}?" if close else ""
