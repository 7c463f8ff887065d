"""``rlx_xla.trace``: a JAX function becomes an RLX graph."""

from __future__ import annotations

import dataclasses
import inspect
import operator
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

import jax
import numpy as np

from rlx import dims
from rlx.dims.constraints import Constraint, constraints_of
from rlx.dtypes import as_dtype
from rlx.errors import RunError, TraceError, did_you_mean
from rlx.ir import location as loc
from rlx.ir.graph import Graph, Value
from rlx.ops.io import Input, Param
from rlx.sharding import adopt
from rlx.signature import Signature
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla._jax_compat import keys, shardings
from rlx_xla._jax_compat.symbolic import questions
from rlx_xla.tracing.arguments import (
    Arguments,
    argument_names,
    closed_over,
    path_names,
    resolve,
    whole_params,
)
from rlx_xla.tracing.errors import (
    captured_ref,
    explained,
    refuse_captured_refs,
    refuse_leaks,
    refuse_unreferable,
)
from rlx_xla.tracing.shardings import leaf_attributes
from rlx_xla.tracing.template import (
    FAILURES,
    Template,
    TemplateTraced,
    declared_symbols,
    has_symbols,
    spec_symbols,
    spelled,
    with_questions,
)
from rlx_xla.tracing.traced import Traced
from rlx_xla.tracing.walk import JaxprWalker

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def trace(
    fn: Callable[..., Any],
    *args: Any,
    params: int | Sequence[int] | type | Callable[..., bool] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    constraints: Sequence[str] = (),
    **kwargs: Any,
) -> Any:
    """Trace a JAX function into an RLX graph.

    With symbols in its specs a function that asks about sizes (``reshape(-1, 4)``, a branch on a
    dim) has no one graph: the result is then a ``TemplateTraced``, which compiles like any trace
    and is traced anew for every size.

    A comparison that is false for a symbol (``n == 5``), or a size looked up in a dict or a set,
    stops no trace. What is returned knows of such questions, and compiled it traces anew for the
    sizes whose answer is another. Its ``graph`` alone, and what ``rlx.save`` writes of it, is what
    the function does for sizes that none of its questions singles out (``graph.asked``,
    ``graph.keyed``): whoever runs it refuses sizes whose answer is or may be another, and
    ``rlx.bind`` takes it as it is.

    Args:
        fn: any function that ``jax.jit`` takes.
        args: positional arguments: pytrees of arrays, numbers, ``jax.ShapeDtypeStruct`` (symbols
            of ``jax.export`` included) or specs such as ``"f32[b, 128]"`` (equal names mean equal
            sizes).
        params: arguments bound once instead of being fed on every call: positions in ``args``, a
            class whose instances hold them (``nnx.Param``), a predicate on the leaves' names
            (``params/encoder/…/kernel``), or a filter of a path and a variable as nnx has them
            (``nnx.All(nnx.Param, nnx.PathContains("kernel"))``).
        static_argnums: positions of arguments that are Python values known when tracing.
        static_argnames: names of such arguments.
        donate_argnums: positions of arguments whose buffers a call may consume.
        constraints: what holds for symbols at every call, such as ``"seq % 64 == 0"``.
        kwargs: keyword arguments, as ``args``.

    Returns:
        The graph with its signature and params. Arrays that ``fn`` closes over are params named
        ``captured/…`` when they are larger than 1 KiB, constants otherwise.

    Raises:
        TraceError: an argument is neither array, number nor spec, or JAX cannot trace ``fn``.
        DimError: a constraint is none, or names a symbol that no spec has.
    """
    return trace_call(
        fn, args, kwargs, params=params, static_argnums=static_argnums,
        static_argnames=static_argnames, donate_argnums=donate_argnums, constraints=constraints,
    )  # fmt: skip


