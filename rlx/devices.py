"""Questions about devices: what is here, what can run a graph, and which is the fastest for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from rlx.backend import available_devices as available_devices
from rlx.backend import backend_for
from rlx.backend import register_backend as register_backend
from rlx.backend import registered_devices as registered_devices
from rlx.compiler import Compiler
from rlx.cost_model import BackendCostModel, cost_model_of
from rlx.cost_model import estimate_graph_cost as estimate_graph_cost
from rlx.device_names import full_name as full_name
from rlx.device_names import split
from rlx.dispatch import KernelDispatchReport
from rlx.errors import CompileError, DeviceError, did_you_mean
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, Node
from rlx.ir.module import Module
from rlx.ir.op import Op, all_ops
from rlx.options.compile import CompileOptions
from rlx.options.devices import DevicePolicy as DevicePolicy
from rlx.passes.bind_dims import bind
from rlx.passes.legalize import Legalization
from rlx.session import Session, TracedFunction, mir_of, traced_at
from rlx.signature import flat_signature

Program: TypeAlias = "Graph | Module | TracedFunction"
"""What a session compiles."""


def is_available(device: str) -> bool:
    """Whether a device can be used here and now."""
    try:
        backend_for(device)
    except DeviceError:
        return False
    return True


def feature_compiled(device: str) -> bool:
    """Whether a device has a backend, attached or not."""
    return split(device)[0] in registered_devices()


def supports(device: str, op: str | type[Op] | Op | Node) -> bool:
    """Whether a device can carry out an op.

    Args:
        device: an available device.
        op: a node is decided exactly, with its attributes and types, through every decomposition;
            an op or its name tells whether there is any way at all.

    Raises:
        DeviceError: the device is not available.
        CompileError: no op has the name.
    """
    backend = backend_for(device)
    if isinstance(op, Node):
        from rlx.ops.io import Input

        inputs = [
            Input(name=f"x{i}", dtype=v.type.dtype, shape=v.type.shape)()
            for i, v in enumerate(op.inputs)
        ]
        node = Node(op.op, tuple(inputs), op.types, op.location)
        return supports_graph(device, Graph(inputs, (), node.results))
    if isinstance(op, str):
        known = all_ops()
        if op not in known:
            raise CompileError(f"supports: op {op!r} is not registered.{did_you_mean(op, known)}")
        op = known[op]
    return backend.claims(op if isinstance(op, type) else type(op))


def supports_graph(device: str, graph: Program, options: CompileOptions | None = None) -> bool:
    """Whether a device can carry out every node of a graph under the options.

    Raises:
        DeviceError: the device is not available.
    """
    return not _decided(graph, device, options, passes=False)[1].unsupported


def first_unsupported_op(
    device: str, graph: Program, options: CompileOptions | None = None
) -> Node | None:
    """The first node that a device cannot carry out, with its op and the user's line; or None.

    Raises:
        DeviceError: the device is not available.
    """
    unsupported = _decided(graph, device, options, passes=False)[1].unsupported
    return unsupported[0].node if unsupported else None


def analyze_dispatch(
    graph: Program, device: str, options: CompileOptions | None = None
) -> KernelDispatchReport:
    """How a compile would carry out each node, with every refusal; nothing is compiled.

    The passes of a compile run first, so that the report is the one a compile gives. Symbolic
    dims may be left; a choice that depends on sizes is then made as if they were unknown.

    Args:
        graph: a graph, a module or a traced function.
        device: an available device.
        options: what may change the choice.

    Raises:
        DeviceError: the device is not available.
    """
    compiler, legal = _decided(graph, device, options, passes=True)
    return compiler.dispatch(legal)


def dispatch_report_for_device(device: str, graph: Program) -> KernelDispatchReport:
    """``analyze_dispatch`` with the default options, under RLX's name."""
    return analyze_dispatch(graph, device)


def legalize_graph_for_device(
    device: str, graph: Program, options: CompileOptions | None = None
) -> Graph:
    """The graph with everything decomposed that the device does not carry out as it is.

    Raises:
        LoweringError, KernelError: nodes without any implementation, all at once.
        DeviceError: the device is not available.
    """
    compiler, legal = _decided(graph, device, options, passes=False)
    return compiler.require(legal).graph


