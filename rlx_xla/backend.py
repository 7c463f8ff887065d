"""The backend that compiles with XLA, for every device that JAX reaches."""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

import jax

from rlx.backend import AbstractBackend, AbstractExecutable
from rlx.dtypes import DType
from rlx.errors import CompileError, RunError
from rlx.ir.graph import Graph, Node
from rlx.ir.op import Op
from rlx.ir.plan import Implementation, Lir, Refusals
from rlx.options.compile import CompileOptions
from rlx.sharding import Sharding
from rlx.signature import Signature
from rlx.types import TensorType
from rlx_xla._jax_compat import client as jax_client
from rlx_xla._jax_compat import keys, mlir
from rlx_xla._jax_compat.jaxpr import Tracer
from rlx_xla.kernels.base import Refused
from rlx_xla.kernels.calibration import all_bounds, described, open_all
from rlx_xla.kernels.select import choose, kernels_for
from rlx_xla.lowering.registry import LEAVES, PLATFORMS, add_platform, rule_for
from rlx_xla.runtime import allocator
from rlx_xla.runtime.cache import min_compile_seconds, program_cache, program_key
from rlx_xla.runtime.calling import rebuild_from, tree_call
from rlx_xla.runtime.client import (
    device_name,
    find_device,
    from_device,
    host_memory,
    plugin_platforms,
    spread_array,
    to_device,
)
from rlx_xla.runtime.executable import LoadedExecutable
from rlx_xla.runtime.program_cache import ProgramCache, ProgramKey
from rlx_xla.runtime.spread import jax_sharding, spread_of

_PLATFORMS = {"gpu": "cuda"}
_STRICT = {"xla_allow_excess_precision": False}
"""XLA flags of ``CompileOptions(strict=True)``: no rounding is left out."""


def create(device: str) -> AbstractBackend:
    """Return the backend of a device name (entry-point group ``rlx.backends``).

    Raises:
        DeviceError: no such device is attached.
    """
    return XlaBackend(device)


def plugins() -> dict[str, Callable[[str], AbstractBackend]]:
    """The platforms of installed PJRT plugins (entry point ``*`` of ``rlx.backends``)."""
    return dict.fromkeys(plugin_platforms(), create)


@final
class XlaBackend(AbstractBackend):
    """Compiles for one device through XLA."""

    def __init__(self, device: str) -> None:
        """Find the device."""
        self.jax_device = find_device(device)
        self.device = device_name(self.jax_device)
        kind = self.device.partition(":")[0]
        self.platform = _PLATFORMS.get(kind, kind)
        if kind not in PLATFORMS:
            add_platform(self.platform)

    def claims(self, op: type[Op]) -> bool:
        known = op.op_name in LEAVES or rule_for(op, self.platform) is not None
        return known or op.has_decompose or bool(kernels_for(op, self.platform))

    def has_kernels(self, op: type[Op]) -> bool:
        return bool(kernels_for(op, self.platform))

    def choose(self, node: Node, options: CompileOptions) -> Implementation | Refusals:
        return choose(node, self.platform, options.kernel_dispatch)

    def compile(
        self, lir: Lir, signature: Signature, options: CompileOptions
    ) -> AbstractExecutable:
        return XlaExecutable(self, lir, signature, options)

    def to_device(self, value: Any, type_: TensorType) -> Any:
        writeable = getattr(getattr(value, "flags", None), "writeable", True)
        return to_device(value, self.jax_device, copy=writeable)

    def part_to_device(self, part: Any, whole: Any, type_: TensorType) -> Any:
        return to_device(part, self.jax_device, copy=part.flags.writeable, weak=whole.weak_type)

    def spread(self, value: Any, type_: TensorType, sharding: Sharding) -> Any:
        if sharding.mesh.size == 1:
            return self.to_device(value, type_)
        return spread_array(value, jax_sharding(sharding, self.jax_device))

    def from_device(self, value: Any) -> Any:
        return from_device(value)

    def asked_for(self) -> contextlib.AbstractContextManager[None]:
        return jax_client.asked_for()

    def is_traced(self, value: Any) -> bool:
        return isinstance(value, Tracer)

    def resized(
        self, value: Any, split: Sequence[int], kept: Sequence[int], shape: Sequence[int]
    ) -> Any:
        wide = jax.numpy.reshape(value, tuple(split))
        part = wide[tuple(slice(0, n) for n in kept)]
        more = [(0, n - m) for n, m in zip(kept, part.shape, strict=True)]
        return jax.numpy.reshape(jax.numpy.pad(part, more), tuple(shape))

    def is_ready(self, value: Any) -> bool:
        return bool(value.is_deleted() or value.is_ready())


