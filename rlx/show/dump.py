"""Writes the text of a compile's levels to files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rlx.errors import CompileError
from rlx.ir.graph import Graph
from rlx.ir.plan import Lir


def dump(
    folder: str, name: str, binding: Mapping[str, int], levels: Mapping[str, Graph | Lir]
) -> None:
    """Write ``<name>[.<symbol>=<size>…].<level>.txt`` for each level; older files are replaced.

    Args:
        folder: made if it does not exist.
        name: of the graph; what a file name cannot hold becomes ``_``.
        binding: sizes of the symbols.
        levels: level → graph; an LIR is written with how each node is carried out.

    Raises:
        CompileError: the folder cannot be written.
    """
    sizes = "".join(f".{symbol}={size}" for symbol, size in sorted(binding.items()))
    stem = re.sub(r"[^\w.=-]", "_", name)[:100] + sizes
    try:
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        for level, graph in levels.items():
            (target / f"{stem}.{level}.txt").write_text(_text(graph), encoding="utf-8")
    except OSError as error:
        raise CompileError(
            f"ir_dump: a folder that can be written is required; {folder!r} gives {error}. "
            "Name another one in CompileOptions(ir_dump=...) or RLX_IR_DUMP."
        ) from error


def _text(level: Graph | Lir) -> str:
    if isinstance(level, Graph):
        return f"{level}\n"
    nodes = [n for n in level.graph.nodes() if n in level.plan.implementations]
    lines = [str(level.graph), "", f"implementations on {level.plan.platform}:"]
    for number, node in enumerate(nodes):
        made = level.plan.implementations[node]
        types = ", ".join(str(t) for t in node.types)
        lines.append(f"  {number}: {node.op.op_name} → {types}: {made.kind} {made.name}")
    return "\n".join(lines) + "\n"
