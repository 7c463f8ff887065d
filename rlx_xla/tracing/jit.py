"""``rlx_xla.jit``: a drop-in for ``jax.jit`` that runs RLX programs."""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, cast, final, overload

import jax
import numpy as np

from rlx.compiled import CompiledGraph
from rlx.errors import CompileError, RunError
from rlx.options.compile import CompileOptions
from rlx.report import CompileReport
from rlx.session import Session
from rlx.sharding import mesh_of
from rlx.types import TensorType
from rlx_xla._jax_compat import calls, equations, interpreters, keys, shardings
from rlx_xla._jax_compat import client as jax_client
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla.runtime.client import device_name, find_device
from rlx_xla.tracing import call_primitive
from rlx_xla.tracing.jit_dims import DimSpecs, Ledger, group_key, with_specs
from rlx_xla.tracing.jit_keys import (
    CallKey,
    JitSpecialization,
    Storm,
    device_of,
    host_leaf,
    leaf_key,
    leaf_text,
    warn_unusable,
)
from rlx_xla.tracing.jit_options import (
    JitOptions,
    Names,
    Numbers,
    check_function,
    chosen,
    portable,
)
from rlx_xla.tracing.jit_quick import is_quick, quick_call, quick_tree_call
from rlx_xla.tracing.jit_roles import Roles, name_of
from rlx_xla.tracing.trace import captures_refs, names_devices, trace_call

_Array = jax_client.ArrayImpl
_NOT_GIVEN: Any = object()
"""Stands for the function where ``jit`` makes a decorator."""


@overload
def jit(fn: Callable[..., Any], **given: Unpack[JitOptions]) -> JitFunction: ...


@overload
def jit(**given: Unpack[JitOptions]) -> Callable[[Callable[..., Any]], JitFunction]: ...


