"""``rlx_xla.jit``: a drop-in for ``jax.jit`` that runs RLX programs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, final, overload

import jax

from rlx.compiled import CompiledGraph
from rlx.errors import CompileError, RunError, TraceError
from rlx.options.compile import CompileOptions
from rlx.report import CompileReport
from rlx.session import Session
from rlx.types import TensorType
from rlx_xla._jax_compat import calls, keys
from rlx_xla._jax_compat import client as jax_client
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla.runtime.client import device_name, find_device
from rlx_xla.tracing import call_primitive
from rlx_xla.tracing.arguments import argument_names
from rlx_xla.tracing.jit_dims import DimSpecs, Ledger, group_key, with_specs
from rlx_xla.tracing.jit_keys import (
    CallKey,
    JitSpecialization,
    Storm,
    device_of,
    host_leaf,
    leaf_key,
)
from rlx_xla.tracing.trace import trace

_Array = jax_client.ArrayImpl
_context = calls.trace_context
_NOTHING: Any = ((), None, None, None, None)
"""No program is remembered; the third and later fields are never read, as no context is None."""

Names = str | Sequence[str]
Numbers = int | Sequence[int]


@overload
def jit(
    fn: Callable[..., Any],
    *,
    device: Any = None,
    options: CompileOptions | None = None,
    params: Numbers = (),
    static_argnums: Numbers | None = None,
    static_argnames: Names | None = None,
    donate_argnums: Numbers | None = None,
    donate_argnames: Names | None = None,
    dims: Any = None,
    buckets: Any = None,
    on_unsafe: str | None = None,
) -> JitFunction: ...


@overload
def jit(
    fn: None = None,
    *,
    device: Any = None,
    options: CompileOptions | None = None,
    params: Numbers = (),
    static_argnums: Numbers | None = None,
    static_argnames: Names | None = None,
    donate_argnums: Numbers | None = None,
    donate_argnames: Names | None = None,
    dims: Any = None,
    buckets: Any = None,
    on_unsafe: str | None = None,
) -> Callable[[Callable[..., Any]], JitFunction]: ...


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    device: Any = None,
    options: CompileOptions | None = None,
    params: Numbers = (),
    static_argnums: Numbers | None = None,
    static_argnames: Names | None = None,
    donate_argnums: Numbers | None = None,
    donate_argnames: Names | None = None,
    dims: Any = None,
    buckets: Any = None,
    on_unsafe: str | None = None,
) -> Any:
    """Compile a JAX function with RLX; follows ``jax.jit``.

    Called with arrays it runs a program compiled by ``rlx.Session``: one for each combination of
    types, structure, static values, device and JAX settings. Called with tracers (under ``grad``,
    ``vmap``, ``scan``, ``jax.jit`` …) it is the traced function; kernels are chosen after the
    transformation. Arrays that are sharded over several devices take that way too.

    Args:
        fn: the function; without it a decorator is returned.
        device: where to run: a name such as ``"cuda:1"`` or a ``jax.Device``; None follows
            committed arguments, as JAX does.
        options: how to compile.
        params: positions of arguments that are kept on the device between calls. They are passed
            on every call, and bound again only where a leaf is another object than before.
        static_argnums: positions of arguments that are Python values known when tracing.
        static_argnames: names of such arguments.
        donate_argnums: positions of arguments whose buffers a call may consume.
        donate_argnames: names of such arguments.
        dims: one spec per argument, such as ``("f32[n, 3]", None)``, or argument name → spec:
            calls that differ in the sizes of named dims alone share what is traced. None takes
            every argument as it comes. The dtype is that of the call.
        buckets: sizes that named dims are rounded up to: ``{"n": [16, 64]}``, ``"pow2"`` or
            ``"auto"``; as ``CompileOptions.buckets``.
        on_unsafe: as ``CompileOptions.on_unsafe``.

    Returns:
        The function, with ``lower``, ``trace``, ``eval_shape`` and ``clear_cache`` as ``jax.jit``
        has them, ``report()`` and ``specializations()``.
    """
    given = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    options = _with_buckets(options, dims, buckets, on_unsafe)
    named = {name: value for name, value in given.items() if value is not None}
    made = functools.partial(
        JitFunction, device=device, options=options, params=params, jax_options=named, dims=dims
    )
    return made if fn is None else made(fn)


def _with_buckets(
    options: CompileOptions | None, dims: Any, buckets: Any, on_unsafe: str | None
) -> CompileOptions | None:
    """The options with what ``jit`` was given beside them."""
    chosen = CompileOptions() if options is None else options
    if buckets is not None:
        chosen = chosen.replace(buckets=buckets)
    if on_unsafe is not None:
        chosen = chosen.replace(on_unsafe=on_unsafe)
    if chosen.buckets is not None and dims is None:
        raise TraceError(
            "jit: buckets round named dims up, so dims is required with them; got dims=None. Name "
            "the dims, as in dims=('f32[n]',)."
        )
    return options if chosen == options else chosen


@final
class _Program:
    """A compiled call: what it was compiled for and how it is run.

    Attributes:
        compiled: the program.
        record: what ``specializations`` shows.
        call: what a call runs.
        params: places of arguments that stay on the device, among the dynamic positional ones.
        names: the names of their leaves.
        bound: the leaves that are bound now.
        lock: held while params are swapped and the call that needs them is made.
    """

    __slots__ = ("bound", "call", "compiled", "lock", "names", "params", "record")

    def __init__(
        self,
        compiled: CompiledGraph,
        record: JitSpecialization,
        params: Sequence[int],
        names: Sequence[str],
    ) -> None:
        self.compiled = compiled
        self.call: Callable[..., Any] = compiled.__call__
        self.record = record
        self.params = tuple(params)
        self.names = tuple(names)
        self.bound: list[Any] = []
        self.lock = threading.Lock()


@final
class JitFunction:
    """A function that compiles at its first call with each kind of arguments; see ``jit``."""

    # ``functools.update_wrapper`` fills the instance's dictionary, as it does for ``jax.jit``.
    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        device: Any = None,
        options: CompileOptions | None = None,
        params: Numbers = (),
        jax_options: dict[str, Any] | None = None,
        dims: Any = None,
    ) -> None:
        """Wrap a function; nothing is traced yet."""
        functools.update_wrapper(self, fn)
        self.__wrapped__ = fn
        self._fn = fn
        self._options = CompileOptions() if options is None else options
        self._device = None if device is None else find_device(device)
        self._settings = call_primitive.Settings(self._options)
        given = dict(jax_options or {})
        self._roles = _Roles(fn, given)
        if self._options.weights is not None:
            raise CompileError(
                f"rlx_xla.jit {self._roles.name} [weights]: CompileOptions without weights is "
                "required, since arguments come anew with each call; got "
                f"{self._options.weights!r}. Pack them once: "
                "Session(...).compile(trace(fn, ..., params=...), options=...)."
            )
        self._params = frozenset((params,) if isinstance(params, int) else params)
        self._jax: Any = jax.jit(self._traced_function(), **given)
        self._sessions: dict[Any, Session] = {}
        self._programs: dict[CallKey, _Program] = {}
        static = self._roles.static_numbers, self._roles.static_names
        self._specs = None if dims is None else DimSpecs(self._roles.name, dims, fn, static)
        self._ledger = Ledger()
        self._last_key: CallKey | None = None
        self._last_call: CallKey | None = None
        self._storm = Storm(self._roles.name)
        self._lock = threading.RLock()
        self._quick: Any = _NOTHING

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        avals, context, shardings, call, record = self._quick
        if not kwargs and len(args) == len(avals) and _context() == context:
            for value, aval in zip(args, avals, strict=False):
                if type(value) is not _Array or value.aval is not aval:
                    break
            else:
                if shardings is None or all(
                    a.sharding is s for a, s in zip(args, shardings, strict=True)
                ):
                    record.hits += 1
                    return call(*args)
        return self._call(args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind to an instance, as a method."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<rlx_xla.jit of {self._fn!r}>"

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower for given arguments: a ``jax.stages.Lowered`` with RLX's program inside."""
        return self._jax.lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace for given arguments: a ``jax.stages.Traced``."""
        return self._jax.trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the results' structure with their types, without running anything."""
        return self._jax.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget every compiled program, and what the function was traced to."""
        with self._lock:
            self._programs.clear()
            self._ledger.clear()
            self._quick = _NOTHING
        self._jax.clear_cache()
        jx.forget_traces(self._fn)

    def report(self) -> CompileReport:
        """What the last compile decided and cost.

        Raises:
            RunError: nothing has been compiled yet.
        """
        if self._last_key is None or self._last_key not in self._programs:
            raise RunError(
                f"report of {self._roles.name}: a compiled program is required; none has been "
                "compiled yet. Call the function with arrays first."
            )
        program = self._programs[self._last_key]
        return program.record.report if self._specs is None else program.compiled.report()

    def specializations(self) -> Any:
        """Records of the compiled programs, in the order of their compiles.

        With ``dims`` they are those of ``CompiledGraph.specializations``.
        """
        if self._specs is not None:
            return self._ledger.records()
        return [program.record for program in self._programs.values()]

    def warm(
        self, bindings: Any = None, *, threads: int | None = None, progress: bool = False
    ) -> None:
        """Compile ahead for sizes of named dims, as ``CompiledGraph.warm`` does.

        Raises:
            RunError: there are no ``dims``, or the function has not been called yet.
        """
        if self._specs is None or self._last_key is None:
            raise RunError(
                f"warm of {self._roles.name}: dims and one call are required, which gives the "
                "dtypes; got neither program nor dims. Call it once with any size."
            )
        compiled = self._programs[self._last_key].compiled
        compiled.warm(bindings, threads=threads, progress=progress)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Find or compile the program of a call; what is JAX's to decide goes to ``jax.jit``."""
        roles = self._roles
        split = None if calls.jit_disabled() else roles.split(args, kwargs)
        if split is None:
            return self._jax(*args, **kwargs)
        dynamic, named, static = split
        leaves, tree = jax.tree_util.tree_flatten((dynamic, named))
        wide = jx.x64_enabled()
        leaf_keys = [leaf_key(leaf, wide) for leaf in leaves]
        if None in leaf_keys:
            return self._jax(*args, **kwargs)
        simple, device = device_of(leaves)
        if not simple:
            return self._jax(*args, **kwargs)
        if self._device is not None:
            device = self._device
        context = calls.trace_context(), calls.default_device()
        key = CallKey(
            tree,
            tuple(k for k in leaf_keys if k is not None),
            static,
            device,
            context,
            functools.partial(roles.paths, dynamic, named),
        )
        specs = None
        if self._specs is not None:
            positions = roles.dynamic_positions(len(args))
            specs = self._specs.leaves(dynamic, named, positions)
            self._last_call, before = key, self._last_call
            key, whole = group_key(key, specs), key
        else:
            before, whole = self._last_key, key
        program = self._programs.get(key)
        if program is None:
            if calls.is_tracing():  # the function may capture what is being traced
                return self._jax(*args, **kwargs)
            reason = whole.difference(before)
            program = self._compile(key, args, dynamic, named, reason, specs)
            if specs is None:
                self._storm.compiled(whole, reason, self._hits())
        else:
            program.record.hits += 1
        self._last_key = key
        return self._run(program, whole, args, dynamic, named, leaves, tree)

    def _hits(self) -> int:
        return sum(program.record.hits for program in self._programs.values())

    def _run(
        self,
        program: _Program,
        key: CallKey,
        args: tuple[Any, ...],
        dynamic: tuple[Any, ...],
        named: dict[str, Any],
        leaves: list[Any],
        tree: Any,
    ) -> Any:
        hosted = [host_leaf(leaf, k) for leaf, k in zip(leaves, key.leaves, strict=True)]
        if any(new is not old for new, old in zip(hosted, leaves, strict=True)):
            dynamic, named = jax.tree_util.tree_unflatten(tree, hosted)
        if not program.params:
            plain = len(args) == len(leaves) and not named
            if plain and all(type(a) is _Array for a in args):
                self._remember(program, key, args)
            return program.call(*dynamic, **named)
        counts = [len(jax.tree_util.tree_leaves(value)) for value in dynamic]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        bound = [hosted[s] for p in program.params for s in range(starts[p], starts[p] + counts[p])]
        fed = [value for i, value in enumerate(dynamic) if i not in program.params]
        with program.lock:
            known = program.bound
            if len(known) != len(bound) or any(
                new is not old for new, old in zip(bound, known, strict=True)
            ):
                raw = [keys.key_data(x) if keys.is_key(x) else x for x in bound]
                program.compiled.set_params(dict(zip(program.names, raw, strict=True)))
                program.bound = bound
            return program.call(*fed, **named)

    def _remember(self, program: _Program, key: CallKey, args: tuple[Any, ...]) -> None:
        """Let the next call with arguments of the same types skip the search."""
        one = jax_client.is_only_device()
        shardings = None if one else tuple(a.sharding for a in args)
        avals = tuple(a.aval for a in args)
        self._quick = (avals, key.context[0], shardings, program.call, program.record)

    def _compile(
        self,
        key: CallKey,
        args: tuple[Any, ...],
        dynamic: tuple[Any, ...],
        named: dict[str, Any],
        reason: str,
        specs: Sequence[TensorType | None] | None,
    ) -> _Program:
        """Compile a program, unless another thread just did.

        Args:
            key: what the program is kept by.
            args: positional arguments of the call.
            dynamic: those that are not static.
            named: dynamic keyword arguments.
            reason: why it is compiled.
            specs: the spec of each dynamic leaf, where sizes have names.
        """
        roles = self._roles
        positions = roles.dynamic_positions(len(args))
        whole = [i for i, p in enumerate(positions) if p in self._params]
        with self._lock:
            found = self._programs.get(key)
            if found is not None:
                return found
            fn = roles.bound(key.static, args, dynamic)
            if specs is not None:
                dynamic, named = with_specs(dynamic, named, specs)
            constraints = () if specs is None else self._options.constraints
            traced: Any = trace(fn, *dynamic, params=whole, constraints=constraints, **named)
            arguments = traced.arguments
            if arguments is None:
                raise RunError(f"jit of {roles.name}: the trace is required to keep its arguments.")
            donated = roles.donated(positions)
            names = frozenset(leaf.name for leaf in arguments.leaves if leaf.argument in donated)
            signature = dataclasses.replace(traced.signature, donated=names)
            traced = dataclasses.replace(traced, signature=signature)
            device = find_device(key.device or calls.default_device())
            session = self._sessions.get(device)
            if session is None:
                session = self._sessions[device] = Session(device_name(device))
            compiled = session.compile(traced, options=self._options)
            leaves = (*compiled.graph.inputs, *compiled.graph.params)
            types = tuple(str(v.type) for v in leaves)
            if specs is None:
                report = compiled.report()
                seconds = {**traced.seconds, **report.phases}
                record = JitSpecialization(reason, seconds, types, session.device, report)
            else:
                self._ledger.add(reason, compiled)
                record = JitSpecialization(reason, {}, types, session.device, None)
            bound = [leaf.name for leaf in arguments.leaves if leaf.param]
            program = self._programs[key] = _Program(compiled, record, whole, bound)
            return program

    def _traced_function(self) -> Callable[..., Any]:
        """The function as JAX traces it: its jaxpr inside our primitive."""
        fn, settings = self._fn, self._settings
        name = getattr(fn, "__name__", type(fn).__name__)

        @functools.wraps(fn)
        def function(*args: Any, **kwargs: Any) -> Any:
            if calls.jit_disabled():
                return fn(*args, **kwargs)
            leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
            moving = [  # mutable arrays stay where they are, as what JAX writes into
                i for i, leaf in enumerate(leaves)
                if isinstance(leaf, jx.Tracer) and not jx.is_mutable(jx.typeof(leaf))
            ]  # fmt: skip
            structure: list[Any] = []

            def flat(*arrays: Any) -> list[Any]:
                whole = list(leaves)
                for index, array in zip(moving, arrays, strict=True):
                    whole[index] = array
                given, named = jax.tree_util.tree_unflatten(tree, whole)
                results, out_tree = jax.tree_util.tree_flatten(fn(*given, **named))
                structure.append(out_tree)
                return results

            operands = [leaves[i] for i in moving]
            jaxpr, captured = calls.traced(flat, operands)
            results = call_primitive.apply(jaxpr, [*captured, *operands], name, settings)
            return jax.tree_util.tree_unflatten(structure[-1], results)

        return function


