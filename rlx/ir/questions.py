"""What a traced function asked of sizes, and for which sizes its graph is what it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlx import dims
from rlx.errors import DimError, SizesError
from rlx.types import Dim

if TYPE_CHECKING:
    from rlx.ir.graph import Graph


def may_differ(asked: Dim, sizes: Mapping[str, int]) -> bool:
    """Whether a question of the function has another answer for these sizes."""
    try:
        return dims.evaluate(asked, sizes) == 0
    except DimError:  # a divisor is 0
        return True


def still_asking(before: Graph, after: Graph) -> Graph:
    """What became of a graph, with what was asked of sizes that it still has.

    Args:
        before: the graph that was changed.
        after: what was made of it.
    """
    if after is before or after.asked or after.keyed or not (before.asked or before.keyed):
        return after
    known = set(after.symbols)
    asked, keyed = (
        [dim for dim in questions if known.issuperset(dim.polynomial.symbols)]
        for questions in (before.asked, before.keyed)
    )
    return after.with_questions(asked, keyed)


def check_answers(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Refuse sizes for which the traced function may do something else than the graph.

    Args:
        graph: with what the function asked (`Graph.asked`, `Graph.keyed`).
        sizes: symbol → size, for every symbol of the questions.

    Raises:
        SizesError: label ``asked``: a question has another answer.
    """
    found = next((dim for dim in graph.asked if may_differ(dim, sizes)), None)
    if found is None and not graph.keyed:
        return
    dim = graph.keyed[0] if found is None else found
    told = "not 0" if found is not None else "no key of what it looks sizes up in"
    text = ", ".join(f"{name} = {sizes[name]}" for name in dims.symbols(dim))
    raise SizesError(
        f"DimError [asked]: sizes are required for which the graph is what the traced function "
        f"does; the function was told that {dim} is {told}; got {text}. Trace it for these "
        "sizes, or bind them (rlx.bind) to take the graph as it is.",
        label="asked",
    )
