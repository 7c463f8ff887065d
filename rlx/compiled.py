"""``CompiledGraph``: a compiled graph with its params, ready to run."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np

from rlx import call_checks, dims
from rlx.capabilities import Capabilities
from rlx.deferred import Specialization, SpecializationCache, Specializations
from rlx.dtypes import DType, as_dtype
from rlx.errors import RunError
from rlx.hidden import SEED
from rlx.ir.graph import Graph, Value
from rlx.kept import KeptInputs, check_feeds
from rlx.options.compile import CompileOptions
from rlx.options.rng import RngOptions
from rlx.param_store import ParamStore
from rlx.param_values import from_bytes, input_value, listing
from rlx.report import CompileReport
from rlx.run_handle import RunHandle
from rlx.signature import Signature
from rlx.specializing import Plan
from rlx.warming import warm_bindings, warm_up

if TYPE_CHECKING:
    from rlx.compiler import Compiler


@final
class CompiledGraph:
    """A graph compiled for one device.

    ``compiled(x)`` takes the caller's arguments (those of the traced function without params) and
    returns device arrays in the caller's structure. ``run`` takes and returns NumPy arrays by
    name. Any number of threads may call; ``set_params`` swaps one binding, so that a call sees all
    old or all new params. With kept inputs one call runs at a time; ``clone`` gives each thread
    its own.

    Attributes:
        graph: what was compiled, before passes.
        signature: names and structure of inputs and outputs.
    """

    # ``__call__`` is a slot that holds the specialised function itself: calling the object costs
    # no extra Python frame (a method that forwards costs 60 ns and packs the arguments again).
    __slots__ = (
        "__call__",
        "__weakref__",
        "_backend",
        "_cache",
        "_compiler",
        "_fed",
        "_fed_names",
        "_kept",
        "_lock",
        "_narrow",
        "_params",
        "_static",
        "graph",
        "signature",
    )

    __call__: Callable[..., Any]

    def __init__(self, compiler: Compiler) -> None:
        """Hold a graph; a static one compiles now, one with symbolic dims at its first call."""
        self._start(compiler)
        if not self.graph.symbols:
            self._static = self._cache.get({})
            self._kept.move(self._static)
        self._choose_call()

    def _start(self, compiler: Compiler) -> None:
        self.graph: Graph = compiler.graph
        self.signature: Signature = compiler.signature
        self._compiler = compiler
        self._backend = compiler.backend
        self._lock = threading.RLock()
        self._static: Specialization | None = None
        self._keep_inputs(compiler.options.resident)
        self._cache = SpecializationCache(
            compiler.build,
            compiler.options.specialization_cache_size,
            publish=self._bind_all,
            name=self.graph.name,
            axes=compiler.axes(),
        )
        self._params = ParamStore(self._backend, self.graph, compiler.fixed, self._publish)

    @property
    def device(self) -> str:
        """Name of the device."""
        return self._backend.device

    @property
    def rng(self) -> RngOptions:
        """The policy that random ops draw by."""
        return self._compiler.options.rng

    def __repr__(self) -> str:
        return f"<CompiledGraph {self.graph.name!r} on {self.device}>"

    def set_param(self, name: str, value: Any) -> None:
        """Bind one param; see ``set_params``."""
        self.set_params({call_checks.require_name("set_param", name): value})

    def set_params(self, values: Mapping[str, Any]) -> None:
        """Bind params: all of them at once for calls that start afterwards.

        f32, f16 and bf16 values are converted into each other; Python numbers and lists adopt the
        param's dtype.

        Raises:
            RunError: an unknown name, another dtype or another shape, or a param that
                ``CompileOptions.param_bindings`` fixed; all problems at once, and then nothing is
                changed.
        """
        call_checks.require_mapping("set_params", "param name → array", values)
        self._params.set(values)

    def set_param_typed(self, name: str, data: bytes, dtype: DType | str) -> None:
        """Bind a param from raw little-endian bytes of a dtype, in C order.

        f32, f16 and bf16 are converted into each other; ``u8`` for a param of another dtype of at
        most 8 bits means its packed bits.

        Raises:
            RunError: the number of bytes does not fit, or see ``set_params``.
        """
        self._params.set_typed(name, data, dtype)

    def set_param_range(self, name: str, offset: int, data: bytes) -> None:
        """Replace some bytes of a param that is set; the array is uploaded again.

        Args:
            name: of the param.
            offset: of the first byte, in the param's dtype and C order.
            data: little-endian bytes.

        Raises:
            RunError: the param is unknown, fixed or not set, or the range is not inside it.
        """
        self._params.set_range(name, offset, data)

    def share_params_from(self, other: CompiledGraph) -> None:
        """Bind the params that another graph has bound under the same names.

        On one device the arrays themselves are shared: nothing is copied.

        Raises:
            RunError: as ``set_params``; none of the names is a param of this graph.
        """
        mine = {v.name for v in self.graph.params}
        given = call_checks.params_of("share_params_from", other)
        shared = {name: value for name, value in given.items() if name in mine}
        if not shared:
            raise RunError(
                f"share_params_from: params in common are required ({listing(self.graph.params)}); "
                f"{other.graph.name!r} has bound {', '.join(map(repr, other.params())) or 'none'}."
            )
        self._params.set(shared)

    def finalize_params(self) -> None:
        """Check that every param is bound, and compute what depends on them alone.

        Raises:
            RunError: some are not; all are listed.
        """
        programs = self._cache.programs()
        needed = {n for program in programs for n in program.params} if programs else None
        missing = self._params.missing(needed)
        if missing:
            raise RunError(
                f"finalize_params: every param is required; not set: {listing(missing)}. "
                "Use set_param or set_params."
            )
        for program in programs:
            if program.refresh is not None:
                program.refresh()

    def params(self) -> dict[str, Any]:
        """Bound params as device arrays, by name."""
        return dict(self._params.values)

    def run(
        self, inputs: Mapping[str, Any] | None = None, *, outputs: Sequence[int] | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """Run with inputs by name; return NumPy arrays.

        Args:
            inputs: one array per graph input, in the declared dtype and shape (f32 arrays for an
                f16 or bf16 input are converted); a kept input only to give it a value.
            outputs: indices of the outputs to read back, or None for all.

        Raises:
            RunError: missing or unknown inputs, another dtype or shape, or params that are not
                set.
        """
        results, wanted = self._launch("run", inputs, outputs)
        return [self._backend.from_device(results[i]) for i in wanted]

    def run_async(
        self, inputs: Mapping[str, Any] | None = None, *, outputs: Sequence[int] | None = None
    ) -> RunHandle:
        """Start a run as ``run`` does, and return a handle; nothing is read back yet.

        An output that feeds a kept input is consumed by the next run: read it before, or leave it
        out of ``outputs``.

        Raises:
            RunError: as ``run``.
        """
        results, wanted = self._launch("run_async", inputs, outputs)
        places = [i % len(results) for i in wanted]
        return RunHandle(self._backend, [results[i] for i in places], places)

    def run_pipelined(
        self,
        sets: Iterable[Mapping[str, Any]],
        *,
        outputs: Sequence[int] | None = None,
        depth: int = 2,
    ) -> list[list[np.ndarray[Any, Any]]]:
        """Run once for each set of inputs, starting runs before earlier ones are read back.

        Args:
            sets: inputs of each run, as ``run`` takes them.
            outputs: indices of the outputs to read back, or None for all.
            depth: most runs under way at once; ≥ 1.

        Raises:
            RunError: as ``run``.
        """
        if not isinstance(cast("object", depth), int) or depth < 1:
            raise RunError(f"run_pipelined: depth is required to be an int ≥ 1; got {depth!r}.")
        if outputs is None and self._kept.feeds:  # what a later run consumes is read at once
            depth = 1
        waiting: deque[RunHandle] = deque()
        found: list[list[np.ndarray[Any, Any]]] = []
        for inputs in call_checks.require_sets("run_pipelined", sets):
            if len(waiting) == depth:
                found.append(waiting.popleft().result())
            waiting.append(self.run_async(inputs, outputs=outputs))
        return found + [handle.result() for handle in waiting]

    def run_typed(
        self, inputs: Mapping[str, tuple[bytes, DType | str]]
    ) -> list[tuple[bytes, DType]]:
        """Run with raw little-endian bytes by name; return bytes with dtypes.

        f32, f16 and bf16 are converted into the declared dtype. A graph with symbolic dims takes
        sizes from the number of bytes, as RLX does.

        Raises:
            RunError: as ``run``; DimError: sizes cannot be inferred.
        """
        self._check_names("run_typed", inputs)
        for name, pair in cast("Mapping[str, object]", inputs).items():
            if not isinstance(pair, tuple) or len(cast("tuple[Any, ...]", pair)) != 2:
                found = type(cast("object", pair)).__name__
                raise RunError(
                    f"run_typed: input {name!r} is required to be (bytes, dtype); got {found}."
                )
        given = [v for v in self.graph.inputs if v.name in inputs]
        lengths = {
            name: len(data) // max(1, as_dtype(dtype).itemsize)
            for name, (data, dtype) in inputs.items()
        }
        binding: Mapping[str, int] = {}
        if self.graph.symbols:
            declared = [(v.name, v.type.shape) for v in given]
            binding = dict(dims.infer_bindings_from_lengths(declared, lengths).items())
        arrays = {
            v.name: from_bytes(
                f"run_typed: input {v.name!r}", *inputs[v.name], v.type.bind(binding)
            )
            for v in given
        }
        return [(a.tobytes(), as_dtype(a.dtype)) for a in self.run(arrays)]

    def read_output_row(
        self, inputs: Mapping[str, Any] | None = None, *, output: int = 0, row: int = -1
    ) -> np.ndarray[Any, Any]:
        """Run, and read back one row (along axis 0) of one output.

        Raises:
            RunError: as ``run``, or the output has no such row.
        """
        return self.run_async(inputs, outputs=[output]).row(output, row)

    def keep(self, name: str, *, from_output: int, value: Any = None) -> None:
        """Let an input live on the device: each run consumes it and puts an output in its place.

        The graph is compiled again with the buffer shared between the two, so that an update of
        it in place copies nothing (``CompileOptions(resident=...)`` saves the first compile).
        Calls then leave the input out. Its first value is ``value``, or comes from ``set_kept``,
        from ``run`` under its name, or from a first call that passes every argument. The device
        array that a call returns for the output lives until the next call.

        Args:
            name: of the input.
            from_output: number of the output that replaces it; of the input's type.
            value: the first value; copied.

        Raises:
            CompileError: no such input, or the output has another type.
        """
        options = self._compiler.options
        feeds = {**options.resident, call_checks.require_name("keep", name): from_output}
        check_feeds(self.graph, feeds, "keep")
        if value is not None:  # before the compile, so that a wrong one changes nothing
            trial = KeptInputs(self._backend, self.graph, feeds, cast=options.cast_inputs)
            trial.set(name, value)
        self._recompile(
            options.replace(resident=feeds, donate=options.donate - {name}),
            f"keep {name!r} from output {from_output}",
        )
        if value is not None:
            self.set_kept(name, value)

    def set_kept(self, name: str, value: Any) -> None:
        """Give a kept input a value; it is copied.

        Raises:
            RunError: no such kept input, another type, or a call is using it.
        """
        self._kept.set(name, value)
        self._choose_call()

    def kept(self, name: str, *, row: int | None = None) -> np.ndarray[Any, Any]:
        """A copy of the value that a kept input has now, or of one row (along axis 0) of it.

        Raises:
            RunError: no such kept input, it has no value, or no such row.
        """
        value = self._kept.get(name)
        if row is not None:
            return np.array(RunHandle(self._backend, [value], [0]).row(0, row), copy=True)
        return np.array(self._backend.from_device(value), copy=True)

    def reset_kept(self, name: str | None = None) -> None:
        """Forget the value of one kept input, or of all: they are as they were declared.

        Raises:
            RunError: no such kept input, or a call is using it.
        """
        self._kept.reset(name)
        self._choose_call()

    def set_rng(self, rng: RngOptions) -> None:
        """Draw random numbers by another policy in runs that start afterwards.

        Another seed of the Philox generator is bound like a param. Another generator, another
        seed of ``ort`` and one inside a loop's body need another program; ``specializations``
        says so.

        Raises:
            RunError: ``rng`` is no RngOptions.
        """
        from rlx.passes.bind_rng import is_seed_in_program, uses_rng

        if not isinstance(cast("object", rng), RngOptions):
            raise RunError(f"set_rng: an RngOptions is required; got {type(rng).__name__}.")
        with self._lock:
            old = self.rng
            options = self._compiler.options.replace(rng=rng)
            if rng.backend is not old.backend and uses_rng(self.graph):
                why = f"rng: {old.backend.value} → {rng.backend.value}"
                self._recompile(options, why)
                return
            if rng.seed != old.seed and is_seed_in_program(self.graph, rng):
                self._recompile(options, f"rng seed: {old.seed} → {rng.seed}")
                return
            self._compiler.options = options
            for program in self._cache.programs():
                self._bind_seed(program)

    def clone(self) -> CompiledGraph:
        """A second graph over the same compiled programs: own params, kept inputs and records.

        Device arrays are shared, but for the values of kept inputs, which are copied.
        """
        with self._lock:
            twin = object.__new__(CompiledGraph)
            twin._start(self._compiler.with_options(self._compiler.options))
            twin._params.share(self._params)
            twin._cache.adopt({k: self._compiler.twin(p) for k, p in self._cache.kept().items()})
            if self._static is not None:
                twin._static = twin._cache.latest()
            twin._keep_inputs(self._kept.feeds)
            twin._kept.adopt(self._kept)
            twin._choose_call()
            return twin

    def capabilities(self) -> Capabilities:
        """What this graph can do on its device."""
        from rlx.passes.bind_rng import uses_rng

        return Capabilities(
            device=self.device,
            platform=self._backend.platform,
            symbols=self.graph.symbols,
            kept=tuple(self._kept.feeds),
            staged=any(p.refresh is not None for p in self._cache.programs()),
            random=uses_rng(self.graph),
            fixed_params=tuple(self._compiler.fixed),
            options=self._compiler.options,
        )

    def report(self) -> CompileReport:
        """What the last compile decided and cost.

        Raises:
            RunError: nothing has been compiled yet (symbolic dims, and no call so far).
        """
        return self._latest("report").report

    def stablehlo(self, *, kernels: bool = False) -> str:
        """StableHLO text of the program used last; with ``kernels`` as compiled, else portable."""
        return self._latest("stablehlo").executable.stablehlo(kernels=kernels)

    def cost(self) -> dict[str, float]:
        """XLA's estimates for the program used last, such as ``flops`` and ``bytes accessed``."""
        return self._latest("cost").executable.cost()

    def memory(self) -> dict[str, int]:
        """Bytes of the program used last: ``argument``, ``output``, ``temp``, ``code``."""
        return self._latest("memory").executable.memory()

    def specializations(self) -> Specializations:
        """Records of the compiled programs, with ``hits``, ``misses`` and ``evictions``."""
        return self._cache.snapshot()

    def warm(
        self,
        bindings: Iterable[Mapping[str, int]] | None = None,
        *,
        threads: int | None = None,
        progress: bool = False,
    ) -> None:
        """Compile for bindings before the first call with them.

        Args:
            bindings: sizes of all symbols; None means every combination of declared buckets.
            threads: how many compile at a time; None means as many as there are processors.
            progress: show a bar on the terminal.

        Raises:
            DimError: a binding lacks a symbol, or names an unknown one; no buckets are declared.
        """
        planner = self._compiler.planner
        sizes = warm_bindings(self.graph.symbols, planner.buckets, bindings)
        plans = {planner.plan(s, self._kept.feeds).key: s for s in sizes}
        warm_up(
            [
                lambda s=s: self._cache.get(s, self._plan(s))
                for key, s in plans.items()
                if not self._cache.holds(key)
            ],
            threads=threads,
            progress=f"warm {self.graph.name}" if progress else "",
        )

    def _publish(self, on_device: Mapping[str, Any]) -> None:
        for program in self._cache.programs():
            self._params.bind_to(program, on_device)

    def _bind_all(self, made: Specialization) -> None:
        self._params.bind_to(made, self._params.values)
        self._bind_seed(made)

    def _bind_seed(self, program: Specialization) -> None:
        if SEED in program.params:
            from rlx.passes.bind_rng import seed_words
            from rlx.types import TensorType

            words = seed_words(self.rng)
            seed = self._backend.to_device(words, TensorType(DType.U32, (2,)))
            program.executable.bind({SEED: seed})

    def _recompile(self, options: CompileOptions, why: str) -> None:
        """Go on with other options; kept values stay where the input is still kept."""
        with self._lock:
            before = self._kept
            self._compiler = self._compiler.with_options(options)
            self._cache.rebuild(self._compiler.build, why)
            if self._static is not None:
                self._static = self._cache.get({})
            self._keep_inputs(options.resident)
            self._kept.adopt(before)
            self._choose_call()

    def _keep_inputs(self, feeds: Mapping[str, int]) -> None:
        cast_inputs = self._compiler.options.cast_inputs
        self._kept = KeptInputs(self._backend, self.graph, feeds, cast=cast_inputs)
        self._narrow = self.signature.without(feeds)
        self._fed: tuple[Value, ...] = tuple(v for v in self.graph.inputs if v.name not in feeds)
        self._fed_names = {v.name for v in self._fed}
        if self._static is not None:
            self._kept.move(self._static)

    def _choose_call(self) -> None:
        if self._kept.missing():
            self.__call__ = self._first_call
        elif self._static is not None:
            self.__call__ = self._static.call
        else:
            self.__call__ = self._deferred_call

    def _first_call(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call that passes every argument, kept inputs too, which get their values from it."""
        if self.signature.key_inputs or self.signature.key_outputs:
            raise self._kept.missing_error()  # only the backend's own call unwraps keys
        arrays = self.signature.leaves(args, kwargs)
        if len(arrays) != len(self.graph.inputs):
            raise self._kept.missing_error()
        by_name = dict(zip((v.name for v in self.graph.inputs), arrays, strict=True))
        for name in self._kept.feeds:
            self._kept.set(name, by_name.pop(name))
        self._choose_call()
        return self.signature.rebuild(self._execute(list(by_name.values())))

    def _deferred_call(self, /, *args: Any, **kwargs: Any) -> Any:
        arrays = self._narrow.leaves(args, kwargs)
        if len(arrays) != len(self._fed):
            raise RunError(
                f"call: required {len(self._fed)} inputs ({listing(self._fed)}); got {len(arrays)}."
            )
        program, binding = self._program(arrays)
        with self._kept.held_by(program) if self._kept.feeds else contextlib.nullcontext():
            if program.is_padded:
                return self.signature.rebuild(program.run(arrays, binding))
            return program.call(*args, **kwargs)

    def _execute(self, arrays: Sequence[Any]) -> list[Any]:
        """Run with one value for each input that is not kept."""
        program, binding = self._program(arrays)
        if self._static is not None or not self._kept.feeds:
            return program.run(arrays, binding)
        with self._kept.held_by(program):
            return program.run(arrays, binding)

    def _launch(
        self, where: str, inputs: Mapping[str, Any] | None, outputs: Sequence[int] | None
    ) -> tuple[list[Any], Sequence[int]]:
        given: Mapping[str, Any] = {} if inputs is None else inputs
        self._check_names(where, given)
        known = self._compiler.planner.has_graph
        wanted = call_checks.output_indices(len(self.graph.outputs), outputs) if known else ()
        for name in self._kept.feeds:
            if name in given:
                self.set_kept(name, given[name])
        arrays = [input_value(v.name, given[v.name], v.type) for v in self._fed]
        with self._backend.asked_for():
            results = self._execute(arrays)
        return results, wanted if known else call_checks.output_indices(len(results), outputs)

    def _program(self, arrays: Sequence[Any]) -> tuple[Specialization, Mapping[str, int]]:
        if self._static is not None:
            return self._static, {}
        shapes = call_checks.shapes_of(self._fed, arrays, self.signature.key_inputs)
        if self._kept.feeds:
            shapes.update(self._kept.shapes())
        planner = self._compiler.planner
        declared = planner.declared()
        known = {v.name: v.type.shape for v in self.graph.params if v.type.symbols}
        values = self._params.values
        shapes.update({n: tuple(values[n].shape) for n in known if n in values})
        declared += [(n, s) for n, s in known.items() if n in values]
        binding = dict(dims.infer_bindings(declared, shapes).items())
        return self._cache.get(binding, self._plan(binding)), binding

    def _plan(self, binding: Mapping[str, int]) -> Plan | None:
        """How a call with these sizes is carried out; None compiles the sizes as they are."""
        planner = self._compiler.planner
        return None if planner.is_plain else planner.plan(binding, self._kept.feeds)

    def _check_names(self, where: str, inputs: Mapping[str, Any]) -> None:
        call_checks.require_mapping(where, "input name → array", inputs)
        plain = len(inputs) == len(self._fed_names) and self._fed_names.issuperset(inputs)
        if plain and not self._kept.feeds:
            return
        optional = set(self._kept.feeds).difference(self._kept.missing())
        call_checks.check_names(where, self.graph, inputs, optional)

    def _latest(self, what: str) -> Specialization:
        latest = self._cache.latest()
        if latest is None:
            raise RunError(
                f"{what}: the graph's dims {', '.join(self.graph.symbols)} are symbolic and "
                "nothing has been compiled yet. Call it once, or use warm([{...}])."
            )
        return latest
