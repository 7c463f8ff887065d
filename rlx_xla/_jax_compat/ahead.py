"""JAX's door to compilers of absent devices: topologies, compile-only clients, what they made."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax._src import xla_bridge
from jax.errors import JaxRuntimeError
from jax.experimental import topologies
from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]
from jaxlib import xla_client as xc

from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.mlir import ir

ERRORS = (JaxRuntimeError, RuntimeError, ValueError, NotImplementedError, ir.MLIRError)
"""What a compiler's refusal is raised as."""

ROCM_PLUGIN = "jax_plugins.xla_rocm7"

_CYCLES = re.compile(r'"estimated_cycles":"(-?\d+)"')
_COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
)  # fmt: skip


def compile_only_devices(platform: str, name: str, options: Mapping[str, Any]) -> Sequence[Any]:
    """Devices of a topology that nothing runs on.

    Args:
        platform: ``tpu``, ``cuda`` or ``rocm``.
        name: what the compiler calls the topology; empty for a GPU.
        options: what else it takes.
    """
    if platform == "rocm":
        _register_rocm()
    return topologies.get_topology_desc(platform=platform, topology_name=name, **options).devices


def _register_rocm() -> None:
    """Register the plugin for AMD GPUs, which leaves itself out where it sees no GPU.

    Raises:
        RuntimeError: its library does not load; the loader's words are given.
    """
    found = importlib.util.find_spec(ROCM_PLUGIN)
    places = [] if found is None else list(found.submodule_search_locations or ())
    libraries = [path for place in places for path in Path(place).glob("xla_rocm_plugin.so")]
    if not libraries:
        raise RuntimeError(f"{ROCM_PLUGIN} has no library xla_rocm_plugin.so")
    try:
        ctypes.CDLL(str(libraries[0]))  # says which library is missing; JAX's words do not
    except OSError as error:
        raise RuntimeError(f"the plugin for ROCm does not load: {error}") from error
    if not xc.pjrt_plugin_loaded("rocm"):
        xla_bridge.register_plugin("rocm", priority=500, library_path=str(libraries[0]))


def compile_ahead(
    text: str,
    devices: Sequence[Any],
    partitions: int,
    compiler_options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile StableHLO text for the first ``partitions`` of compile-only devices."""
    chosen = list(devices)[:partitions]
    options = xc.CompileOptions()
    options.num_replicas, options.num_partitions = 1, partitions
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = 1, partitions
    build.use_spmd_partitioning = partitions > 1
    build.use_shardy_partitioner = True
    build.device_assignment = xc.DeviceAssignment.create(np.arange(partitions).reshape(1, -1))
    if compiler_options:
        options.env_option_overrides = list(compiler_options.items())
    context = mlir.new_context()
    module = mlir.parse_module(text, context)
    with context:
        module.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(
            ir.IntegerType.get_signless(32, context), partitions
        )
    client = chosen[0].client
    try:
        return client.compile(module, _jax.DeviceList(tuple(chosen)), options)
    except TypeError:  # jaxlib of jax 0.7 takes bytecode
        code = mlir.module_bytecode(module)
        return client.compile(code, _jax.DeviceList(tuple(chosen)), options)


def describe(executable: Any) -> dict[str, Any]:
    """What a compiled program is: text, bytes by kind, cost; what cannot be had is left out."""
    found: dict[str, Any] = {"notes": []}

    def take(name: str, read: Callable[[], Any]) -> Any:
        try:
            found[name] = read()
        except (RuntimeError, ValueError, AttributeError, TypeError) as error:
            found["notes"].append(f"{name}: {' '.join(str(error).split())[:200]}")
        return found.get(name)

    hlo = take("hlo", lambda: "\n".join(m.to_string() for m in executable.hlo_modules()))
    take("memory", lambda: _memory(executable.get_compiled_memory_stats()))
    take("cost", lambda: _numbers(executable.cost_analysis()))
    if hlo:
        cycles = [int(n) for n in _CYCLES.findall(hlo)]
        if cycles:
            found["cycles"] = sum(n for n in cycles if n > 0)
        found["fusions"] = len(re.findall(r" fusion\(", hlo))
        found["collectives"] = collectives(hlo)
    return found


def collectives(hlo: str) -> dict[str, dict[str, int]]:
    """Collective operations of optimised HLO: how many, and bytes of their results."""
    made: dict[str, dict[str, int]] = {}
    for kind in _COLLECTIVES:
        for shapes in re.findall(rf"= (.+?) {kind}(?:-start)?\(", hlo):
            entry = made.setdefault(kind, {"count": 0, "bytes": 0})
            entry["count"] += 1
            entry["bytes"] += _bytes(shapes)
    return made


def _bytes(shapes: str) -> int:
    total = 0
    for dtype, sizes in re.findall(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]", shapes):
        width = 1 if dtype == "pred" else max(1, int(re.findall(r"\d+", dtype)[0]) // 8)
        total += width * int(np.prod([int(n) for n in sizes.split(",") if n] or [1]))
    return total


def _memory(stats: Any) -> dict[str, int]:
    names = {
        "argument": "argument_size_in_bytes",
        "output": "output_size_in_bytes",
        "alias": "alias_size_in_bytes",
        "temp": "temp_size_in_bytes",
        "code": "generated_code_size_in_bytes",
    }
    return {name: int(getattr(stats, attribute)) for name, attribute in names.items()}


def _numbers(cost: Any) -> dict[str, float]:
    if isinstance(cost, list):
        (cost,) = cost
    return {str(k): float(v) for k, v in dict(cost or {}).items() if "{" not in str(k)}


def to_json(found: Mapping[str, Any]) -> str:
    """The description without its text, as one line."""
    return json.dumps({k: v for k, v in found.items() if k != "hlo"})