def legalize_graph_for_device_with_report(
    device: str, graph: Program, options: CompileOptions | None = None
) -> tuple[Graph, KernelDispatchReport]:
    """The graph decomposed as far as it goes, and what is left unsupported in the report.

    Raises:
        DeviceError: the device is not available.
    """
    compiler, legal = _decided(graph, device, options, passes=False)
    return legal.graph, compiler.dispatch(legal)


def _decided(
    graph: Program, device: str, options: CompileOptions | None, *, passes: bool
) -> tuple[Compiler, Legalization]:
    chosen = CompileOptions() if options is None else options
    traced, chosen = traced_at(graph, chosen)
    mir = mir_of("devices", traced)
    if chosen.dim_binding:
        mir = bind(mir, chosen.dim_binding)
    compiler = Compiler(backend_for(device), mir, flat_signature(mir), chosen)
    return compiler, compiler.examine(mir)[0] if passes else compiler.legalize(mir)


@final
@dataclass(frozen=True, kw_only=True)
class DevicePick:
    """Which device was picked for a graph, and why.

    Attributes:
        device: the one that was picked.
        reason: in words.
        seconds: estimated or measured seconds of one call, for each candidate that runs it.
        measured: whether the seconds are measured.
        rejected: why each other device was not a candidate.
    """

    device: str
    reason: str
    seconds: Mapping[str, float]
    measured: bool
    rejected: Mapping[str, str]

    def __str__(self) -> str:
        how = "measured" if self.measured else "estimated"
        lines = [f"{self.device}: {self.reason}"]
        lines += [f"  {d}: {s * 1e6:,.1f} µs {how}" for d, s in self.seconds.items()]
        lines += [f"  {d}: {reason}" for d, reason in self.rejected.items()]
        return "\n".join(lines)


def fastest_device_for(
    graph: Program,
    policy: DevicePolicy | None = None,
    options: CompileOptions | None = None,
) -> str:
    """Name of the device that ``pick_device`` picks."""
    return pick_device(graph, policy, options).device


def pick_device(
    graph: Program,
    policy: DevicePolicy | None = None,
    options: CompileOptions | None = None,
) -> DevicePick:
    """Pick a device for a graph: by availability, then by support, then by time.

    A chain, or a preferred device that runs the graph, decides before any time does. The device
    ``interpret`` is a candidate only where the policy names it.

    Args:
        graph: a graph, a module or a traced function; symbols are bound by ``options.dim_binding``.
        policy: which devices, in which order, measured or not; None is what the environment says.
        options: options of the compile.

    Raises:
        DeviceError: no device that the policy allows can run the graph; each with its reason.
        UnboundDimError: devices are compared and sizes are left open.
    """
    chosen = DevicePolicy.from_env() if policy is None else policy
    compile_options = CompileOptions() if options is None else options
    mir = mir_of("pick_device", graph)
    able, rejected = candidates(mir, chosen, compile_options)
    if not able:
        reasons = "".join(f"\n  {d}: {reason}" for d, reason in rejected.items())
        raise DeviceError(
            f"pick_device: a device that runs {mir.name!r} is required; none of these does:"
            f"{reasons}\nAllow another device, or change what the reasons name."
        )
    first = able[0]
    if chosen.chain:
        return _pick(first, "the first of the chain that runs it", {}, False, rejected)
    if any(split(p)[0] == split(first)[0] for p in chosen.prefer):
        return _pick(first, "preferred", {}, False, rejected)
    if len(able) == 1:
        return _pick(first, "the only one that runs it", {}, False, rejected)
    binding = compile_options.dim_binding
    if chosen.benchmark_pick:
        seconds = {d: measure_graph(d, mir, options=compile_options) for d in able}
    else:
        seconds = {d: estimate_graph_cost(mir, d, binding) for d in able}
    best = min(seconds, key=lambda d: seconds[d])
    how = "measured" if chosen.benchmark_pick else "estimated"
    return _pick(best, f"the fastest, {how}", seconds, chosen.benchmark_pick, rejected)