def trace_call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    params: int | Sequence[int] | type | Callable[..., bool] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    constraints: Sequence[str] = (),
) -> Any:
    """Trace as ``trace`` does, for keyword arguments of any names, ``params`` too."""
    refuse_unreferable(fn, "trace")
    bound, dynamic, dynamic_kwargs, positions = _bind_static(
        fn, args, kwargs, static_argnums, static_argnames
    )
    all_names = argument_names(fn, len(args))
    names = [all_names[p] for p in positions]
    numbered = _renumber("params", params, positions)
    donated = _renumber("donate_argnums", donate_argnums, positions)
    name = getattr(fn, "__name__", type(fn).__name__)
    specs, specs_by_name = spelled((dynamic, dynamic_kwargs))
    promised = constraints_of(constraints, spec_symbols((specs, specs_by_name)))

    def once(
        given: Sequence[Any], named: Mapping[str, Any], more: Sequence[Constraint] = ()
    ) -> Traced:
        started = time.perf_counter()
        holds = (*promised, *more)
        resolved = resolve(given, named, names, numbered, holds)
        with explained(name):
            traced = jx.trace_function(bound, resolved.args, resolved.kwargs)
        refuse_leaks(traced.jaxpr, len(resolved.leaves), name)
        refuse_captured_refs(traced.jaxpr, name)
        jax_seconds = time.perf_counter() - started
        graph, signature, values, walker = _walk(fn, resolved, traced, donated, holds)
        seconds = {"jax": jax_seconds, "walk": time.perf_counter() - started - jax_seconds}
        return Traced(graph, signature, values, seconds, walker.modelled, walker.opaque, resolved)

    if not has_symbols((specs, specs_by_name)):
        return once(dynamic, dynamic_kwargs)
    template = Template(name, once, specs, specs_by_name, names, promised, lambda: closed_over(fn))
    try:
        with questions() as asked:
            made = once(dynamic, dynamic_kwargs)
    except FAILURES as error:
        if template.probe() is not None:
            raise
        template.why = str(error).split("\n")[0]
        resolved = resolve(dynamic, dynamic_kwargs, names, numbered, promised)
        nothing = jx.trace_function(_nothing, resolved.args, resolved.kwargs)
        boundary, signature, values, _ = _walk(fn, resolved, nothing, donated, promised)
        return TemplateTraced(boundary, signature, values, template, resolved)
    free = {symbol: dims.symbol(symbol, 0) for symbol in made.graph.symbols}
    template.asked, template.keyed = (
        tuple(dims.parse(text, free) for text in dict.fromkeys(texts))
        for texts in (asked.differences, asked.keys)
    )
    return dataclasses.replace(made, graph=with_questions(made.graph, asked), template=template)