@final
class _Roles:
    """Which arguments are static or donated, by position and by name, as JAX infers it."""

    def __init__(self, fn: Callable[..., Any], given: dict[str, Any]) -> None:
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self._fn = fn
        try:
            parameters = list(inspect.signature(fn).parameters.values())
        except (TypeError, ValueError):  # a builtin without a signature
            parameters = []
        self._count = len(parameters)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._names = [p.name for p in parameters if p.kind in kinds]
        self.static_numbers, self.static_names = self._both("static", given)
        self.donate_numbers, self.donate_names = self._both("donate", given)

    def _both(self, role: str, given: dict[str, Any]) -> tuple[frozenset[int], frozenset[str]]:
        numbers, names = given.get(f"{role}_argnums"), given.get(f"{role}_argnames")
        by_number = () if numbers is None else (numbers,) if isinstance(numbers, int) else numbers
        by_name = () if names is None else (names,) if isinstance(names, str) else tuple(names)
        all_numbers = {n + self._count if n < 0 else n for n in by_number}
        all_names = set(by_name)
        if numbers is None:
            all_numbers = {i for i, n in enumerate(self._names) if n in all_names}
        elif names is None:
            all_names = {n for i, n in enumerate(self._names) if i in all_numbers}
        return frozenset(all_numbers), frozenset(all_names)

    def split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]] | None:
        """Dynamic positional and keyword arguments, and static ones; None if one has no hash."""
        if not self.static_numbers and not self.static_names:
            return args, kwargs, ()
        dynamic = tuple(a for i, a in enumerate(args) if i not in self.static_numbers)
        named = {k: v for k, v in kwargs.items() if k not in self.static_names}
        labels = [
            (self._names[i] if i < len(self._names) else i, a)
            for i, a in enumerate(args)
            if i in self.static_numbers
        ]
        labels += [(k, v) for k, v in sorted(kwargs.items()) if k in self.static_names]
        static = tuple((name, type(value), value) for name, value in labels)
        if any(getattr(type(value), "__hash__", None) is None for _, value in labels):
            return None
        return dynamic, named, static

    def dynamic_positions(self, count: int) -> list[int]:
        """Positions of the dynamic ones among ``count`` positional arguments."""
        return [i for i in range(count) if i not in self.static_numbers]

    def donated(self, positions: Sequence[int]) -> frozenset[int | str]:
        """Donated arguments: places among the dynamic positional ones, and keywords."""
        places = {i for i, p in enumerate(positions) if p in self.donate_numbers}
        return frozenset({*places, *self.donate_names})

    def bound(
        self, static: tuple[Any, ...], args: tuple[Any, ...], dynamic: tuple[Any, ...]
    ) -> Callable[..., Any]:
        """The function of the dynamic arguments alone."""
        if not static:
            return self._fn
        positions = self.dynamic_positions(len(args))
        fn, whole = self._fn, list(args)
        fixed = {n: v for n, _, v in static if n in self.static_names}
        taken = {self._names[i] for i in range(min(len(args), len(self._names)))}
        named_fixed = {n: v for n, v in fixed.items() if n not in taken}

        def function(*given: Any, **named: Any) -> Any:
            values = list(whole)
            for position, value in zip(positions, given, strict=True):
                values[position] = value
            return fn(*values, **named, **named_fixed)

        names = argument_names(fn, len(args))
        kind = inspect.Parameter.POSITIONAL_ONLY
        shown = [inspect.Parameter(names[p], kind) for p in positions]
        dressed: Any = function
        dressed.__name__ = dressed.__qualname__ = self.name
        if len({p.name for p in shown}) == len(shown) == len(dynamic):
            dressed.__signature__ = inspect.Signature(shown)
        return function

    def paths(self, dynamic: tuple[Any, ...], named: dict[str, Any]) -> tuple[str, ...]:
        """Names of the leaves of the dynamic arguments, for people."""
        found: list[str] = []
        names = argument_names(self._fn, len(dynamic) + len(self.static_numbers))
        positions = [i for i in range(len(names)) if i not in self.static_numbers]
        for path, _ in jax.tree_util.tree_flatten_with_path((dynamic, named))[0]:
            _, key, *rest = path
            index = getattr(key, "idx", None)
            label = str(getattr(key, "key", "")) if index is None else names[positions[index]]
            found.append(label + jax.tree_util.keystr(tuple(rest)))
        return tuple(found)
