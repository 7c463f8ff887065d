"""Which params hold packed weights, and how to give their values: for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from rlx.errors import ParseError
from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.passes.pack_weights import bodies_of
from rlx.quant import QuantScheme

_OTHERS = frozenset({"x", "indices", "index", "ids"})
"""Operands of ops with a scheme that are no part of the weight."""

_WORDS = {"weight": "codes", "scale": "scale", "zero": "zero"}
"""Parts of a weight in the order of `rlx.quant.pack`, and what they are called."""


@final
@dataclass(frozen=True)
class PackedParam:
    """A param that is a part of a packed weight.

    Attributes:
        scheme: what its bytes mean.
        part: the op's name of it: ``weight``, ``scale``, ``zero`` ….
        parts: the params of all parts of the weight, in order.
        leading: sizes of the axes that loops take slices along.
        sizes: K and N of one matrix, where a product says them.
    """

    scheme: QuantScheme
    part: str
    parts: Mapping[str, str]
    leading: tuple[int, ...]
    sizes: tuple[int, int] | None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the params of all parts."""
        return tuple(self.parts.values())

    def advice(self) -> str:
        """How to give the value, packed or as numbers."""
        order = ("N", "K") if self.scheme.is_rows or self.scheme.is_gguf else ("K", "N")
        shape = f"[{', '.join(order)}]"
        if self.sizes is not None:
            by_name = dict(zip("KN", self.sizes, strict=True))
            shape += f" = [{', '.join(str(by_name[name]) for name in order)}]"
        packed = f"rlx.quant.pack(rlx.quant.QuantScheme.parse({str(self.scheme)!r}), numbers)"
        what, told = "a weight", ""
        if len(self.names) == 1:
            packed += "[0]"
        else:
            what = f"the {_WORDS.get(self.part, self.part)} of a weight"
            left = ", ".join(_WORDS[part] if part in self.parts else "_" for part in _WORDS)
            packed = f"{left} = {packed}"
            told = f", and set {', '.join(map(repr, self.names))} together"
        each = ""
        if self.leading:
            count = "×".join(map(str, self.leading))
            each = f" (one matrix at a time, {count} of them, stacked)"
        return (
            f"It holds {what} packed as {self.scheme}: give the packed array, or pack numbers "
            f"f32{shape}{each}: {packed}{told}."
        )


def packed_params(graph: Graph) -> dict[str, PackedParam]:
    """Params by name that ops with packed weights read, in the bodies of loops and calls too."""
    found: dict[str, PackedParam] = {}
    waiting: list[tuple[Graph, Mapping[Value, tuple[Value, int]]]] = [
        (graph, {v: (v, 0) for v in graph.params})
    ]
    while waiting:
        inside, held = waiting.pop()
        for node in inside.nodes():
            if not any(v in held for v in node.inputs):
                continue
            if "scheme" in node.op.attribute_names:
                _note(found, node, held)
            elif inner_graphs(node.op):
                for body, places in bodies_of(node) or []:
                    below = {
                        body.inputs[at]: (held[v][0], held[v][1] + sliced)
                        for at, (v, sliced) in places.items()
                        if v in held
                    }
                    if below:
                        waiting.append((body, below))
    return found


def _note(
    found: dict[str, PackedParam], node: Node, held: Mapping[Value, tuple[Value, int]]
) -> None:
    try:
        scheme = QuantScheme.parse(str(node.op.attributes()["scheme"]))
    except ParseError:
        return
    operands = dict(zip(node.op.operand_names(len(node.inputs)), node.inputs, strict=False))
    parts = {name: held[v] for name, v in operands.items() if name not in _OTHERS and v in held}
    names = {name: param.name for name, (param, _) in parts.items()}
    sizes = None
    if "x" in operands and operands["x"].rank and node.types[0].rank:
        pair = operands["x"].shape[-1], node.types[0].shape[-1]
        if isinstance(pair[0], int) and isinstance(pair[1], int):
            sizes = pair[0], pair[1]
    for name, (param, taken) in parts.items():
        lead = tuple(n for n in param.shape[:taken] if isinstance(n, int))
        found.setdefault(param.name, PackedParam(scheme, name, names, lead, sizes))
