"""Where the memory of a language model goes, and which kernels a step runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import jax
import numpy as np

from rlx.compiled import CompiledGraph
from rlx.ir.graph import Graph, inner_graphs
from rlx.ir.plan import Lir
from rlx_xla.models.packed import PACKED

MIB = 2**20


@final
@dataclass(frozen=True)
class KernelUse:
    """How nodes of one kind are carried out.

    Attributes:
        op: name of the op.
        kernel: of the kernel; empty where XLA's own code does it.
        calls: how often one call of the program gets there; a loop counts its turns.
        refused: kernels that were not taken, with reasons.
    """

    op: str
    kernel: str
    calls: int
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = f"; refused: {'; '.join(self.refused)}" if self.refused else ""
        return f"{self.op} → {self.kernel or 'XLA'} × {self.calls}{why}"


@final
@dataclass(frozen=True)
class ProgramUse:
    """One program.

    Attributes:
        batch: rows.
        tokens: of each row in a call.
        capacity: positions of the caches.
        caches: bytes of keys and values.
        temps: bytes that a call takes and gives back.
        outputs: bytes of its results that are not updates of its arguments.
        kernels: of a call.
    """

    batch: int
    tokens: int
    capacity: int
    caches: int
    temps: int
    outputs: int
    kernels: tuple[KernelUse, ...]


@final
@dataclass(frozen=True)
class ModelReport:
    """What a language model holds; prints as a table.

    Attributes:
        weights: kind of the numbers → (tensors, bytes); what two uses share counts once.
        tied: the head is the embedding.
        tokenizer: bytes of its texts and tables.
        programs: those that are compiled.
        mapped: bytes of the file that are in memory; None where the system does not say.
        grown: bytes by which the process has grown since before the file was opened, those of the
            file included; None where the system does not say.
        made: where each program was compiled, and why there, by (batch, tokens a call, capacity).
    """

    weights: Mapping[str, tuple[int, int]]
    tied: bool
    tokenizer: int
    programs: tuple[ProgramUse, ...]
    mapped: int | None
    grown: int | None
    made: Mapping[tuple[int, int, int], str] = field(
        default_factory=dict[tuple[int, int, int], str]
    )

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(size for _, size in self.weights.values())

    @property
    def state_bytes(self) -> int:
        """Bytes of the largest caches, and of what a call takes besides."""
        sizes = [p.caches + p.temps + p.outputs for p in self.programs]
        return max(sizes, default=0)

    @property
    def rest(self) -> int | None:
        """Bytes of modules, of what tracing left and of what XLA keeps of programs, or None."""
        if self.grown is None:
            return None
        known = max(self.mapped or 0, self.weight_bytes) + self.tokenizer + self.state_bytes
        return max(0, self.grown - known)

    def __str__(self) -> str:
        rows = [(f"weights {kind} × {n}", size) for kind, (n, size) in self.weights.items()]
        rows.append(("weights", self.weight_bytes))
        rows.append(("tokenizer", self.tokenizer))
        for p in self.programs:
            name = f"{p.batch} × {p.tokens} tokens, {p.capacity} positions"
            rows += [(f"{name}: caches", p.caches), (f"{name}: temporary", p.temps)]
        measured = (
            ("file's pages in memory", self.mapped),
            ("modules, traces, what XLA keeps", self.rest),
            ("process grew by", self.grown),
        )
        rows += [(what, size) for what, size in measured if size is not None]
        wide = max(len(what) for what, _ in rows)
        lines = [f"{what:<{wide}} {size / MIB:9.2f} MiB" for what, size in rows]
        if self.tied:
            lines.append("the head is the embedding: it is held once")
        for (batch, tokens, positions), how in self.made.items():
            lines.append(f"{batch} × {tokens} tokens, {positions} positions: {how}")
        for p in self.programs:
            lines.append(f"kernels of {p.batch} × {p.tokens} tokens:")
            lines += [f"  {use}" for use in p.kernels]
        return "\n".join(lines)


def weights_by_kind(params: Any) -> dict[str, tuple[int, int]]:
    """Scheme or dtype → number of tensors and their bytes; an array that is met twice counts once.

    Args:
        params: tree of arrays and packed weights.
    """
    found: dict[str, tuple[int, int]] = {}
    seen: set[int] = set()
    for leaf in jax.tree_util.tree_leaves(params, is_leaf=lambda x: isinstance(x, PACKED)):
        packed = isinstance(leaf, PACKED)
        arrays = jax.tree_util.tree_leaves(leaf)
        if id(arrays[0]) in seen:
            continue
        seen.add(id(arrays[0]))
        kind = leaf.scheme if packed else np.dtype(leaf.dtype).name
        count, size = found.get(kind, (0, 0))
        found[kind] = (count + 1, size + sum(array.nbytes for array in arrays))
    return found


def program_use(key: tuple[int, int, int], compiled: CompiledGraph, caches: Any) -> ProgramUse:
    """Account for a program.

    Args:
        key: batch, tokens, capacity.
        compiled: the program.
        caches: tree of shapes and dtypes.
    """
    memory = compiled.memory()
    leaves = jax.tree_util.tree_leaves(caches)
    size = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    outputs = max(0, memory.get("output", 0) - memory.get("alias", 0))
    uses = tuple(kernel_uses(compiled.report().lir))
    return ProgramUse(*key, size, memory.get("temp", 0), outputs, uses)


def kernel_uses(lir: Lir) -> Iterator[KernelUse]:
    """The kernels of a program with the number of their calls, and what kernels refused."""
    from rlx.ops.control_flow import Scan

    counts: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    waiting: list[tuple[Graph, int]] = [(lir.graph, 1)]
    while waiting:
        graph, times = waiting.pop()
        for node in graph.nodes():
            made = lir.plan.implementations.get(node)
            if made is not None and (made.kind == "kernel" or made.refused):
                name = made.name if made.kind == "kernel" else ""
                counts[node.op.op_name, name, tuple(map(str, made.refused))] += times
            turns = node.op.length if isinstance(node.op, Scan) else 1
            inner = times * (turns if isinstance(turns, int) else 1)
            waiting += [(body, inner) for body in inner_graphs(node.op)]
    for op, refusals in lir.plan.decomposed_refusals.items():
        counts[op, "", tuple(map(str, refusals))] += lir.plan.decomposed[op]
    ordered: Sequence[Any] = sorted(counts.items(), key=lambda item: (not item[0][1], item[0]))
    for (op, name, refused), calls in ordered:
        yield KernelUse(op, name, calls, refused)
