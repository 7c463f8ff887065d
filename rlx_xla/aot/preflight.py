"""``rlx_xla.preflight``: what a program would be on an accelerator that is not there."""

from __future__ import annotations

import dataclasses
import enum
import html
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from rlx.cost_model import count_work
from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.plan import Lir
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.dot import DotGeneral, DotPrecision
from rlx.options.compile import CompileOptions
from rlx_xla.aot.compiling import Compilation, Failure, FailureKind, absence, compile_text
from rlx_xla.aot.hlo_text import Fusion, fusions
from rlx_xla.aot.lowering import Lowered, graph_of, lower_for
from rlx_xla.aot.targets import Target, parse_target
from rlx_xla.aot.transfers import Transfer, totals, transfers

_EXACT = ("t4",)
"""Chips without units that round f32."""

MANY_OPS = 3000
"""Ops of one function from which XLA's compile takes noticeably more than its share."""

LARGE_CONSTANT = 1 << 20

MOST_SENT = 8
"""Lines on operations between devices in a report; all of them are in ``transfers``."""

MOST_FUSED = 6
"""Fused loops that a report names."""

LONG_AXIS = 1 << 16
_SORTS = "jax.lax.approx_max_k, or sorting within shorter rows, compiles at once"
_SUMS = "a jax.lax.scan over chunks of some thousand compiles at once"
LONG_AXES = {
    "sort": _SORTS, "top_k": _SORTS,
    "cumsum": _SUMS, "cumprod": _SUMS, "cummax": _SUMS, "cummin": _SUMS, "cumlogsumexp": _SUMS,
    "fft": "a batch of shorter transforms compiles at once",
}  # fmt: skip
"""Ops whose compile for TPUs grows with the length of their axis, and what to do."""

LOWERED_ANYWAY = ("rocm",)
"""Platforms whose compiler loads only beside the vendor's libraries: without it the answer holds
what lowering and the graph say."""

_ROUNDING = {"tpu": ("bf16", 1.7e-3), "cuda": ("TF32", 2.9e-4)}
"""What f32 products of default precision are rounded to, and their error as a part of the norm of
the result, measured on random operands."""


