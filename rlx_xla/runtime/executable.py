"""A compiled module with its parameters bound: the fastest way to call XLA from Python."""

from __future__ import annotations

import copy
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, final

import jax

from rlx.errors import CompileError, RunError, also
from rlx_xla._jax_compat import client as jax_client
from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.jaxpr import Tracer
from rlx_xla.runtime.arguments import (
    ArgumentRules,
    BufferType,
    argument_count_error,
    keyword_error,
    unknown_name_error,
)
from rlx_xla.runtime.calling import MISSING, BoundCall, CallParts, CallShape, segments
from rlx_xla.runtime.client import find_device, is_default
from rlx_xla.runtime.splice import SpliceProgram
from rlx_xla.runtime.spread import Spread

HOT_PATH_PROBLEM: str | None = jax_client.hot_path_problem()
"""Why every call takes the composable path with this jaxlib, or None."""

_PATHS = ("auto", "hot", "composable")


@final
class LoadedExecutable:
    """A StableHLO module, compiled for one device, with some arguments bound once.

    Calls take the *hot* path (XLA's client directly) unless JAX has to see them: under tracers,
    NaN checks or a profile they take the *composable* path (one primitive under ``jax.jit``).
    Both give the same results. Any number of threads may call; ``bind`` swaps all bound buffers
    at once. A donated buffer belongs to one call, resident buffers to one call at a time.

    Attributes:
        fast_call: plain function; takes the unbound arguments in order, returns the results as a
            list of ``jax.Array``. Holds no reference to this object's attributes.
        fast_call_one: the same for a program with one result: returns that.
        name: the program's name in logs and profiles.
        device: where it runs.
        argument_names: names of all arguments.
        argument_types: types of all arguments.
        result_types: types of the results.
        result_handlers: what turns result buffers into arrays, one each.
        bound: indices of the arguments that ``bind`` sets.
        unbound: indices of the arguments that a call passes.
        resident: index of a resident argument → the output that feeds it.
        compile_seconds: what the compile took, in seconds; 0.0 on the composable path.
        is_fresh: compiled here, not taken from a cache; only such a program can be serialised.
    """

    __slots__ = (
        "_bound_buffers",
        "_bytecode",
        "_call",
        "_committed",
        "_donated",
        "_effects",
        "_follows",
        "_keepalive",
        "_loaded",
        "_lock",
        "_memory",
        "_options",
        "_program",
        "_result_avals",
        "_rules",
        "_spread",
        "_watch",
        "argument_names",
        "argument_types",
        "bound",
        "compile_seconds",
        "device",
        "fast_call",
        "fast_call_one",
        "is_fresh",
        "name",
        "resident",
        "result_handlers",
        "result_types",
        "unbound",
    )

    fast_call: Callable[..., list[jax.Array]]
    fast_call_one: Callable[..., jax.Array]

    def __init__(
        self,
        module: mlir.ir.Module | str | bytes,
        arguments: Sequence[Any] | None = None,
        results: Sequence[Any] | None = None,
        *,
        device: str | jax_client.Device | None = None,
        name: str = "rlx",
        argument_names: Sequence[str] | None = None,
        bound: Sequence[int] = (),
        donated: Sequence[int] = (),
        resident: Mapping[int, int] | None = None,
        weak_results: Collection[int] = (),
        cast: bool = False,
        committed: bool | Literal["arguments"] | None = None,
        compiler_options: Mapping[str, Any] | None = None,
        host_callbacks: Sequence[Any] = (),
        effects: bool = False,
        keepalive: Any = None,
        serialized: bytes | None = None,
        path: str = "auto",
        spread: Spread | None = None,
        owned: bool = False,
    ) -> None:
        """Compile a module and prepare its call.

        Args:
            module: StableHLO with static types and a function ``main``; left as it is.
            arguments: types of main's arguments: (dtype, shape) pairs or objects with both; None
                reads them from the module.
            results: types of main's results, the same.
            device: where to run; JAX's default if None.
            name: shown in logs, profiles and events.
            argument_names: one for each argument; ``arg0``, ``arg1``, … if None.
            bound: indices of arguments that are set by ``bind`` and not passed by calls.
            donated: indices of unbound arguments whose buffers each call consumes.
            resident: index of a bound-like argument → index of the result that replaces it after
                each call; the buffer is donated.
            weak_results: indices of results whose type is weak in JAX's sense.
            cast: convert arguments of another dtype instead of refusing them.
            committed: whether results are tied to the device; ``"arguments"`` means: where an
                argument is, as ``jax.jit`` has it; None: unless it is JAX's default device.
            compiler_options: XLA flags by name.
            host_callbacks: Python callbacks of the module, in order. Such a module runs on the
                hot path only.
            effects: the module has side effects that ``jax.effects_barrier`` should wait for.
            keepalive: anything that must live as long as the program.
            serialized: what ``serialize`` gave for the same module; loaded in place of a compile.
                Where the module is bytecode and the types are given, they are believed: reading
                the module takes more memory than a small program.
            path: ``auto``, ``hot`` or ``composable``.
            spread: where arguments and results lie, for a program over several devices; it takes
                the composable path.
            owned: the module is verified and may be changed: it is compiled without a copy.

        Raises:
            CompileError: XLA refuses the module, or its types are not those given.
            DeviceError: no such device.
        """
        if path not in _PATHS:
            raise CompileError(
                f"compile {name}: path must be one of {', '.join(_PATHS)}; got {path!r}. Use auto."
            )
        self.name = re.sub(r"\W", "_", name) or "rlx"
        self.device = find_device(device)
        believed = serialized is not None and arguments is not None and results is not None
        if isinstance(module, bytes) and believed:
            self._bytecode = module
            self.argument_types = tuple(map(BufferType.of, arguments or ()))
            self.result_types = tuple(map(BufferType.of, results or ()))
        else:
            if not isinstance(module, mlir.ir.Module):
                module, owned = mlir.parse_module(module), True
            self._bytecode = mlir.module_bytecode(module)
            self.argument_types, self.result_types = self._types(module, arguments, results)
        self.argument_names = self._names(argument_names)
        self.resident = dict(resident or {})
        self._donated = tuple(donated)
        self.bound = tuple(sorted(bound))
        self._result_avals = tuple(
            jax_client.shaped_array(t.shape, t.dtype, weak_type=i in weak_results)
            for i, t in enumerate(self.result_types)
        )
        self._check_roles()
        outside = {*self.bound, *self.resident}
        self.unbound = tuple(i for i in range(len(self.argument_types)) if i not in outside)
        self._follows = committed == "arguments"
        committed = not is_default(self.device) if committed is None else committed is True
        self._rules = ArgumentRules(
            self.argument_names,
            self.argument_types,
            self.device,
            committed=committed,
            cast=cast,
            loose=self._follows,
            spread=spread,
        )
        self._spread = spread
        self._options = dict(compiler_options or {})
        self._keepalive = (keepalive, tuple(host_callbacks))
        self._lock = threading.Lock()
        self._bound_buffers: dict[int, jax.Array] = {}
        self.compile_seconds = 0.0
        self.is_fresh = False
        composable = path == "composable" or (path == "auto" and HOT_PATH_PROBLEM is not None)
        composable = composable or spread is not None
        if composable and host_callbacks:
            why = HOT_PATH_PROBLEM or "as asked"
            if spread is not None:
                why = f"which no program over several devices takes ({spread.mesh})"
            raise CompileError(
                f"compile {name}: a program with host callbacks must take the hot path; got path "
                f"{path!r}, {why}. Remove the callbacks or use auto."
            )
        self._loaded: Any = None
        self._memory: dict[str, int] | None = None
        if serialized is not None:
            self._loaded = jax_client.deserialize_executable(serialized, self.device)
        elif not composable:
            mine = module if owned and isinstance(module, mlir.ir.Module) else None
            self._loaded = self._compile(None if mine is None else self._marked(mine))
        self._program = self._splice_program(host_callbacks)
        if spread is not None:
            self._loaded = self._compile_spread()
        watch = "never" if path == "hot" or host_callbacks else "auto"
        self._watch = "always" if composable else watch
        self._effects, self._committed = effects, committed
        self._prepare_call()

    def call(self, *arguments: Any) -> list[jax.Array]:
        """Run with the unbound arguments, in order; ``fast_call`` is the same without a method.

        Raises:
            RunError: wrong number, kind, dtype, shape or device of an argument; an argument that
                is not bound; a buffer that was donated; a concurrent call with resident inputs.
        """
        return self.fast_call(*arguments)

    def bind(self, values: Mapping[int | str, Any], *, copy: bool = True) -> None:
        """Set bound or resident arguments; all at once for calls that start afterwards.

        Args:
            values: index or name of an argument → array or scalar of its type.
            copy: False lets host arrays be aliased where XLA can; they must then not be changed.
                Read-only arrays (memory-mapped files, say) are aliased in any case.

        Raises:
            RunError: unknown argument, wrong dtype or shape, or a resident input in use.
        """
        buffers: dict[int, jax.Array] = {}
        with jax_client.asked_for():
            for key, value in values.items():
                index = self._index(key)
                writeable = getattr(getattr(value, "flags", None), "writeable", True)
                buffers[index] = self._rules.admit(index, value, alias=not (copy and writeable))
        with self._lock:
            kept = {i: b for i, b in buffers.items() if i in self.resident}
            if kept:
                old = dict(zip(sorted(self.resident), self._call.resident(), strict=True))
                new = {**old, **kept}
                self._call.swap_resident(tuple(new[i] for i in sorted(new)))
            fixed = {i: b for i, b in buffers.items() if i not in self.resident}
            self._bound_buffers = {**self._bound_buffers, **fixed}
            hold = self._follows and any(
                b.committed
                for i, b in self._bound_buffers.items()
                if not self.argument_names[i].startswith(_CAPTURED)
            )
            self._call.swap_bound(segments(self._layout(), self._bound_buffers), hold)

    def clone(self) -> LoadedExecutable:
        """Return an executable of the same compiled program with nothing bound."""
        twin = copy.copy(self)
        twin._lock = threading.Lock()
        twin._bound_buffers = {}
        twin._prepare_call()
        return twin

    def bound_buffers(self) -> dict[int, jax.Array]:
        """Return the bound and resident buffers by argument index, those that are set."""
        kept = zip(sorted(self.resident), self._call.resident(), strict=True)
        return {**self._bound_buffers, **{i: b for i, b in kept if b is not None}}

    def missing(self) -> tuple[str, ...]:
        """Return the names of bound and resident arguments that have no value yet."""
        present = self.bound_buffers()
        wanted = sorted({*self.bound, *self.resident})
        return tuple(self.argument_names[i] for i in wanted if i not in present)

    def stablehlo(self, *, locations: bool = False) -> str:
        """Return the module's text as it was compiled, with or without source locations."""
        return mlir.module_text(self._module(), locations=locations)

    def hlo(self) -> str:
        """Return the text of the HLO that XLA made of the module."""
        return jax_client.optimized_hlo(self._executable())

    def cost(self) -> dict[str, float]:
        """Return XLA's estimate: ``flops`` and ``bytes accessed``, and what else it has."""
        found = jax_client.cost_analysis(self._executable())
        return {key: value for key, value in found.items() if "{" not in key}

    def memory(self) -> dict[str, int]:
        """Return bytes: ``argument``, ``output``, ``alias``, ``temp`` and ``code``."""
        if self._memory is None:
            self._memory = jax_client.memory_analysis(self._executable())
        return dict(self._memory)

    def serialize(self) -> bytes:
        """Return the compiled program for this machine and jaxlib; see ``serialized``.

        Raises:
            CompileError: the platform cannot serialise.
        """
        return jax_client.serialize_executable(self._executable(), self.device)

    @property
    def bytecode(self) -> bytes:
        """The module."""
        return self._bytecode

    @property
    def raw(self) -> Any:
        """The executable of XLA's client, compiled if this one takes the composable path."""
        return self._executable()

    def _module(self) -> mlir.ir.Module:
        return self._marked(mlir.parse_module(self._bytecode))

    def _marked(self, module: mlir.ir.Module) -> mlir.ir.Module:
        mlir.mark_donated(module, [*self._donated, *self.resident])
        return module

    def _compile(self, module: mlir.ir.Module | None = None) -> Any:
        start, hits = time.perf_counter(), jax_client.cache_hits()
        loaded = jax_client.compile_module(
            self._module() if module is None else module,
            self.device,
            name=self.name,
            compiler_options=self._options,
            host_callbacks=self._keepalive[1],
        )
        self.compile_seconds = time.perf_counter() - start
        self.is_fresh = hits == jax_client.cache_hits()
        return loaded

    def _compile_spread(self) -> Any:
        """Compile for several devices, as ``jax.jit`` does."""
        assert self._program is not None
        start = time.perf_counter()
        try:
            loaded = self._program.compile(self._rules.avals)
        except (jax_client.JaxRuntimeError, ValueError) as error:
            raise also(CompileError, type(error))(
                f"compile {self.name}: XLA must accept the module for several devices; it says: "
                f"{error}. Compile it without shardings to see whether they are the reason."
            ) from error
        self.compile_seconds = time.perf_counter() - start
        return loaded

    def _executable(self) -> Any:
        """Return the raw executable; the composable path compiles it when first asked."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._compile()
            return self._loaded

    def _splice_program(self, host_callbacks: Sequence[Any]) -> SpliceProgram | None:
        if host_callbacks:
            return None
        everything = (*self.argument_types, *self.result_types)
        return SpliceProgram(
            self.name,
            self._bytecode,
            self._result_avals,
            self.device.platform,
            donated=self._reusable(),
            wide=any(t.dtype.name in _WIDE for t in everything),
            compiler_options=self._options,
            spread=self._spread,
        )

    def _reusable(self) -> list[int]:
        """Return the donated arguments that a result can take over; jax.jit warns of others."""
        free = list(self.result_types)
        usable: list[int] = []
        for index in sorted({*self._donated, *self.resident}):
            if self.argument_types[index] in free:
                free.remove(self.argument_types[index])
                usable.append(index)
        return usable

    def _prepare_call(self) -> None:
        """Make the call functions, with nothing bound."""
        self._call = self._specialise()
        self._call.swap_bound(segments(self._layout(), {}))
        self.fast_call = self._call.call
        self.fast_call_one = self._call.call_one

    def _specialise(self) -> BoundCall:
        rules, committed = self._rules, self._committed
        one_device = self._spread is None
        avals = self._result_avals if one_device else ()
        self.result_handlers, tied = (
            tuple(jax_client.result_handler(a, rules.sharding, committed=c) for a in avals)
            for c in (committed, True)
        )
        if self._loaded is None or self._watch == "always":
            dispatch: Any = _never_dispatched
        elif self._effects:
            dispatch = jax_client.executor_with_tokens(self._loaded, self.device)
        else:
            dispatch = self._loaded.execute_sharded
        fed = tuple(self.resident[i] for i in sorted(self.resident))
        return BoundCall(
            CallShape(
                self._layout(),
                fed,
                effects=self._effects,
                one_device=one_device and jax_client.is_only_device(),
                follows=self._follows,
                watch=self._watch,
            ),
            CallParts(
                dispatch=dispatch,
                handlers=list(self.result_handlers),
                tied_handlers=list(tied),
                admit=rules.fast_admit(),
                composed=_never_dispatched if self._program is None else self._program.run,
                traced=self._traced,
                explain=self._explain,
                count_error=self._count_error,
                keyword_error=self._keyword_error,
                busy_error=self._busy_error,
            ),
            [rules.avals[i] for i in self.unbound],
            rules.sharding,
        )

    def _traced(
        self, arguments: tuple[Any, ...], bound: Any, resident: tuple[Any, ...]
    ) -> list[Any]:
        """Record a call under a JAX tracer; ``bound`` and ``resident`` are that call's own."""
        if self._program is None or self.resident:
            what = "resident inputs" if self.resident else "host callbacks"
            raise RunError(
                f"call of {self.name}: a program with {what} must be called with arrays; got a "
                "JAX tracer. Call it outside jit, grad and vmap."
            )
        del resident
        missing = self.missing()
        if missing:
            raise self._missing_error(missing)
        given = sum(value is not MISSING for value in arguments)
        if given != len(self.unbound):
            raise self._count_error(given)
        values: dict[int, Any] = {}
        for index, value in zip(self.unbound, arguments, strict=True):
            is_tracer = isinstance(value, Tracer)
            admit = self._rules.checked if is_tracer else self._rules.admit
            values[index] = admit(index, value)
        values.update(zip(self.bound, (b for run in bound for b in run), strict=True))
        return self._program.bind([values[i] for i in range(len(values))])

    def _explain(self, error: Exception, arguments: tuple[Any, ...], bound: Any) -> Exception:
        """Return the error that says what was wrong with a call that XLA refused."""
        missing = self.missing()
        if missing:
            explained: Exception = self._missing_error(missing)
        else:
            named = [*zip(self.unbound, arguments, strict=True)]
            named += zip(self.bound, (b for run in bound for b in run), strict=True)
            named += zip(sorted(self.resident), self._call.resident(), strict=True)
            gone = [self.argument_names[i] for i, buffer in named if buffer.is_deleted()]
            if not gone and "RESOURCE_EXHAUSTED" in str(error):
                explained = also(RunError, type(error))(
                    f"call of {self.name}: its buffers must fit the memory of {self.device}; XLA "
                    f"says: {error} Use smaller inputs, or a larger device."
                )
                explained.__cause__ = error
                return explained
            if not gone:
                return error
            explained = also(RunError, type(error))(
                f"call of {self.name}: every buffer must be alive; {', '.join(map(repr, gone))} "
                "was deleted or donated, maybe to a concurrent call. Pass a fresh array, or do "
                "not donate it."
            )
        explained.__cause__ = error
        return explained

    def _missing_error(self, missing: Sequence[str]) -> RunError:
        return RunError(
            f"call of {self.name}: every bound argument must have a value; "
            f"{', '.join(map(repr, missing))} has none. Set it with set_param, or bind of an "
            "executable."
        )

    def _count_error(self, found: int) -> RunError:
        return argument_count_error([self.argument_names[i] for i in self.unbound], found)

    def _keyword_error(self, found: str) -> RunError:
        return keyword_error([self.argument_names[i] for i in self.unbound], found)

    def _busy_error(self) -> RunError:
        names = ", ".join(repr(self.argument_names[i]) for i in sorted(self.resident))
        return RunError(
            f"call of {self.name}: a resident input belongs to one call at a time; {names} is in "
            "use by a concurrent call. Give each thread its own clone."
        )

    def _layout(self) -> str:
        roles = {**dict.fromkeys(self.bound, "b"), **dict.fromkeys(self.resident, "r")}
        return "".join(roles.get(i, "a") for i in range(len(self.argument_types)))

    def _index(self, key: int | str) -> int:
        settable = sorted({*self.bound, *self.resident})
        if isinstance(key, str):
            by_name = {self.argument_names[i]: i for i in settable}
            if key not in by_name:
                raise unknown_name_error(key, tuple(by_name))
            return by_name[key]
        if key not in settable:
            raise unknown_name_error(str(key), tuple(map(str, settable)))
        return key

    def _types(
        self, module: mlir.ir.Module, arguments: Sequence[Any] | None, results: Sequence[Any] | None
    ) -> tuple[tuple[BufferType, ...], tuple[BufferType, ...]]:
        found_arguments, found_results = mlir.main_types(module)
        sides = []
        for what, given, found in (
            ("arguments", arguments, found_arguments),
            ("results", results, found_results),
        ):
            actual = tuple(BufferType(dtype, shape) for dtype, shape in found)
            declared = actual if given is None else tuple(BufferType.of(t) for t in given)
            if declared != actual:
                raise CompileError(
                    f"compile {self.name}: {what} of @main must be "
                    f"({', '.join(map(str, declared))}); got ({', '.join(map(str, actual))}). "
                    "Correct the declared types or the module."
                )
            sides.append(actual)
        return sides[0], sides[1]

    def _names(self, names: Sequence[str] | None) -> tuple[str, ...]:
        count = len(self.argument_types)
        if names is None:
            return tuple(f"arg{i}" for i in range(count))
        if len(names) != count:
            raise CompileError(
                f"compile {self.name}: argument_names must have {count} names; got {len(names)}. "
                "Give one name for each argument of @main."
            )
        return tuple(names)

    def _check_roles(self) -> None:
        count, outputs = len(self.argument_types), len(self.result_types)
        roles = [*self.bound, *self.resident]
        wrong = [i for i in [*roles, *self._donated] if not 0 <= i < count]
        twice = [i for i in roles if roles.count(i) > 1]
        clash = [i for i in self._donated if i in roles]
        if wrong or twice or clash:
            raise CompileError(
                f"compile {self.name}: bound, resident and donated must be indices below {count}, "
                f"each with one role; got bound={self.bound}, resident={self.resident}, "
                f"donated={self._donated}. Correct the indices."
            )
        for index, output in self.resident.items():
            fits = 0 <= output < outputs and self.result_types[output] == self.argument_types[index]
            if not fits:
                raise CompileError(
                    f"compile {self.name}: the output that feeds resident input "
                    f"{self.argument_names[index]!r} must have its type "
                    f"{self.argument_types[index]}; got output {output} of "
                    f"({', '.join(map(str, self.result_types))}). Name another output."
                )


_CAPTURED = "captured/"
"""Names of what a function closes over start so; as under ``jax.jit`` it ties no results."""

_WIDE = frozenset({"int64", "uint64", "float64", "complex128"})


def _never_dispatched(*_: Any) -> Any:
    raise AssertionError("this way of running was ruled out when the call was made")