def captures_refs(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function reads or writes mutable arrays from outside, which no graph holds.

    JAX keeps what it traces here, for ``trace``.

    Raises:
        TraceError: as ``trace``.
    """
    with explained(getattr(fn, "__name__", type(fn).__name__)):
        return captured_ref(jx.trace_function(fn, args, kwargs).jaxpr) is not None


def names_devices(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function says on which devices something lies, as ``captures_refs`` looks."""
    with explained(getattr(fn, "__name__", type(fn).__name__)):
        return shardings.names_devices(jx.trace_function(fn, args, kwargs).jaxpr)


def _nothing(*args: Any, **kwargs: Any) -> tuple[()]:
    """Stands for a function of which only the arguments are known."""
    return ()


def _walk(
    fn: Callable[..., Any],
    arguments: Arguments,
    traced: jx.TracedFunction,
    donated: Any,
    constraints: Sequence[Constraint],
) -> tuple[Graph, Signature, dict[str, Any], JaxprWalker]:
    values: dict[str, Any] = {}
    captured: list[Value] = []

    def lift(array: Any, index: int) -> Value:
        name = f"captured/{index}"
        values[name] = array
        dtype = as_dtype(np.dtype(array.dtype))
        placed = leaf_attributes(name, array, len(array.shape))
        leaf: Value = Param(name=name, dtype=dtype, shape=tuple(array.shape), **placed)()
        captured.append(leaf)
        return leaf

    walker = JaxprWalker(lift, declared_symbols(constraints))
    opened = jx.open_jaxpr(traced.jaxpr)
    leaves: list[Value] = []
    with loc.at(loc.UNKNOWN):
        for leaf, variable in zip(arguments.leaves, opened.invars, strict=True):
            type_ = walker.type_of(variable.aval)
            cls = Param if leaf.param else Input
            placed = leaf_attributes(leaf.name, leaf.value, type_.rank)
            leaves.append(cls(name=leaf.name, dtype=type_.dtype, shape=type_.shape, **placed)())
            if leaf.param:
                values[leaf.name] = _concrete(leaf.value)
        consts = [walker.literal(c) for c in jx.constants(traced.jaxpr)]
    outputs = walker.walk(opened, consts, leaves)
    pairs = list(zip(arguments.leaves, leaves, strict=True))
    graph = Graph(
        [v for leaf, v in pairs if not leaf.param],
        [*(v for leaf, v in pairs if leaf.param), *captured],
        outputs,
        walker.scope.tokens.values(),
        name=getattr(fn, "__name__", type(fn).__name__),
    )
    graph = adopt(graph)
    return graph, _signature(arguments, traced, donated), values, walker


def _signature(arguments: Arguments, traced: jx.TracedFunction, donated: Any) -> Signature:
    fed = [leaf for leaf in arguments.leaves if not leaf.param]
    avals = {
        leaf.name: v.aval
        for leaf, v in zip(arguments.leaves, jx.open_jaxpr(traced.jaxpr).invars, strict=True)
    }
    out_leaves, out_tree = jax.tree_util.tree_flatten(traced.out_info)
    single = out_tree == jax.tree_util.tree_structure(0)
    names = tuple(
        "/".join(["output", *steps])
        for steps in path_names(
            [path for path, _ in jax.tree_util.tree_flatten_with_path(traced.out_info)[0]]
        )
    )
    donated_set = frozenset(donated) if not isinstance(donated, int) else frozenset({donated})
    out_keys = {
        i: keys.key_impl(leaf.dtype) for i, leaf in enumerate(out_leaves) if keys.is_wrapped(leaf)
    }
    in_tree, in_fed = _call_structure(arguments)
    signature = Signature(
        inputs=tuple(leaf.name for leaf in fed),
        outputs=names,
        flatten=None if _is_flat(arguments) else _flattener(in_tree, in_fed),
        in_tree=in_tree,
        out_tree=out_tree,
        fed=in_fed,
        unflatten=None if single else out_tree.unflatten,
        single=single,
        weak_types=frozenset(
            leaf.name for leaf in fed if getattr(avals[leaf.name], "weak_type", False)
        ),
        weak_outputs=frozenset(
            i for i, a in enumerate(traced.jaxpr.out_avals) if getattr(a, "weak_type", False)
        ),
        key_inputs={
            leaf.name: keys.key_impl(avals[leaf.name].dtype)
            for leaf in fed
            if keys.is_wrapped(avals[leaf.name])
        },
        key_outputs=out_keys,
        donated=frozenset(leaf.name for leaf in fed if leaf.argument in donated_set),
        x64=bool(jax.config.read("jax_enable_x64")),
    )
    return dataclasses.replace(signature, narrow=_narrower(arguments, signature))


def _narrower(arguments: Arguments, signature: Signature) -> Callable[[frozenset[str]], Signature]:
    """Return what makes the signature of calls that leave some inputs out, as params are."""
    # Nothing but the structure is kept: arrays would live as long as the compiled graph.
    leaves = [dataclasses.replace(leaf, value=None) for leaf in arguments.leaves]
    args_tree, kwargs_tree = arguments.tree.children()
    trees = args_tree.children()

    def narrow(names: frozenset[str]) -> Signature:
        kept = [dataclasses.replace(n, param=n.param or n.name in names) for n in leaves]
        whole = whole_params(kept, len(trees))
        places = jax.tree_util.treedef_tuple([t for i, t in enumerate(trees) if i not in whole])
        in_tree = jax.tree_util.treedef_tuple((places, kwargs_tree))
        fed = tuple(not n.param for n in kept if n.argument not in whole)
        positional = [i for i in range(len(trees)) if i not in whole]
        inputs = [n for n in kept if not n.param]
        flat = (
            not kwargs_tree.num_leaves
            and all(not n.path for n in inputs)
            and [n.argument for n in inputs] == positional
        )
        return dataclasses.replace(
            signature,
            inputs=tuple(n.name for n in inputs),
            flatten=None if flat else _flattener(in_tree, fed),
            in_tree=in_tree,
            fed=fed,
            weak_types=signature.weak_types - names,
            key_inputs={n: k for n, k in signature.key_inputs.items() if n not in names},
            donated=signature.donated - names,
            narrow=None,
        )

    return narrow


def _is_flat(arguments: Arguments) -> bool:
    """Whether the arguments left after whole params are exactly the inputs, one leaf each."""
    fed = [leaf for leaf in arguments.leaves if not leaf.param]
    kept = [i for i in range(len(arguments.args)) if i not in arguments.whole_params]
    return (
        not arguments.kwargs
        and all(not leaf.path for leaf in fed)
        and [leaf.argument for leaf in fed] == kept
    )


def _call_structure(arguments: Arguments) -> tuple[Any, tuple[bool, ...]]:
    """Structure of ``(args, kwargs)`` at a call, whole params left out, and what is fed."""
    kept = tuple(a for i, a in enumerate(arguments.args) if i not in arguments.whole_params)
    tree = jax.tree_util.tree_structure((kept, dict(arguments.kwargs)))
    fed = tuple(
        not leaf.param
        for leaf in arguments.leaves
        if isinstance(leaf.argument, str) or leaf.argument not in arguments.whole_params
    )
    return tree, fed


def _flattener(
    tree: Any, fed: Sequence[bool]
) -> Callable[[Sequence[Any], Mapping[str, Any]], list[Any]]:
    def flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        leaves, found = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
        if found != tree:
            raise _structure_error(tree, found)
        return [leaf for leaf, keep in zip(leaves, fed, strict=True) if keep]

    return flatten


def _structure_error(wanted: Any, found: Any) -> RunError:
    return RunError(
        f"call: arguments are required in the structure that was traced (params left out): "
        f"{wanted}; got {found}. Pass the same structure, or trace again."
    )


def _concrete(value: Any) -> Any:
    if isinstance(value, jax.ShapeDtypeStruct):
        return None
    if keys.is_key(value):
        return keys.key_data(value)
    return value


def _bind_static(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    static_argnums: int | Sequence[int],
    static_argnames: str | Sequence[str],
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[int]]:
    """Close over static arguments; return the dynamic ones and their positions."""
    numbers = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)
    numbers = {n + len(args) if n < 0 else n for n in numbers}
    names = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames)
    known = argument_names(fn, len(args))
    numbers |= {i for i, name in enumerate(known) if name in names}
    unknown = [n for n in names if n not in known and n not in kwargs]
    if unknown and not any(n in _parameter_names(fn) for n in unknown):
        raise TraceError(
            f"trace: static_argnames are required to name arguments of {fn!r} "
            f"({', '.join(known)}); got {unknown[0]!r}.{did_you_mean(unknown[0], known)} "
            "Correct the name."
        )
    outside = [n for n in sorted(numbers) if not 0 <= n < max(len(args), len(known))]
    if outside and not _takes(fn, outside[-1]):
        raise TraceError(
            f"trace: static_argnums are required to be positions of {fn!r}'s arguments; "
            f"got {outside[0]} with {len(args)} of them. Count from 0."
        )
    positions = [i for i in range(len(args)) if i not in numbers]
    static = {i: args[i] for i in sorted(numbers) if 0 <= i < len(args)}
    static_kwargs = {k: v for k, v in kwargs.items() if k in names}
    dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in names}
    for label, value in [*((known[i], v) for i, v in static.items()), *static_kwargs.items()]:
        _check_hashable(label, value)
    if not static and not static_kwargs:
        return fn, tuple(args), dict(kwargs), positions

    def bound(*dynamic: Any, **more: Any) -> Any:
        whole: list[Any] = [None] * len(args)
        for index, value in static.items():
            whole[index] = value
        for index, value in zip(positions, dynamic, strict=True):
            whole[index] = value
        return fn(*whole, **more, **static_kwargs)

    bound.__name__ = getattr(fn, "__name__", "fn")
    dressed: Any = bound
    dressed.__signature__ = _signature_of([known[i] for i in positions], dynamic_kwargs)
    return bound, tuple(args[i] for i in positions), dynamic_kwargs, positions


