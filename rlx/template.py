"""Functions whose graph depends on sizes: traced anew for a binding."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from rlx import dims
from rlx.dims.constraints import Constraint, check_constraints
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
    def changed(self, change: Callable[[Any], Any]) -> AbstractTemplate:
        """The template of what a transformation makes of every trace."""

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


@final
class FixedTemplate(AbstractTemplate):
    """A template with sizes for some symbols: traces anew for those of the others."""

    def __init__(
        self,
        whole: AbstractTemplate,
        fixed: Mapping[str, int],
        why: str = "",
        asked: Sequence[Dim] = (),
        keyed: Sequence[Dim] = (),
    ) -> None:
        """Fix sizes.

        Args:
            whole: traces for the sizes of all symbols.
            fixed: the sizes that are given.
            why: see the attribute.
            asked: see the attribute; of the trace for these sizes.
            keyed: the same.

        Raises:
            DimError: the sizes break what was promised.
        """
        check_constraints([c for c in whole.constraints if set(c.symbols) <= set(fixed)], fixed)
        self.why = why
        self.asked, self.keyed = asked, keyed
        self.constraints = tuple(
            Constraint(dims.substitute(c.left, fixed), c.sign, dims.substitute(c.right, fixed))
            for c in whole.constraints
            if not set(c.symbols) <= set(fixed)
        )
        self._whole = whole
        self._fixed = dict(fixed)

    def changed(self, change: Callable[[Any], Any]) -> AbstractTemplate:
        """The template of what a transformation makes of every trace."""
        whole = self._whole.changed(change)
        return FixedTemplate(whole, self._fixed, self.why, self.asked, self.keyed)

    def bounded(self, bounds: Mapping[str, tuple[int, int | None]]) -> TracedAt | None:
        """None: sizes have no bounds."""
        del bounds
        return None

    def part(self, binding: Mapping[str, int]) -> TracedAt | None:
        """The trace for sizes of some more symbols."""
        return self._whole.part({**self._fixed, **binding})

    def at(self, binding: Mapping[str, int]) -> TracedAt:
        """The trace for sizes of all other symbols."""
        return self._whole.at({**self._fixed, **binding})


@final
@dataclass(frozen=True, eq=False)
class FixedTrace:
    """A trace with sizes for some symbols.

    Attributes:
        graph: for these sizes.
        signature: of the function.
        params: param name → array, or None for one that is set later.
        template: traces anew for sizes of the other symbols.
    """

    graph: Graph
    signature: Signature
    params: Mapping[str, Any]
    template: AbstractTemplate


@final
@dataclass(frozen=True, eq=False)
class FixedFunction:
    """The same where there is no one graph for all sizes of the others.

    Attributes:
        boundary: a graph of the inputs and params alone.
        signature: of the function.
        params: param name → array, or None for one that is set later.
        template: traces anew.
    """

    boundary: Graph
    signature: Signature
    params: Mapping[str, Any]
    template: AbstractTemplate


def fixed(
    whole: Graph,
    signature: Signature,
    params: Mapping[str, Any],
    template: AbstractTemplate,
    sizes: Mapping[str, int],
) -> FixedTrace | FixedFunction:
    """What a function that can be traced anew is with sizes for some of its symbols.

    Args:
        whole: the graph for all sizes, or that of the inputs and params alone.
        signature: of the function.
        params: param name → array, or None.
        template: traces anew.
        sizes: of some symbols.
    """
    from rlx.passes.bind_dims import bind

    found = None if template.why else template.part(sizes)
    if found is None:
        names = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        made = FixedTemplate(template, sizes, template.why or f"sizes are given ({names})")
        boundary = bind(Graph(whole.inputs, whole.params, (), name=whole.name), sizes)
        return FixedFunction(boundary, signature, params, made)
    graph = found.graph
    made = FixedTemplate(template, sizes, "", graph.asked, graph.keyed)
    return FixedTrace(graph, found.signature, found.params, made)
