"""Plots with matplotlib: memory over the schedule, and a roofline of the ops."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from rlx.cost_model import BackendCostModel, cost_model_of, work_by_op
from rlx.errors import RunError
from rlx.ir.graph import Graph
from rlx.ir.memory_plan import MemoryEstimate, estimate

_KINDS = ("param", "constant", "input", "output", "temp")
_COLOURS = ("#0550ae", "#6e7781", "#1b7c83", "#953800", "#1a7f37")
_NAMED = 12
"""Ops that a roofline names."""


@final
@dataclass(frozen=True)
class RooflinePoint:
    """All nodes of one op.

    Attributes:
        op: its name.
        intensity: operations for each byte read or written.
        flops: operations of all of them in one call.
        nbytes: bytes read and written, without fusion.
        seconds: least time of all of them, by the device's figures.
        bound: ``compute`` or ``memory``.
    """

    op: str
    intensity: float
    flops: float
    nbytes: float
    seconds: float
    bound: str


def memory_curve(found: MemoryEstimate) -> dict[str, list[int]]:
    """Bytes alive at each position of the schedule, by kind of buffer.

    Buffers of graphs inside of ops are not in the curve; ``found.nested`` has their need.
    """
    last = max((buffer.last for buffer in found.buffers), default=-1)
    last = max(last, max((buffer.first for buffer in found.buffers), default=-1))
    changes = {kind: [0] * (last + 2) for kind in _KINDS}
    for buffer in found.buffers:
        changes[buffer.kind][buffer.first] += buffer.nbytes
        changes[buffer.kind][max(buffer.last, buffer.first) + 1] -= buffer.nbytes
    curve: dict[str, list[int]] = {}
    for kind, steps in changes.items():
        alive: list[int] = []
        total = 0
        for step in steps[:-1]:
            total += step
            alive.append(total)
        curve[kind] = alive
    return curve


def roofline(
    graph: Graph,
    device: str | BackendCostModel = "cpu",
    binding: Mapping[str, int] | None = None,
) -> list[RooflinePoint]:
    """Work of each op against what a device can do, the slowest first.

    Args:
        graph: any graph; it is decomposed to primitive ops.
        device: its name for typical figures, or figures.
        binding: symbol → size.

    Raises:
        UnboundDimError: symbols are left.
    """
    speeds = cost_model_of(device) if isinstance(device, str) else device
    points: list[RooflinePoint] = []
    for op, work in work_by_op(graph, binding).items():
        compute = work.matmul_flops / (speeds.matmul_gflops * 1e9)
        memory = work.nbytes / (speeds.memory_gb_per_s * 1e9)
        points.append(
            RooflinePoint(
                op=op,
                intensity=work.matmul_flops / work.nbytes if work.nbytes else 0.0,
                flops=work.matmul_flops,
                nbytes=work.nbytes,
                seconds=max(compute, memory),
                bound="compute" if compute > memory else "memory",
            )
        )
    return sorted(points, key=lambda point: (-point.seconds, point.op))


def plot_memory(graph: Graph, binding: Mapping[str, int] | None = None, *, axes: Any = None) -> Any:
    """Draw the bytes alive at each position of a graph's schedule, by kind of buffer.

    Args:
        graph: any graph, such as ``compiled.report().lir.graph``.
        binding: symbol → size.
        axes: where to draw; new ones if None.

    Returns:
        The axes.

    Raises:
        RunError: matplotlib is not installed.
        UnboundDimError: symbols are left.
    """
    axes = _axes(axes)
    found = estimate(graph, binding)
    curve = memory_curve(found)
    count = len(curve["temp"])
    # A step for each position: what is alive there is alive until the next.
    edges = list(range(count + 1))
    stacked = [[b / 2**20 for b in curve[kind]] for kind in _KINDS]
    bottom = [0.0] * count
    for kind, colour, heights in zip(_KINDS, _COLOURS, stacked, strict=True):
        top = [low + high for low, high in zip(bottom, heights, strict=True)]
        if any(heights):
            axes.stairs(top, edges, baseline=bottom, fill=True, color=colour, label=kind)
        bottom = top
    axes.axvline(found.peak_at, color="#cf222e", linewidth=0.8, linestyle="--")
    axes.set_title(f"{graph.name}: peak {found.peak / 2**20:,.2f} MiB at {found.peak_at}")
    axes.set_xlabel("position in the schedule")
    axes.set_ylabel("MiB alive")
    axes.legend(loc="best")
    return axes


def plot_roofline(
    graph: Graph,
    device: str | BackendCostModel = "cpu",
    binding: Mapping[str, int] | None = None,
    *,
    axes: Any = None,
) -> Any:
    """Draw each op's attainable speed under a device's roof.

    Args:
        graph: any graph.
        device: its name for typical figures, or figures.
        binding: symbol → size.
        axes: where to draw; new ones if None.

    Returns:
        The axes.

    Raises:
        RunError: matplotlib is not installed.
        UnboundDimError: symbols are left.
    """
    axes = _axes(axes)
    speeds = cost_model_of(device) if isinstance(device, str) else device
    points = [p for p in roofline(graph, speeds, binding) if p.flops]
    peak, bandwidth = speeds.matmul_gflops, speeds.memory_gb_per_s
    ridge = peak / bandwidth
    low = min([ridge / 16, *(p.intensity / 2 for p in points)])
    high = max([ridge * 16, *(p.intensity * 2 for p in points)])
    axes.loglog([low, ridge, high], [low * bandwidth, peak, peak], color="#24292f")
    for point in points[:_NAMED]:
        attainable = min(peak, point.intensity * bandwidth)
        axes.scatter([point.intensity], [attainable], label=f"{point.op} ({point.bound})")
    axes.set_title(f"{graph.name}: roofline")
    axes.set_xlabel("flop per byte, without fusion")
    axes.set_ylabel("Gflop/s attainable")
    if points:
        axes.legend(loc="best")
    return axes


def _axes(axes: Any) -> Any:
    if axes is not None:
        return axes
    if importlib.util.find_spec("matplotlib") is None:
        raise RunError(
            "plot: matplotlib is required; it is not installed. Run: pip install 'rlx-xla[plots]'"
        )
    figure = importlib.import_module("matplotlib.figure")
    # A figure of its own: nothing is kept by pyplot, and no window opens.
    return figure.Figure(figsize=(8, 4), layout="constrained").subplots()