def jit(
    fn: Callable[..., Any] = _NOT_GIVEN,
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
    in_shardings: Any = None,
    out_shardings: Any = None,
    keep_unused: bool = False,
    backend: str | None = None,
    inline: Any = False,
    compiler_options: Mapping[str, Any] | None = None,
    abstracted_axes: Any = None,
) -> Any:
    """Compile a JAX function with RLX; follows ``jax.jit``.

    Called with arrays it runs a program compiled by ``rlx.Session``: one for each combination of
    types, structure, static values, device and JAX settings. Called with tracers (under ``grad``,
    ``vmap``, ``scan``, ``jax.jit`` …) it is the traced function; kernels are chosen after the
    transformation. Arrays that are sharded over several devices take that way too, and calls in a
    mesh or with shardings given here.

    Args:
        fn: the function; without it a decorator is returned.
        device: where to run: a name such as ``"cuda:1"`` or a ``jax.Device``; results then stay
            there. None follows committed arguments, as JAX does.
        options: how to compile.
        params: positions of arguments that are kept on the device between calls. They are passed
            on every call, and bound again only where a leaf is another object than before, or an
            array of NumPy's that may have been written to.
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
        in_shardings: where arguments lie, as in ``jax.jit``, which then places every call.
        out_shardings: where results lie, the same.
        keep_unused: under ``jax.jit`` keep arguments that nothing needs.
        backend: a platform such as ``"cpu"``, to run on its first device.
        inline: leave no call in a caller's jaxpr.
        compiler_options: XLA flags by name, beside those of ``options``.
        abstracted_axes: refused, as JAX has it no more.

    Returns:
        The function, with ``lower``, ``trace``, ``eval_shape`` and ``clear_cache`` as ``jax.jit``
        has them, ``report()`` and ``specializations()``.

    Raises:
        TraceError: no function, no positions of its arguments, or options that exclude each other;
            under the class, too, that
            ``jax.jit`` raises.
        DeviceError: no such device.
    """
    stated: dict[str, Any] = {
        "device": device,
        "options": options,
        "params": params,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "dims": dims,
        "buckets": buckets,
        "on_unsafe": on_unsafe,
        "in_shardings": in_shardings,
        "out_shardings": out_shardings,
        "keep_unused": keep_unused,
        "backend": backend,
        "inline": inline,
        "compiler_options": compiler_options,
        "abstracted_axes": abstracted_axes,
    }
    given = cast(
        "JitOptions", {k: v for k, v in stated.items() if v is not None and v is not False}
    )
    made = functools.partial(JitFunction, given=given)
    return made if fn is _NOT_GIVEN else made(fn)


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
    # ``__call__`` is a slot that holds a function for arguments like the last ones.
    __slots__ = ("__call__", "__dict__", "__weakref__")

    __call__: Callable[..., Any]

    def __init__(self, fn: Callable[..., Any], *, given: JitOptions) -> None:
        """Wrap a function; nothing is traced yet.

        Args:
            fn: the function.
            given: the keywords of ``jit`` that were given.

        Raises:
            TraceError: no function, or keywords that exclude each other.
        """
        check_function(fn)
        functools.update_wrapper(self, fn)
        self.__wrapped__ = fn
        self.__name__ = name_of(fn)
        self._fn = fn
        self._given = given
        self._chosen = chosen(self.__name__, given)
        self._options = self._chosen.options
        self._device = self._chosen.device
        self._settings = call_primitive.Settings(self._options)
        self._roles = Roles(fn, self._chosen.for_jax)
        if self._options.weights is not None:
            raise CompileError(
                f"rlx_xla.jit {self._roles.name} [weights]: CompileOptions without weights is "
                "required, since arguments come anew with each call; got "
                f"{self._options.weights!r}. Pack them once: "
                "Session(...).compile(trace(fn, ..., params=...), options=...)."
            )
        dims = given.get("dims")
        self._params = self._roles.positions("params", given.get("params", ()))
        self._jax: Any = self._chosen.jitted(self._traced_function())
        self._sessions: dict[Any, Session] = {}
        self._programs: dict[CallKey, _Program] = {}
        self._left_to_jax: dict[CallKey, JitSpecialization] = {}
        static = self._roles.static_numbers, self._roles.static_names
        self._specs = None if dims is None else DimSpecs(self._roles.name, dims, fn, static)
        self._ledger = Ledger()
        self._last_key: CallKey | None = None
        self._last_call: CallKey | None = None
        self._storm = Storm(self._roles.name)
        self._lock = threading.RLock()
        self.__call__ = self._any_call
        _ALIVE.add(self)

    def _any_call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the function, whatever it was called with before."""
        return self._call(args, kwargs)

    def __reduce__(self) -> Any:
        """Pickle as the function and its options: another process compiles anew."""
        path = str(vars(self).get("__qualname__", self.__name__))
        home: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            home = getattr(home, name, None)
        if home is self and self.__module__ != "__main__":
            return path
        return _again, (self._fn, dict(portable(self._given)))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind to an instance, as a method."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<rlx_xla.jit of {self._fn!r}>"

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """Lower for given arguments: a ``jax.stages.Lowered`` with RLX's program inside."""
        return self._jax.lower(*args, **kwargs)

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Trace for given arguments: a ``jax.stages.Traced``."""
        return self._jax.trace(*args, **kwargs)

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the results' structure with their types, without running anything."""
        return self._jax.eval_shape(*args, **kwargs)

    def _cache_size(self) -> int:
        """How many programs are kept, those of ``jax.jit`` included; as ``jax.jit`` has it."""
        own = len(self._programs) if self._specs is None else len(self._ledger.records())
        return own + self._jax._cache_size()

    def clear_cache(self) -> None:
        """Forget every compiled program, and what the function was traced to."""
        self._forget()
        self._jax.clear_cache()
        jx.forget_traces(self._fn)

    def _forget(self) -> None:
        """Forget every compiled program of our own; JAX sees to its own."""
        with self._lock:
            self._programs.clear()
            self._left_to_jax.clear()
            self._ledger.clear()
            self.__call__ = self._any_call

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
        return [
            *(program.record for program in self._programs.values()),
            *self._left_to_jax.values(),
        ]

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
        placed = self._chosen.is_placed or calls.jit_disabled()
        split = None if placed else roles.split(args, kwargs)
        if split is None:
            return self._jax(*args, **kwargs)
        dynamic, named, static = split
        leaves, tree = jax.tree_util.tree_flatten((dynamic, named))
        wide = jx.x64_enabled()
        leaf_keys = [leaf_key(leaf, wide) for leaf in leaves]
        if None in leaf_keys:
            return self._jax(*args, **kwargs)
        simple, device = device_of(leaves)
        if not simple or calls.in_mesh() or calls.execution_refused():
            return self._jax(*args, **kwargs)
        if self._device is not None:
            if device not in (None, self._device):  # JAX moves what is tied to another device
                return self._jax(*args, **kwargs)
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
            left = self._left_to_jax.get(key)
            if left is not None:
                left.hits += 1
                return self._jax(*args, **kwargs)
            if calls.is_tracing():  # the function may capture what is being traced
                return self._jax(*args, **kwargs)
            reason = whole.difference(before)
            program = self._compile(key, args, dynamic, named, reason, specs)
            if program is None:
                return self._jax(*args, **kwargs)
            if specs is None:
                self._storm.compiled(whole, reason, self._hits())
        else:
            program.record.hits += 1
        self._last_key = key
        return self._run(program, whole, args, kwargs, dynamic, named, leaves, tree)

    def _hits(self) -> int:
        return sum(program.record.hits for program in self._programs.values())

    def _run(
        self,
        program: _Program,
        key: CallKey,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dynamic: tuple[Any, ...],
        named: dict[str, Any],
        leaves: list[Any],
        tree: Any,
    ) -> Any:
        hosted = [host_leaf(leaf, k) for leaf, k in zip(leaves, key.leaves, strict=True)]
        if any(new is not old for new, old in zip(hosted, leaves, strict=True)):
            dynamic, named = jax.tree_util.tree_unflatten(tree, hosted)
        if not program.params:
            if all(is_quick(leaf, k) for leaf, k in zip(leaves, key.leaves, strict=True)):
                self._remember(program, key, args, kwargs, leaves)
            return program.call(*dynamic, **named)
        counts = [len(jax.tree_util.tree_leaves(value)) for value in dynamic]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        bound = [hosted[s] for p in program.params for s in range(starts[p], starts[p] + counts[p])]
        fed = [value for i, value in enumerate(dynamic) if i not in program.params]
        with program.lock:
            known = program.bound
            if len(known) != len(bound) or any(
                new is not old or _may_change(new) for new, old in zip(bound, known, strict=True)
            ):
                raw = [keys.key_data(x) if keys.is_key(x) else x for x in bound]
                program.compiled.set_params(dict(zip(program.names, raw, strict=True)))
                program.bound = bound
            return program.call(*fed, **named)

    def _remember(
        self,
        program: _Program,
        key: CallKey,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
    ) -> None:
        """Let the next call with arguments of the same types skip the search."""
        run, record, context = program.call, program.record, key.context[0]
        plain = len(args) == len(leaves) and not kwargs and not key.static
        made = None
        if plain and all(type(a) is _Array for a in args):
            made = quick_call(args, context, run, record, self._call)
        if made is None:
            static = self._roles.static_numbers, self._roles.static_names
            made = quick_tree_call(args, kwargs, static, context, run, record, self._call)
        self.__call__ = made

    def _compile(
        self,
        key: CallKey,
        args: tuple[Any, ...],
        dynamic: tuple[Any, ...],
        named: dict[str, Any],
        reason: str,
        specs: Sequence[TensorType | None] | None,
    ) -> _Program | None:
        """Compile a program, unless another thread just did; None for what is left to JAX.

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
            elif captures_refs(fn, dynamic, named):
                return self._leave(key, f"{reason}; left to jax.jit: it captures a mutable array")
            elif not jax_client.is_only_device() and names_devices(fn, dynamic, named):
                return self._leave(key, f"{reason}; left to jax.jit: it names devices")
            constraints = () if specs is None else self._options.constraints
            traced: Any = trace_call(fn, dynamic, named, params=whole, constraints=constraints)
            arguments = traced.arguments
            if arguments is None:
                raise RunError(f"jit of {roles.name}: the trace is required to keep its arguments.")
            mesh = None if specs is not None else mesh_of(traced.graph)
            if mesh is not None and mesh.size == 1:
                return self._leave(key, f"{reason}; left to jax.jit: a mesh of one device")
            donated = roles.donated(positions)
            names = frozenset(leaf.name for leaf in arguments.leaves if leaf.argument in donated)
            if specs is None:
                warn_unusable(traced.graph, names)
            tied = self._device is not None
            signature = dataclasses.replace(traced.signature, donated=names, tied=tied)
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

    def _leave(self, key: CallKey, reason: str) -> None:
        """Let JAX run calls of a kind from now on."""
        device = device_name(find_device(key.device or calls.default_device()))
        types = tuple(map(leaf_text, key.leaves))
        self._left_to_jax[key] = JitSpecialization(reason, {}, types, device, None)

    def _traced_function(self) -> Callable[..., Any]:
        """The function as JAX traces it: its jaxpr inside our primitive."""
        fn, settings, options = self._fn, self._settings, self._chosen
        name = self.__name__

        @functools.wraps(fn)
        def function(*args: Any, **kwargs: Any) -> Any:
            if calls.jit_disabled():
                return fn(*args, **kwargs)
            leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
            moving = [  # mutable arrays stay where they are, as what JAX writes into
                i for i, leaf in enumerate(leaves)
                if isinstance(leaf, jx.Tracer) and not jx.is_mutable(jx.typeof(leaf))
            ]  # fmt: skip
            if any(calls.is_elsewhere(jx.typeof(leaves[i])) for i in moving):
                return fn(*args, **kwargs)  # our primitive knows one memory
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
            given = [*captured, *operands]
            if not options.keep_unused:
                jaxpr, used = calls.without_unused(jaxpr)
                given = [x for x, is_used in zip(given, used, strict=True) if is_used]
            # Inside of a call JAX would not find devices that the function names.
            named = not jax_client.is_only_device() and shardings.names_devices(jaxpr)
            if options.is_inline or named:
                results = equations.function_of(jaxpr)(*given)
            else:
                results = call_primitive.apply(jaxpr, given, name, settings)
            return jax.tree_util.tree_unflatten(structure[-1], results)

        function.__name__ = name
        return function


def _may_change(leaf: Any) -> bool:
    """Whether a leaf may hold other numbers than at an earlier call."""
    return isinstance(leaf, np.ndarray) and leaf.flags.writeable


_ALIVE: weakref.WeakSet[JitFunction] = weakref.WeakSet()


def _forget_all() -> None:
    """What ``jax.clear_caches`` does here."""
    for jitted in list(_ALIVE):
        jitted._forget()


interpreters.when_cleared([_forget_all])


def _again(fn: Callable[..., Any], given: JitOptions) -> JitFunction:
    """Make a function that was pickled."""
    return JitFunction(fn, given=given)