def _pick(
    device: str,
    reason: str,
    seconds: Mapping[str, float],
    measured: bool,
    rejected: Mapping[str, str],
) -> DevicePick:
    return DevicePick(
        device=device, reason=reason, seconds=seconds, measured=measured, rejected=rejected
    )


def candidates(
    graph: Program, policy: DevicePolicy, options: CompileOptions
) -> tuple[list[str], dict[str, str]]:
    """Devices that can run a graph in the policy's order, and why each other cannot."""
    mir = mir_of("candidates", graph)
    rejected: dict[str, str] = {}
    named = [*(policy.devices or ()), *policy.prefer, *policy.chain]
    here = available_devices()
    for name in named:
        if not is_available(name):
            rejected[name] = "not available"
    able: list[str] = []
    seen: set[str] = set()
    wanted = {split(name)[0] for name in named}
    for device in policy.order(dict.fromkeys([*here, *(n for n in named if n not in rejected)])):
        backend = backend_for(device)
        if backend.device in seen or (backend.device == "interpret" and "interpret" not in wanted):
            continue
        seen.add(backend.device)
        node = first_unsupported_op(device, mir, options)
        if node is None:
            able.append(backend.device)
        else:
            where = f" at {node.location}" if node.location else ""
            rejected[backend.device] = f"op {node.op.op_name!r}{where} is not supported"
    for device in here:
        if not policy.allows(device):
            rejected[device] = "not allowed by the policy"
    return able, rejected


def measure_graph(
    device: str, graph: Graph, *, options: CompileOptions | None = None, seconds: float = 0.2
) -> float:
    """Compile a graph and measure one call with drawn inputs.

    Args:
        device: an available device.
        graph: a graph; symbols are bound by ``options.dim_binding``.
        options: options of the compile.
        seconds: how long to measure, in seconds.

    Returns:
        The least seconds of one call, results read back.

    Raises:
        CompileError: symbols are left, or the device refuses the graph.
    """
    chosen = CompileOptions() if options is None else options
    static = bind(graph, chosen.dim_binding) if chosen.dim_binding else graph
    if static.symbols:
        raise CompileError(
            f"measure_graph: sizes are required; {', '.join(static.symbols)} have none. Bind them "
            "with CompileOptions(dim_binding={...})."
        )
    from rlx.passes.validate import draw  # loads op families

    compiled = Session(device).compile(static, options=chosen.replace(dim_binding=None))
    rng = np.random.default_rng(0)
    compiled.set_params({v.name: draw(rng, v.type) for v in static.params})
    inputs = {v.name: draw(rng, v.type) for v in static.inputs}
    return _least(lambda: compiled.run(inputs), seconds)


def measure_cost_model(device: str, *, size: int = 512) -> BackendCostModel:
    """Measure a device: a square product, a pass over a large array, and a call of almost nothing.

    The operands lie on the device, and one number is read back.

    Args:
        device: an available device.
        size: rows and columns of the product; the array has 16 times as many elements.
    """
    b = GraphBuilder("product")
    square = f"f32[{size}, {size}]"
    product = b.build((b.param("x", square) @ b.param("y", square)).max(axis=(0, 1)))
    b = GraphBuilder("tiny")
    tiny = b.build(-b.param("x", "f32[1]"))
    b = GraphBuilder("read")
    elements = 16 * size * size
    large = b.build((-b.param("x", f"f32[{elements}]")).max(axis=0))
    call = measure_graph(device, tiny)
    multiply = max(measure_graph(device, product) - call, 1e-9)
    read = max(measure_graph(device, large) - call, 1e-9)
    typical = cost_model_of(device)
    return BackendCostModel(
        matmul_gflops=2 * size**3 / multiply / 1e9,
        memory_gb_per_s=4 * elements / read / 1e9,
        dispatch_us=call * 1e6,
        node_us=typical.node_us,
    )


def _least(call: Any, seconds: float) -> float:
    call()  # what the first call does only once
    best, ends = float("inf"), time.perf_counter() + seconds
    while True:
        started = time.perf_counter()
        call()
        stopped = time.perf_counter()
        best = min(best, stopped - started)
        if stopped >= ends:
            return best
