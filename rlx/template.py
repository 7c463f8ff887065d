"""Functions whose graph depends on sizes: traced anew for a binding."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlx.dims.constraints import Constraint
from rlx.ir.graph import Graph
from rlx.signature import Signature
from rlx.types import Dim


class TracedAt(Protocol):
    """A trace for one binding."""

    @property
    def graph(self) -> Graph:
        """The static graph."""
        ...

    @property
    def signature(self) -> Signature:
        """Names and structure of arguments and results."""
        ...

    @property
    def params(self) -> Mapping[str, Any]:
        """Param name → array, or None for one that is set later."""
        ...


class AbstractTemplate(abc.ABC):
    """What a frontend can trace again for a binding.

    Attributes:
        why: why there is no graph for all sizes; empty where there is one.
        constraints: what callers promise about sizes.
        asked: what the function was told is not 0 while symbols stood for sizes; where it is, the
            function may take another branch.
        keyed: sizes that the function looked up in dicts or sets, which symbols are not in; for
            any size it may find something else.
    """

    why: str
    asked: Sequence[Dim] = ()
    keyed: Sequence[Dim] = ()
    constraints: Sequence[Constraint]

    @abc.abstractmethod
    def bounded(self, bounds: Mapping[str, tuple[int, int | None]]) -> TracedAt | None:
        """The trace for all sizes within bounds; None where there is no one graph for them.

        Args:
            bounds: symbol → (least, greatest or None).
        """

    @abc.abstractmethod
    def part(self, binding: Mapping[str, int]) -> TracedAt | None:
        """The trace for sizes of some symbols; None where there is no one graph for the others."""

    @abc.abstractmethod
    def at(self, binding: Mapping[str, int]) -> TracedAt:
        """Trace for a binding.

        Raises:
            DimError: the function cannot have these sizes; the message names the symbol.
        """