def _bounds_taken(lir: Lir, platform: str) -> list[str]:
    """Which bounds the choice of kernels went by, where one of theirs took or refused one."""
    if platform != "cpu":
        return []
    owners = {b.name.partition("/")[0] for b in all_bounds()}
    made = lir.plan.implementations
    told = (
        any(m.kind == "kernel" and m.name in owners for m in made.values())
        or _is_refused_by_bound(made, owners)
        or any(
            refusal.name in owners and "kernel_dispatch" not in refusal.reason
            for refused in lir.plan.decomposed_refusals.values()
            for refusal in refused
        )
    )
    return [f"kernel bounds: {described()}"] if told else []


def _is_refused_by_bound(made: Mapping[Node, Implementation], owners: Collection[str]) -> bool:
    """Whether some kernel would have been taken but for the bounds that hold."""
    asked: set[tuple[str, Op, tuple[TensorType, ...]]] = set()
    for node, choice in made.items():
        for refusal in choice.refused:
            if refusal.name not in owners or "kernel_dispatch" in refusal.reason:
                continue
            types = tuple(v.type for v in node.inputs)
            key = (refusal.name, node.op, types)
            if key not in asked:  # of equal nodes one tells for all
                asked.add(key)
                if _gains_without_bounds(refusal.name, node.op, types):
                    return True
    return False


def _gains_without_bounds(name: str, op: Op, types: Sequence[TensorType]) -> bool:
    """Whether a kernel refuses a node, and takes it where bounds hold no more."""
    for kernel in kernels_for(type(op), "cpu"):
        if kernel.name == name and isinstance(kernel.supports(op, types, "cpu"), Refused):
            with open_all():
                return not isinstance(kernel.supports(op, types, "cpu"), Refused)
    return False


@final
class XlaExecutable(AbstractExecutable):
    """A graph compiled by XLA; params are bound by name."""

    def __init__(
        self, backend: XlaBackend, lir: Lir, signature: Signature, options: CompileOptions
    ) -> None:
        """Lower and compile."""
        # Here, since a process that loads what it runs lowers nothing: this loads op families.
        from rlx_xla.lowering.module import lower_to_module
        from rlx_xla.runtime.flags import flags_for

        if backend.platform == "cpu":
            _require_room(lir.graph)
        started = time.perf_counter()
        emitters = {
            node: made.emit
            for node, made in lir.plan.implementations.items()
            if made.kind == "kernel"
        }
        borrowed = mlir.borrowed_context()  # not given back after an error
        lowered = lower_to_module(
            lir.graph, backend.platform, emitters=emitters, context=borrowed[0]
        )
        lower_seconds = time.perf_counter() - started
        graph = self._graph = lir.graph
        self._platform = backend.platform
        self._has_kernels = bool(emitters)  # rules that stand in for them are never compiled
        leaves = (*graph.inputs, *graph.params)
        fed = options.resident
        donated = (signature.donated | options.donate).difference(fed)
        asked = flags_for(graph, backend.platform, options)
        self.decisions = (*map(str, asked), *_bounds_taken(lir, backend.platform))
        flags = {
            **(_STRICT if options.strict else {}),
            **{flag.name: flag.value for flag in asked},
            **options.compiler_options,
        }
        resident = {i: fed[v.name] for i, v in enumerate(graph.inputs) if v.name in fed}
        consumed = [i for i, v in enumerate(graph.inputs) if v.name in donated]
        spread = spread_of(graph, backend.jax_device)
        # A program over several devices is JAX's own; its cache keeps it.
        kept = program_cache() if spread is None else None
        key = None
        if kept is not None and not lowered.host_callbacks and not lowered.keepalive:
            roles = {
                "params": len(graph.params),
                "donated": consumed,
                "resident": resident,
                "weak": sorted(signature.weak_outputs),
            }
            text = mlir.module_text(lowered.module)
            key = program_key(lir, text, backend.jax_device, roles, flags)
        build = functools.partial(
            LoadedExecutable,
            lowered.module,
            device=backend.jax_device,
            name=graph.name,
            argument_names=[v.name for v in leaves],
            bound=range(len(graph.inputs), len(leaves)),
            weak_results=signature.weak_outputs,
            donated=consumed,
            resident=resident,
            cast=options.cast_inputs,
            committed="arguments" if signature.tied is False else signature.tied,
            compiler_options=flags,
            host_callbacks=lowered.host_callbacks,
            effects=bool(graph.effects),
            keepalive=lowered.keepalive,
            spread=spread,
            owned=True,
        )
        self.cache_key = key  # what the compile cache has the program under, where it has it
        started = time.perf_counter()
        self.loaded = _from_disk(build, kept, key, graph.name)
        mlir.give_back(borrowed, len(self.loaded.bytecode))
        self.fast_call = self.loaded.fast_call
        phases = {"lower": lower_seconds, "xla": self.loaded.compile_seconds}
        if key is not None and not self.loaded.compile_seconds:
            phases["load"] = time.perf_counter() - started
        self.phases = phases
        if backend.platform == "cpu":
            self.decisions = (*self.decisions, *allocator.cost_lines(self.memory()))

    def caller(self, signature: Signature) -> Callable[..., Any]:
        fast = self.loaded.fast_call
        if signature.key_inputs or signature.key_outputs:
            return _key_caller(fast, signature)
        if signature.is_flat:
            if signature.single:
                return self.loaded.fast_call_one
            rebuild = list if signature.out_tree is None else rebuild_from(signature.out_tree)
            return fast if rebuild is list else _rebuilding_caller(fast, rebuild)
        return _tree_caller(fast, signature)

    def bind(self, params: Mapping[str, Any]) -> None:
        values: dict[int | str, Any] = {**params}
        self.loaded.bind(values)

    def resident(self) -> dict[str, Any]:
        buffers, names = self.loaded.bound_buffers(), self.loaded.argument_names
        return {names[i]: buffers[i] for i in self.loaded.resident if i in buffers}

    def clone(self) -> AbstractExecutable:
        twin = copy.copy(self)
        twin.loaded = self.loaded.clone()
        twin.fast_call = twin.loaded.fast_call
        return twin

    def stablehlo(self, *, kernels: bool = False) -> str:
        if kernels:
            return self.loaded.stablehlo()
        from rlx_xla.lowering.text import without_kernels

        return without_kernels(self._graph, self._platform, as_written=self._has_kernels)

    def cost(self) -> dict[str, float]:
        return self.loaded.cost()

    def memory(self) -> dict[str, int]:
        return self.loaded.memory()