@final
class Bound(enum.Enum):
    """What keeps a program from being faster."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LATENCY = "latency"


@final
@dataclass(frozen=True, kw_only=True)
class Named:
    """A line of a report: what, where, how much.

    Attributes:
        what: an op or a buffer.
        where: the user's file and line, or empty.
        detail: the rest, in words.
        nbytes: bytes, where it is about bytes.
    """

    what: str
    where: str = ""
    detail: str = ""
    nbytes: int = 0

    def __str__(self) -> str:
        size = f"{self.nbytes:,} B  " if self.nbytes else ""
        where = f" at {self.where}" if self.where else ""
        return f"{size}{self.what}{where}{': ' if self.detail else ''}{self.detail}"


@final
@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What a program would be on a target.

    Attributes:
        name: the program's.
        target: where it would run.
        fits: whether it fits the device's memory; None where nothing was compiled.
        needed: bytes of device memory that it takes, on each device.
        available: bytes of device memory that there are.
        memory: bytes by kind, as the compiler counts them.
        largest: the largest values of the graph, by name.
        flops: floating-point operations.
        bytes_accessed: bytes read and written.
        cycles: what the compiler estimates; None where it does not.
        seconds: estimated time of one run; None where nothing was compiled.
        bound: what limits it.
        unsupported: ops that nothing carries out there.
        slow_compile: what makes the compile slow, with a suggestion.
        precision: products that the target rounds, with the error to expect.
        collectives: operations between devices.
        fusions: fused loops.
        fused: the fused loops that take most, with the ops in each.
        failure: the compiler's answer where there is no program.
        compile_seconds: time of the compile.
        compilation: everything that the compiler said; None where it was not asked.
        transfers: each operation between devices, in the order of the program.
        partitions: over how many devices the program is spread.
    """

    name: str
    target: Target
    fits: bool | None
    needed: int
    available: int
    memory: Mapping[str, int]
    largest: tuple[Named, ...]
    flops: float
    bytes_accessed: float
    cycles: int | None
    seconds: float | None
    bound: Bound | None
    unsupported: tuple[Named, ...]
    slow_compile: tuple[Named, ...]
    precision: tuple[Named, ...]
    collectives: Mapping[str, Mapping[str, int]]
    fusions: int
    fused: tuple[Fusion, ...]
    failure: Failure | None
    compile_seconds: float
    compilation: Compilation | None = None
    transfers: tuple[Transfer, ...] = ()
    partitions: int = 1

    @property
    def ok(self) -> bool:
        """Whether it compiles and fits."""
        return self.failure is None and not self.unsupported and bool(self.fits)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the program, for machines."""

        def lines(named: tuple[Named, ...]) -> list[dict[str, Any]]:
            return [
                {"what": n.what, "where": n.where, "detail": n.detail, "bytes": n.nbytes}
                for n in named
            ]

        failure = self.failure
        return {
            "name": self.name,
            "target": self.target.name,
            "devices": self.target.devices,
            "ok": self.ok,
            "fits": self.fits,
            "needed_bytes": self.needed,
            "available_bytes": self.available,
            "memory": dict(self.memory),
            "largest": lines(self.largest),
            "flops": self.flops,
            "bytes_accessed": self.bytes_accessed,
            "cycles": self.cycles,
            "seconds": self.seconds,
            "bound": None if self.bound is None else self.bound.value,
            "unsupported": lines(self.unsupported),
            "slow_compile": lines(self.slow_compile),
            "precision": lines(self.precision),
            "partitions": self.partitions,
            "collectives": {k: dict(v) for k, v in self.collectives.items()},
            "transfers": [dataclasses.asdict(t) for t in self.transfers],
            "fusions": self.fusions,
            "fused": [
                {"ops": dict(f.ops), "result": f.result, "where": f.where, "cycles": f.cycles}
                for f in self.fused
            ],
            "failure": None
            if failure is None
            else {
                "kind": failure.kind.value,
                "op": failure.op,
                "line": failure.line,
                "message": failure.message,
            },
            "compile_seconds": self.compile_seconds,
        }

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        chip = self.target.chip
        lines = [
            f"{self.name} on {self.target.name} ({self.target.devices} × {chip.title}): "
            + ("ok" if self.ok else "not ok")
        ]
        if self.fits is not None:
            room = self.available - self.needed
            each = " of each device" if self.partitions > 1 else ""
            lines.append(
                f"  memory{each}: {_gib(self.needed)} of {_gib(self.available)}; "
                + (f"{_gib(room)} to spare" if room >= 0 else f"{_gib(-room)} too much")
            )
        if self.memory:
            lines.append("          " + "  ".join(f"{k} {v:,} B" for k, v in self.memory.items()))
        if self.seconds is not None and self.bound is not None:
            cycles = "" if self.cycles is None else f", {self.cycles:,} cycles"
            lines.append(
                f"  time: about {_time(self.seconds)}{cycles}, bound by {self.bound.value}; "
                f"{self.flops:,.0f} flop, {self.bytes_accessed:,.0f} bytes"
            )
        if self.compilation is not None and self.failure is None:
            lines.append(
                f"  compile: {self.compile_seconds:.2f} s, {self.fusions} fusions"
                + (" (on one thread of this machine)" if self.compile_seconds > 60 else "")
            )
        whole = ", before they are divided" if self.partitions > 1 else ""
        for title, named in (
            ("unsupported", self.unsupported),
            ("largest values" + whole, self.largest),
            ("fused", self.fused),
            ("rounded", self.precision),
            ("slow to compile", self.slow_compile),
        ):
            lines += [f"  {title}:"] * bool(named) + [f"    {line}" for line in named]
        if self.collectives:
            lines.append("  between devices:")
            lines += [
                f"    {kind} × {entry['count']}, {entry['bytes']:,} B"
                for kind, entry in self.collectives.items()
            ]
            counts = Counter(map(str, sorted(self.transfers, key=lambda sent: -sent.nbytes)))
            shown = [f"{line} × {count}" if count > 1 else line for line, count in counts.items()]
            lines += [f"      {line}" for line in shown[:MOST_SENT]]
            if len(shown) > MOST_SENT:
                lines.append(f"      and {len(shown) - MOST_SENT} kinds of smaller ones")
        if self.failure is not None:
            lines.append(f"  failure: {self.failure}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def preflight(
    fn_or_graph: Any,
    *args: Any,
    target: str,
    params: Any = (),
    options: CompileOptions | None = None,
    timeout: float = 600.0,
    **kwargs: Any,
) -> Preflight:
    """Say whether and how fast a program would run on an accelerator that is not there.

    Args:
        fn_or_graph: a JAX function, a traced function, a module or a graph.
        args: the function's arguments: arrays, ``jax.ShapeDtypeStruct`` or specs.
        target: such as ``tpu:v5e:2x2``, ``v5e-1`` or ``cuda:h100``.
        params: arguments that are params, as in ``trace``.
        options: of the compile.
        timeout: seconds after which the target's compiler is stopped.
        kwargs: the function's keyword arguments.

    Returns:
        The report. A program that does not fit, that the compiler refuses, and one that makes the
        compiler abort or hang are answers, not errors.

    Raises:
        DeviceError: the target is unknown, or its compiler is not installed.
        TraceError: the function cannot be traced.
        DimError: a size is not known.
    """
    where = parse_target(target)
    chosen = CompileOptions() if options is None else options
    lowered = lower_for(graph_of("preflight", fn_or_graph, args, kwargs, params), where, chosen)
    compilation = None
    absent = absence(where) if where.platform in LOWERED_ANYWAY else None
    if absent is not None and lowered.text:
        failure = Failure(kind=FailureKind.NOT_COMPILED, message=absent)
        compilation = Compilation(target=where, failure=failure)
    elif lowered.text:
        compilation = compile_text(
            lowered.text,
            where,
            partitions=lowered.partitions,
            timeout=timeout,
            compiler_options=chosen.compiler_options,
        )
    return report_of(lowered, where, compilation)


def report_of(lowered: Lowered, target: Target, compilation: Compilation | None) -> Preflight:
    """Put together what passes, plan and compiler said."""
    chip = target.chip
    failure = None if compilation is None else compilation.failure
    made = compilation if failure is None else None
    memory = {} if made is None else dict(made.memory)
    estimate = lowered.lir.memory()
    available = chip.memory
    fits: bool | None = None
    needed = estimate.peak
    if failure is not None and failure.kind is FailureKind.OUT_OF_MEMORY:
        fits, needed = False, failure.needed or estimate.peak
        available = failure.available or available
    elif memory:
        needed = sum(memory.values()) - 2 * memory.get("alias", 0)
        fits = needed <= available
    cost = {} if made is None else made.cost
    flops = cost.get("flops") or count_work(lowered.lir.graph).matmul_flops
    moved = cost.get("bytes accessed") or float(estimate.total)
    seconds = bound = None
    sent = () if made is None else tuple(transfers(made.hlo))
    if made is not None:
        seconds, bound = _time_of(target, flops, moved, made.cycles)
    return Preflight(
        name=lowered.source.name,
        target=target,
        fits=fits,
        needed=needed,
        available=available,
        memory=memory,
        largest=tuple(
            Named(what=f"{buffer.name}: {buffer.type}", detail=buffer.kind, nbytes=buffer.nbytes)
            for buffer in estimate.largest()
        ),
        flops=flops,
        bytes_accessed=moved,
        cycles=None if made is None else made.cycles,
        seconds=seconds,
        bound=bound,
        unsupported=(
            *(Named(what=line) for line in lowered.refused.splitlines()[:1]),
            *(
                Named(
                    what=found.node.op.op_name,
                    where=_line(found.node),
                    detail="; ".join(map(str, found.refused))
                    or f"no lowering for {target.platform}",
                )
                for found in lowered.unsupported
            ),
        ),
        slow_compile=_slow(lowered.lir, target),
        precision=_rounded(lowered.lir.graph, target),
        collectives=totals(sent),
        fusions=0 if made is None else made.fusions,
        fused=() if made is None else tuple(fusions(made.hlo)[:MOST_FUSED]),
        failure=failure,
        compile_seconds=0.0 if made is None else made.seconds,
        compilation=compilation,
        transfers=sent,
        partitions=lowered.partitions,
    )


def _time_of(target: Target, flops: float, moved: float, cycles: int | None) -> tuple[float, Bound]:
    chip = target.chip
    compute, memory = flops / chip.flops, moved / chip.bandwidth
    floor, bound = max((compute, Bound.COMPUTE), (memory, Bound.MEMORY), key=lambda pair: pair[0])
    if cycles is None or not chip.clock:
        return floor, bound
    seconds = cycles / chip.clock
    return seconds, bound if floor >= 0.3 * seconds else Bound.LATENCY


def _rounded(graph: Graph, target: Target) -> tuple[Named, ...]:
    """Products of f32 that the target rounds, unless asked otherwise."""
    if target.platform not in _ROUNDING or target.chip.name in _EXACT:
        return ()
    dtype, error = _ROUNDING[target.platform]
    found: dict[tuple[str, str], int] = {}
    for inner in graph.all_graphs():
        for node in inner.nodes():
            if not isinstance(node.op, DotGeneral | ConvGeneralDilated):
                continue
            wide = all(value.type.dtype is DType.F32 for value in node.inputs)
            if wide and DotPrecision.DEFAULT in node.op.precision:
                key = (node.op.op_name, _line(node))
                found[key] = found.get(key, 0) + 1
    return tuple(
        Named(
            what=f"{name} × {count}" if count > 1 else name,
            where=line,
            detail=f"f32 is rounded to {dtype}, about {error:.1e} of the result; "
            'matmul_precision="highest" keeps it',
        )
        for (name, line), count in found.items()
    )


def _slow(lir: Lir, target: Target) -> tuple[Named, ...]:
    found: list[Named] = []
    count = max(graph.node_count() for graph in lir.graph.all_graphs())
    if count > MANY_OPS:
        found.append(
            Named(
                what=f"{count:,} ops in one function",
                detail="XLA's compile grows faster than their number; "
                "write repeated layers as jax.lax.scan over stacked weights",
            )
        )
    for graph in lir.graph.all_graphs():
        for node in graph.nodes():
            size = node.types[0].nbytes if node.types and node.types[0].is_static else 0
            if node.op.op_name == "constant" and size > LARGE_CONSTANT:
                found.append(
                    Named(
                        what="constant",
                        where=_line(node),
                        nbytes=size,
                        detail="XLA folds it at compile time; pass it as an argument",
                    )
                )
            advice = LONG_AXES.get(node.op.op_name) if target.platform == "tpu" else None
            axis = node.op.attributes().get("axis", -1)
            shape = node.inputs[0].type.shape if node.inputs else ()
            if advice and shape and isinstance(shape[axis], int) and shape[axis] >= LONG_AXIS:
                found.append(
                    Named(
                        what=f"{node.op.op_name} of {node.inputs[0].type}",
                        where=_line(node),
                        detail=f"TPU compilers take up to a minute for {LONG_AXIS:,} elements in "
                        f"a row; {advice}",
                    )
                )
    return tuple(found)


def _line(node: Node) -> str:
    return str(node.location) if node.location else ""


def _gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if abs(size) >= 2**28 else f"{size / 2**20:,.2f} MiB"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
