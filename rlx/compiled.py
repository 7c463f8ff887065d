"""``CompiledGraph``: a compiled graph with its params, ready to run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast, final

import numpy as np

from rlx import dims
from rlx.backend import AbstractBackend
from rlx.deferred import Specialization, SpecializationCache, Specializations
from rlx.dtypes import DType, as_dtype
from rlx.errors import DimError, DTypeError, RunError, did_you_mean
from rlx.host_values import python_array
from rlx.ir.graph import Graph, Value
from rlx.options.compile import CompileOptions
from rlx.report import CompileReport
from rlx.signature import Signature
from rlx.types import TensorType

Build = Callable[[Mapping[str, int], str], Specialization]

_CONVERTIBLE = {
    (DType.F32, DType.F16),
    (DType.F32, DType.BF16),
    (DType.F16, DType.F32),
    (DType.BF16, DType.F32),
}
"""Dtypes that ``set_param`` converts between; anything else is refused."""


@final
class CompiledGraph:
    """A graph compiled for one device.

    ``compiled(x)`` takes the caller's arguments (those of the traced function without params) and
    returns device arrays in the caller's structure. ``run`` takes and returns NumPy arrays by
    name. Any number of threads may call; ``set_params`` swaps one binding, so that a call sees all
    old or all new params.

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
        "_declared",
        "_lock",
        "_options",
        "_params",
        "_static",
        "graph",
        "signature",
    )

    __call__: Callable[..., Any]

    def __init__(
        self,
        backend: AbstractBackend,
        graph: Graph,
        signature: Signature,
        options: CompileOptions,
        build: Build,
    ) -> None:
        """Hold a graph; a static one compiles now, one with symbolic dims at its first call."""
        self.graph = graph
        self.signature = signature
        self._backend = backend
        self._options = options
        self._params: dict[str, Any] = {}
        self._declared = {v.name: v.type for v in graph.params}
        self._lock = threading.Lock()
        self._cache = SpecializationCache(
            build, options.specialization_cache_size, publish=self._bind_params
        )
        self._static = self._cache.get({}) if not graph.symbols else None
        self.__call__ = self._deferred_call if self._static is None else self._static.call

    @property
    def device(self) -> str:
        """Name of the device."""
        return self._backend.device

    def __repr__(self) -> str:
        return f"<CompiledGraph {self.graph.name!r} on {self.device}>"

    def set_param(self, name: str, value: Any) -> None:
        """Bind one param; see ``set_params``."""
        self.set_params({name: value})

    def set_params(self, values: Mapping[str, Any]) -> None:
        """Bind params: all of them at once for calls that start afterwards.

        f32 values for an f16 or bf16 param (and back) are converted; Python numbers and lists
        adopt the param's dtype.

        Raises:
            RunError: an unknown name, another dtype or another shape; all problems at once, and
                then nothing is changed.
        """
        _require_mapping("set_params", "param name → array", values)
        declared = self._declared
        problems: list[str] = []
        placed: dict[str, Any] = {}
        for name, value in values.items():
            if name not in declared:
                listing = _listing(self.graph.params)
                problems.append(
                    f"set_param: unknown param {name!r}; params are {listing}."
                    f"{did_you_mean(name, declared)}"
                )
                continue
            try:
                host = _param_value(name, value, declared[name])
            except RunError as error:
                problems.append(str(error))
                continue
            placed[name] = host
        if problems:
            raise RunError("\n".join(problems))
        on_device = {n: self._backend.to_device(v, declared[n]) for n, v in placed.items()}
        with self._lock:  # of two callers the later one wins everywhere
            self._params = {**self._params, **on_device}
            for program in self._cache.programs():
                program.executable.bind(on_device)

    def set_param_typed(self, name: str, data: bytes, dtype: DType | str) -> None:
        """Bind a param from raw little-endian bytes of a dtype, in C order.

        Raises:
            RunError: the number of bytes does not fit, or see ``set_params``.
        """
        if name in self._declared:
            where = f"set_param_typed: param {name!r}"
            array = _from_bytes(where, data, dtype, self._declared[name])
        else:
            array = np.frombuffer(data, np.uint8)
        self.set_params({name: array})

    def finalize_params(self) -> None:
        """Check that every param is bound.

        Raises:
            RunError: some are not; all are listed.
        """
        missing = [v for v in self.graph.params if v.name not in self._params]
        if missing:
            raise RunError(
                f"finalize_params: every param is required; not set: {_listing(missing)}. "
                "Use set_param or set_params."
            )

    def params(self) -> dict[str, Any]:
        """Bound params as device arrays, by name."""
        return dict(self._params)

    def run(
        self, inputs: Mapping[str, Any] | None = None, *, outputs: Sequence[int] | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """Run with inputs by name; return NumPy arrays.

        Args:
            inputs: one array per graph input, in the declared dtype and shape.
            outputs: indices of the outputs to read back, or None for all.

        Raises:
            RunError: missing or unknown inputs, another dtype or shape, or params that are not
                set.
        """
        arrays = self._ordered({} if inputs is None else inputs)
        wanted = self._output_indices(outputs)
        results = self._program(arrays).executable.fast_call(*arrays)
        return [self._backend.from_device(results[i]) for i in wanted]

    def run_typed(
        self, inputs: Mapping[str, tuple[bytes, DType | str]]
    ) -> list[tuple[bytes, DType]]:
        """Run with raw little-endian bytes by name; return bytes with dtypes.

        A graph with symbolic dims takes sizes from the number of bytes, as RLX does.

        Raises:
            RunError: as ``run``; DimError: sizes cannot be inferred.
        """
        self._check_names(inputs)
        for name, pair in cast("Mapping[str, object]", inputs).items():
            if not isinstance(pair, tuple) or len(cast("tuple[Any, ...]", pair)) != 2:
                found = type(cast("object", pair)).__name__
                raise RunError(
                    f"run_typed: input {name!r} is required to be (bytes, dtype); got {found}."
                )
        lengths = {
            name: len(data) // max(1, as_dtype(dtype).itemsize)
            for name, (data, dtype) in inputs.items()
        }
        binding: Mapping[str, int] = {}
        if self.graph.symbols:
            declared = [(v.name, v.type.shape) for v in self.graph.inputs]
            binding = dict(dims.infer_bindings_from_lengths(declared, lengths).items())
        arrays = {
            v.name: _from_bytes(
                f"run_typed: input {v.name!r}", *inputs[v.name], v.type.bind(binding)
            )
            for v in self.graph.inputs
        }
        found = self.run(arrays)
        return [(a.tobytes(), as_dtype(a.dtype)) for a in found]

    def report(self) -> CompileReport:
        """What the last compile decided and cost.

        Raises:
            RunError: nothing has been compiled yet (symbolic dims, and no call so far).
        """
        return self._latest("report").report

    def stablehlo(self) -> str:
        """StableHLO text of the program used last."""
        return self._latest("stablehlo").executable.stablehlo()

    def cost(self) -> dict[str, float]:
        """XLA's estimates for the program used last, such as ``flops`` and ``bytes accessed``."""
        return self._latest("cost").executable.cost()

    def memory(self) -> dict[str, int]:
        """Bytes of the program used last: ``argument``, ``output``, ``temp``, ``code``."""
        return self._latest("memory").executable.memory()

    def specializations(self) -> Specializations:
        """Records of the compiled programs, with ``hits``, ``misses`` and ``evictions``."""
        return self._cache.snapshot()

    def warm(self, bindings: Iterable[Mapping[str, int]]) -> None:
        """Compile for bindings before the first call with them.

        Raises:
            DimError: a binding lacks a symbol, or names an unknown one.
        """
        if isinstance(bindings, Mapping) or not isinstance(cast("object", bindings), Iterable):
            raise DimError(
                f"warm: a list of bindings, such as [{{'n': 4}}], is required; got {bindings!r}."
            )
        for binding in bindings:
            if not isinstance(cast("object", binding), Mapping):
                raise DimError(f"warm: a binding is a mapping (symbol → size); got {binding!r}.")
            sizes = dict(binding.items())
            if tuple(sorted(sizes)) != self.graph.symbols:
                raise DimError(
                    f"warm: a binding is required to give a size to each of "
                    f"{', '.join(self.graph.symbols) or 'no symbols'}; got {sizes}."
                )
            self._cache.get(sizes)

    def _bind_params(self, made: Specialization) -> None:
        if self._params:
            made.executable.bind(self._params)

    def _deferred_call(self, *args: Any, **kwargs: Any) -> Any:
        arrays = self.signature.leaves(args, kwargs)
        if len(arrays) != len(self.graph.inputs):
            raise RunError(
                f"call: required {len(self.graph.inputs)} inputs ({_listing(self.graph.inputs)}); "
                f"got {len(arrays)}."
            )
        return self._program(arrays).call(*args, **kwargs)

    def _program(self, arrays: Sequence[Any]) -> Specialization:
        if self._static is not None:
            return self._static
        shapes = {v.name: _shape(v, x) for v, x in zip(self.graph.inputs, arrays, strict=True)}
        declared = [(v.name, v.type.shape) for v in self.graph.inputs]
        known = {v.name: v.type.shape for v in self.graph.params if v.type.symbols}
        shapes.update({n: tuple(self._params[n].shape) for n in known if n in self._params})
        declared += [(n, s) for n, s in known.items() if n in self._params]
        return self._cache.get(dict(dims.infer_bindings(declared, shapes).items()))

    def _ordered(self, inputs: Mapping[str, Any]) -> list[Any]:
        self._check_names(inputs)
        return [_adopt(v.name, inputs[v.name], v.type) for v in self.graph.inputs]

    def _check_names(self, inputs: Mapping[str, Any]) -> None:
        _require_mapping("run", "input name → array", inputs)
        names = {v.name: v.type for v in self.graph.inputs}
        unknown = [name for name in inputs if name not in names]
        listing = _listing(self.graph.inputs) if unknown or len(inputs) < len(names) else ""
        if unknown:
            hint = did_you_mean(unknown[0], names)
            if any(v.name == unknown[0] for v in self.graph.params):
                hint = " It is a param: use set_param."
            raise RunError(f"run: unknown input {unknown[0]!r}; inputs are {listing}.{hint}")
        missing = [name for name in names if name not in inputs]
        if missing:
            raise RunError(
                f"run: every input is required; missing {', '.join(map(repr, missing))}. "
                f"Inputs are {listing}."
            )

    def _output_indices(self, outputs: Sequence[int] | None) -> Sequence[int]:
        count = len(self.graph.outputs)
        if outputs is None:
            return range(count)
        if not isinstance(cast("object", outputs), Sequence | np.ndarray):
            raise RunError(f"run: outputs is a list of numbers, or None; got {outputs!r}.")
        wrong: list[object] = []
        for index in cast("Sequence[object]", outputs):
            whole = int(cast("int", index)) if isinstance(index, int | np.integer) else count
            if not -count <= whole < count:
                wrong.append(cast("object", index))
        if wrong:
            raise RunError(f"run: outputs are numbered 0 to {count - 1}; got {wrong[0]!r}.")
        return outputs

    def _latest(self, what: str) -> Specialization:
        latest = self._cache.latest()
        if latest is None:
            raise RunError(
                f"{what}: the graph's dims {', '.join(self.graph.symbols)} are symbolic and "
                "nothing has been compiled yet. Call it once, or use warm([{...}])."
            )
        return latest


def _require_mapping(where: str, what: str, given: object) -> None:
    if not isinstance(given, Mapping):
        raise RunError(f"{where}: a mapping ({what}) is required; got {type(given).__name__}.")


def _shape(leaf: Value, value: Any) -> tuple[int, ...]:
    try:
        return tuple(np.shape(value))
    except ValueError as error:
        raise RunError(
            f"call: argument {leaf.name!r} is required to be {leaf.type}; "
            "got lists of different lengths. Pass an array."
        ) from error


def _listing(values: Sequence[Value]) -> str:
    return ", ".join(f"{v.name!r}: {v.type}" for v in values) or "none"


def _adopt(name: str, value: Any, type_: TensorType) -> Any:
    """Lists take the declared dtype, as Python numbers do."""
    if isinstance(value, list | tuple):
        return python_array(f"run: input {name!r}", value, type_.dtype)
    return value


def _param_value(name: str, value: Any, type_: TensorType) -> Any:
    wanted = type_.dtype
    if isinstance(value, bool | int | float | complex | list | tuple):
        value = python_array(f"set_param: param {name!r}", value, wanted)
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        value = np.asarray(value)
    try:
        found = as_dtype(np.dtype(value.dtype))
    except (DTypeError, TypeError) as error:
        raise RunError(
            f"set_param: param {name!r} is required to be {type_}; got {value.dtype}. "
            "Pass an array of that type."
        ) from error
    shape = tuple(int(n) for n in value.shape)
    if not _fits(shape, type_):
        raise RunError(
            f"set_param: param {name!r} is required to be {type_}; got {TensorType(found, shape)}. "
            "Reshape or transpose it."
        )
    if found is wanted:
        return value
    if (found, wanted) in _CONVERTIBLE:
        return np.asarray(value).astype(wanted.numpy)
    raise RunError(
        f"set_param: param {name!r} is required to be {type_}; got {TensorType(found, shape)}. "
        f"Convert it with .astype({wanted.numpy.name!r})."
    )


def _fits(shape: tuple[int, ...], type_: TensorType) -> bool:
    if len(shape) != type_.rank:
        return False
    return all(not isinstance(d, int) or d == n for d, n in zip(type_.shape, shape, strict=True))


def _from_bytes(
    where: str, data: bytes, dtype: DType | str, type_: TensorType
) -> np.ndarray[Any, Any]:
    given = as_dtype(dtype)
    count = 1
    for dim in type_.shape:
        count *= dims.evaluate(dim, {})
    if len(data) != count * given.itemsize:
        raise RunError(
            f"{where} is required to be {type_}, {count} elements of {given} in "
            f"{count * given.itemsize} bytes; got {len(data)} bytes."
        )
    sizes = [dims.evaluate(d, {}) for d in type_.shape]
    return np.frombuffer(data, given.numpy).reshape(sizes)