def _from_disk(
    build: Callable[..., LoadedExecutable],
    kept: ProgramCache | None,
    key: ProgramKey | None,
    name: str,
) -> LoadedExecutable:
    """The program, from the compile cache where it is there; else compiled and kept."""
    if kept is None or key is None:
        return build()
    found = kept.get(key)
    if found is not None:
        try:
            return build(serialized=found)
        except CompileError:  # of another machine, or damaged before its checksum was made
            kept.drop(key)
    loaded = build()
    if loaded.is_fresh and loaded.compile_seconds >= min_compile_seconds():
        try:
            program = loaded.serialize()
        except CompileError:  # the platform has no such form
            return loaded
        kept.put(key, program, name, loaded.compile_seconds)
    return loaded


def _require_room(graph: Graph) -> None:
    """Refuse inputs, params and outputs that this machine cannot hold.

    XLA divides by zero, and ends the process, when it plans some results of 2^36 elements (jax
    0.12), so it is not asked. Twice the physical memory is allowed: there may be swap.
    """
    room = 2 * host_memory()
    for what, values in (
        ("input", graph.inputs),
        ("param", graph.params),
        ("output", graph.outputs),
    ):
        for index, value in enumerate(values):
            if value.type.dtype is not DType.TOKEN and value.type.nbytes > room:
                raise CompileError(
                    f"compile {graph.name}: every input, param and output is required to fit the "
                    f"memory of this machine, {room // 2:,} bytes; {what} "
                    f"{value.name or index} is {value.type}, {value.type.nbytes:,} bytes. Use "
                    "smaller sizes."
                )


def _rebuilding_caller(
    fast: Callable[..., list[Any]], rebuild: Callable[[Any], Any]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return rebuild(fast(*args, **kwargs))

    return call


def _tree_caller(fast: Callable[..., list[Any]], signature: Signature) -> Callable[..., Any]:
    """Positional and keyword pytrees; the common case without keywords is the quick one."""
    in_tree, fed = signature.in_tree, signature.fed or ()
    args_tree, kwargs_tree = in_tree.children()
    rebuild = rebuild_from(signature.out_tree)
    if all(fed) and kwargs_tree.num_leaves == 0:
        quick = tree_call(fast, args_tree, signature.out_tree)

        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs:
                raise _structure(in_tree, args, kwargs)
            return quick(*args)

        return call

    def general(*args: Any, **kwargs: Any) -> Any:
        leaves, found = jax.tree_util.tree_flatten((args, kwargs))
        if found != in_tree:
            raise _structure(in_tree, args, kwargs)
        return rebuild(fast(*(x for x, keep in zip(leaves, fed, strict=True) if keep)))

    return general


def _key_caller(fast: Callable[..., list[Any]], signature: Signature) -> Callable[..., Any]:
    """Unwrap PRNG keys among the inputs and wrap those among the outputs."""
    wrapped = [name in signature.key_inputs for name in signature.inputs]

    def call(*args: Any, **kwargs: Any) -> Any:
        flat = signature.leaves(args, kwargs)
        raw = [keys.raw(x) if is_key else x for x, is_key in zip(flat, wrapped, strict=True)]
        outputs = list(fast(*raw))
        for index, impl in signature.key_outputs.items():
            outputs[index] = keys.wrap_key(outputs[index], impl)
        return signature.rebuild(outputs)

    return call


def _structure(in_tree: Any, args: Any, kwargs: Any) -> RunError:
    return RunError(
        f"call: arguments are required in the structure that was traced, params left out: "
        f"{in_tree}; got {jax.tree_util.tree_structure((args, kwargs))}. Pass the same "
        "containers as when the function was traced."
    )
