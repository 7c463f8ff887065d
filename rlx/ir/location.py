"""Where a node came from: the user's file and line, and the label of the scope it stands in."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

_MADE_UP = re.compile(r"[/\\\\]ipykernel_\d+[/\\\\]")
_OUR_FOLDERS = tuple(
    os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), name) + os.sep
    for name in ("rlx", "rlx_xla")
)


@final
@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's program.

    Attributes:
        file: path of the source file, ``In[3]`` for a cell of a notebook, or an empty string.
        line: 1-based line, 0 when unknown.
        label: scope such as ``encoder/layer_0/mlp``, or an empty string.
    """

    file: str = ""
    line: int = 0
    label: str = ""

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file)}:{self.line}" if self.file else ""
        return " ".join(part for part in (self.label, place) if part)

    def __bool__(self) -> bool:
        return bool(self.file or self.label)


UNKNOWN = Location()
_explicit: ContextVar[Location | None] = ContextVar("rlx_location", default=None)
_scope: ContextVar[str] = ContextVar("rlx_scope", default="")
_interned: dict[tuple[str, int, str], Location] = {}


@final
class at:  # noqa: N801  reads as the word it is: ``with at(location):``
    """Give every node made inside this location (used by tracing, passes and decompositions)."""

    __slots__ = ("_location", "_token")

    def __init__(self, location: Location) -> None:
        """Take the location; a class, since passes enter one for each node."""
        self._location = location

    def __enter__(self) -> None:
        self._token = _explicit.set(self._location)

    def __exit__(self, *error: object) -> None:
        _explicit.reset(self._token)


@final
class moving:  # noqa: N801  ``with moving() as move:``
    """Give nodes made inside the location that was named last with ``move(location)``.

    For whoever goes through many nodes: cheaper than ``at`` for each. The location from before
    comes back at the end.
    """

    __slots__ = ("_token",)

    def __enter__(self) -> Callable[[Location], object]:
        self._token = _explicit.set(_explicit.get())
        return _explicit.set

    def __exit__(self, *error: object) -> None:
        _explicit.reset(self._token)


@contextlib.contextmanager
def scope(label: str) -> Generator[None]:
    """Put every node made inside under a label; scopes nest with ``/``."""
    outer = _scope.get()
    token = _scope.set(f"{outer}/{label}" if outer else label)
    try:
        yield
    finally:
        _scope.reset(token)


def current() -> Location:
    """Return the location for a node made now: the explicit one, else the user's frame."""
    explicit = _explicit.get()
    if explicit is not None:
        return explicit
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OUR_FOLDERS):
        frame = frame.f_back
    if frame is None:
        return UNKNOWN
    return intern(frame.f_code.co_filename, frame.f_lineno, _scope.get())


def enclosing() -> Location:
    """Return the location that is given to nodes now, or ``UNKNOWN``."""
    return _explicit.get() or UNKNOWN


def intern(file: str, line: int, label: str = "") -> Location:
    """Return the one Location object for these facts."""
    key = (file, line, label)
    found = _interned.get(key)
    if found is None:
        found = _interned[key] = Location(_cell(file) or file, line, label)
    return found


def _cell(file: str) -> str:
    """``In[3]`` for a file that a notebook's kernel made up for a cell; empty for others."""
    shell: Any = sys.modules.get("IPython")
    if shell is None or not _MADE_UP.search(file):
        return ""
    running = shell.get_ipython()
    named = None if running is None else running.compile.format_code_name(file)
    return "" if named is None else str(named[1])