def _takes(fn: Callable[..., Any], position: int) -> bool:
    """Whether a function has a positional parameter there, given or not."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return True
    kinds = [p.kind for p in parameters]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return position >= 0
    positional = [k for k in kinds if k in _POSITIONAL]
    return 0 <= position < len(positional)


def _check_hashable(name: str, value: Any) -> None:
    if isinstance(value, Hashable):
        try:
            hash(value)
        except TypeError as error:
            raise _not_hashable(name, value) from error
        return
    raise _not_hashable(name, value)


def _not_hashable(name: str, value: Any) -> TraceError:
    traced = " Arrays are traced, not static." if isinstance(value, jax.Array | np.ndarray) else ""
    return TraceError(
        f"trace: static argument {name!r} is required to be hashable; got {type(value).__name__}."
        f"{traced} Use a tuple or a frozen dataclass, or bind it with functools.partial."
    )


def _signature_of(names: Sequence[str], keywords: Iterable[str]) -> inspect.Signature:
    """A signature from which JAX takes the names of dynamic arguments for its errors."""
    positional = [n if n.isidentifier() else f"arg{i}" for i, n in enumerate(names)]
    return inspect.Signature(
        [
            *(inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in positional),
            *(inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in keywords),
        ]
    )


def _parameter_names(fn: Callable[..., Any]) -> list[str]:
    code = getattr(fn, "__code__", None)
    return list(code.co_varnames) if code is not None else []


def _renumber(option: str, given: Any, positions: Sequence[int]) -> Any:
    """Positions in all arguments as positions in the dynamic ones.

    Raises:
        TraceError: what was given for the option is no position.
    """
    if callable(given):
        return given
    wanted = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(w, SupportsIndex) for w in wanted):
        advice = "; for names write params=lambda name: name.startswith('encoder/')"
        raise TraceError(
            f"trace [{option}]: positions of arguments are required; got {given!r}. Give numbers"
            f"{advice if option == 'params' else ''}."
        )
    table = {p: i for i, p in enumerate(positions)}
    highest = max(positions, default=-1) + 1
    outside = [w for w in wanted if not -highest <= operator.index(w) < highest]
    if outside and option == "donate_argnums":
        raise TraceError(
            f"trace [{option}]: positions of the {highest} positional arguments are required; got "
            f"{outside[0]}. Count from 0."
        )
    return tuple(table.get(w + highest if w < 0 else w, w) for w in wanted)
