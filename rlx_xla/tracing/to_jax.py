"""``rlx_xla.to_jax``: a graph becomes a JAX function."""

from __future__ import annotations

import contextlib
import functools
import inspect
import keyword
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, final

import jax
import jax.numpy as jnp
import numpy as np

from rlx import dims
from rlx.errors import RunError, TraceError, did_you_mean
from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.ir.questions import check_answers
from rlx.ir.rewrite import splice, sweep
from rlx.ops.control_flow import Call, CallKind
from rlx.passes.bind_dims import bind
from rlx.signature import Signature
from rlx.specializing import Planner
from rlx.types import Shape
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla._jax_compat import keys
from rlx_xla.tracing.arguments import Arguments
from rlx_xla.tracing.evaluation import Evaluator
from rlx_xla.tracing.template import TemplateTraced
from rlx_xla.tracing.traced import Traced
from rlx_xla.tracing.wide import needs_64_bits

MAX_DEPTH = 25
"""Graphs inside each other that JAX traces well within Python's stack."""

_LOST_RULES = ("raise", "differentiate")


def to_jax(
    graph: Graph | Traced | TemplateTraced,
    params: Mapping[str, Any] | None = None,
    *,
    lost_rules: str = "raise",
) -> Callable[..., Any]:
    """Return a pure JAX function that computes what a graph computes.

    jit, grad, vmap and jvp work on it. Every primitive op is one call of ``jax.lax``; composite ops
    are named ``jit``s, calls keep their derivative rules, and opaque nodes bind their JAX equation
    again. Tracing the function gives the graph back.

    Args:
        graph: a graph, or what ``rlx_xla.trace`` gave.
        params: param name → array, for every param of a graph. For a traced function they replace
            what was traced, and may be some of them.
        lost_rules: what differentiating a function with its own derivative, or batching one with
            its own ``custom_vmap``, does where that rule is lost (the graph was loaded from a file,
            or a pass changed the body): ``"raise"``, or ``"differentiate"`` its body.

    Returns:
        Of a graph: a function of the inputs in order, which returns a list of outputs, or the one
        output. Where the graph has params and ``params`` is None, a dict of them comes first.
        Of a traced function: one with its arguments and results, static arguments left out.
        Where ``params`` is given, arguments that are params as a whole are left out too. For sizes
        whose answer to a question of the traced function is another it is traced anew; a graph
        alone refuses them (`Graph.asked`). Symbols of JAX's own take the graph as it is, as they
        get the same answers.

    Raises:
        RunError: params are missing or unknown.
        TraceError: it is neither a graph nor what ``rlx_xla.trace`` gave.
    """
    if not isinstance(cast("object", graph), Graph | Traced | TemplateTraced):
        raise TraceError(
            "to_jax: a Graph, or what rlx_xla.trace gave, is required; got "
            f"{type(graph).__name__}. Compile it with rlx.Session, or trace it first."
        )
    if lost_rules not in _LOST_RULES:
        raise TraceError(
            f"to_jax: lost_rules is required to be one of {', '.join(_LOST_RULES)}; "
            f"got {lost_rules!r}."
        )
    if not isinstance(graph, Graph):
        return _of_traced(graph, params, lost_rules)
    flat = _flat(graph, lost_rules)
    count = len(graph.inputs)
    names = [v.name for v in graph.params]
    single = len(graph.outputs) == 1
    bound = None if params is None and names else _ordered(graph.params, params or {})

    def call(*arguments: Any) -> Any:
        values = bound
        arrays = arguments
        if values is None:
            if not arguments or not isinstance(arguments[0], Mapping):
                raise RunError(
                    f"call of {graph.name!r}: a dict of params is required first "
                    f"({', '.join(names)}); got {len(arguments)} arguments without one."
                )
            values = _ordered(graph.params, arguments[0])
            arrays = arguments[1:]
        if len(arrays) != count:
            listing = ", ".join(f"{v.name!r}: {v.type}" for v in graph.inputs)
            raise RunError(
                f"call of {graph.name!r}: {count} inputs are required ({listing}); "
                f"got {len(arrays)}."
            )
        results = flat([*arrays, *values])
        return results[0] if single else results

    leading = ["params"] if bound is None else []
    return _dressed(call, graph.name, [*leading, *(v.name for v in graph.inputs)])


def _of_traced(
    traced: Traced | TemplateTraced, params: Mapping[str, Any] | None, lost_rules: str
) -> Callable[..., Any]:
    graph = traced.graph if isinstance(traced, Traced) else traced.boundary
    signature, arguments = traced.signature, traced.arguments
    known = {n: v for n, v in traced.params.items() if v is not None}
    if params is not None:
        _check_known(graph.params, params)
    replaced = dict(params or {})
    anew = _Anew(graph, traced, lost_rules)
    if params is None and arguments is not None:
        tree = arguments.tree
        wanted = [leaf.name for leaf in arguments.leaves]
    else:
        tree, wanted = signature.in_tree, None

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, found = jax.tree_util.tree_flatten((args, kwargs))
        if tree is not None and found != tree:
            raise RunError(
                f"call of {graph.name!r}: arguments are required in the structure that was "
                f"traced: {tree}; got {found}."
            )
        if wanted is not None:
            given = dict(zip(wanted, leaves, strict=True))
        else:
            fed = signature.fed or (True,) * len(leaves)
            kept = [x for x, keep in zip(leaves, fed, strict=True) if keep]
            given = dict(zip(signature.inputs, kept, strict=True))
        given = {**replaced, **given}
        raw = {n: keys.key_data(x) if keys.is_wrapped(x) else x for n, x in given.items()}
        run = anew.run_for({**known, **raw})
        values = {**known, **run.own, **raw}
        inputs = [values[v.name] for v in run.graph.inputs]
        results = run.flat([*inputs, *_ordered(run.graph.params, values, extra=True)])
        for index, impl in run.signature.key_outputs.items():
            results[index] = keys.wrap_key(results[index], impl)
        return run.signature.rebuild(results)

    return _dressed(call, graph.name, None if arguments is None else _argument_names(arguments))


@final
@dataclass(frozen=True)
class _Run:
    """What a call of a traced function computes: a graph, and values that only it has."""

    graph: Graph
    signature: Signature
    flat: Callable[[Sequence[Any]], list[Any]]
    own: Mapping[str, Any] = field(default_factory=dict[str, Any])


@final
class _Anew:
    """The graph of each call of a traced function, traced anew for sizes that need another."""

    def __init__(self, graph: Graph, traced: Traced | TemplateTraced, lost_rules: str) -> None:
        self._graph = graph
        self._traced = traced
        self._lost_rules = lost_rules
        self._runs: dict[Hashable, _Run] = {}
        template, known = traced.template, traced.params
        self._planner: Planner | None = None
        if template is not None and graph.symbols:
            captured = {n: v for n, v in known.items() if v is not None}
            self._planner = Planner(graph, traced.signature, template=template, captured=captured)
        # Where there is a template, the planner answers the graph's questions.
        of_all = graph if self._planner is None else graph.with_questions((), ())
        self._plain = _Run(graph, traced.signature, _flat(of_all, lost_rules))

    def run_for(self, values: Mapping[str, Any]) -> _Run:
        """What is computed for the sizes of some values.

        Args:
            values: by name, for every input and param.

        Raises:
            DimError: the function cannot have the sizes.
            TraceError: sizes are symbols of JAX's, and there is no one graph for all sizes.
        """
        planner = self._planner
        if planner is None:
            return self._plain
        leaves = [v for v in (*self._graph.inputs, *self._graph.params) if v.name in values]
        free = dict(planner.declared())
        declared = [(v.name, free.get(v.name, v.type.shape)) for v in leaves]
        sizes = _sizes(declared, [_array(v, values[v.name]) for v in leaves])
        if not all(isinstance(n, int) for n in sizes.values()):
            if planner.has_graph:
                return self._plain
            raise TraceError(
                f"to_jax: one graph for all sizes is required where JAX's sizes are symbols; "
                f"{self._graph.name!r} is traced anew for every size. Call it with numbers."
            )
        plan = planner.plan(sizes)
        if plan.graph is None:
            return self._plain
        if plan.key not in self._runs:
            flat = _flat(plan.graph, self._lost_rules)
            self._runs[plan.key] = _Run(plan.graph, plan.signature, flat, plan.own)
        return self._runs[plan.key]


def _flat(graph: Graph, lost_rules: str) -> Callable[[Sequence[Any]], list[Any]]:
    """A function of all leaves, inputs then params, to the list of outputs."""
    graph = _no_deeper_than_jax(graph)
    leaves = (*graph.inputs, *graph.params)
    wide = functools.lru_cache(maxsize=64)(needs_64_bits)
    bound = functools.lru_cache(maxsize=64)(lambda sizes: bind(graph, dict(sizes)))
    static = Evaluator({}, lost_rules)

    def run(values: Sequence[Any]) -> list[Any]:
        arrays = [_array(v, x) for v, x in zip(leaves, values, strict=True)]
        if not graph.symbols:
            evaluator, chosen = static, graph
        else:
            sizes = _sizes([(v.name, v.type.shape) for v in leaves], arrays)
            if all(isinstance(n, int) for n in sizes.values()):
                check_answers(graph, sizes)
                evaluator, chosen = static, bound(tuple(sizes.items()))
            else:
                evaluator, chosen = Evaluator(sizes, lost_rules), graph
        with _room(wide(chosen)):  # with sizes known, composites say more
            results = evaluator.run(chosen, arrays)[: len(chosen.outputs)]
            return [jnp.asarray(r) if isinstance(r, np.ndarray) else r for r in results]

    def flat(values: Sequence[Any]) -> list[Any]:
        with _room(wide(graph)):
            return run(values)

    return flat


def _room(wide: bool) -> contextlib.AbstractContextManager[Any]:
    """Where 64-bit values are possible, if they are needed."""
    return jx.enable_x64() if wide and not jx.x64_enabled() else contextlib.nullcontext()


def _no_deeper_than_jax(graph: Graph) -> Graph:
    """The graph without plain calls where they nest so deeply that JAX could not trace them.

    Raises:
        TraceError: graphs nest too deeply for another reason.
    """
    if _depth(graph) <= MAX_DEPTH:
        return graph
    found, before = graph, None
    while found is not before and _depth(found) > MAX_DEPTH:
        found, before = sweep(found, lambda: _in_place, nested=False), found  # one level each time
    if _depth(found) > MAX_DEPTH:
        raise TraceError(
            f"to_jax: at most {MAX_DEPTH} graphs are required to lie inside each other, as JAX "
            f"traces each by recursion; {graph.name!r} has {_depth(found)}, plain calls left out. "
            "Split it, or inline some of them (rlx.passes.InlineCalls())."
        )
    return found


def _depth(graph: Graph) -> int:
    depths: dict[int, int] = {}
    for inner in graph.all_graphs():
        below = [depths[id(g)] for node in inner.nodes() for g in inner_graphs(node.op)]
        depths[id(inner)] = 1 + max(below, default=0)
    return depths[id(graph)]


def _in_place(node: Node) -> tuple[Value, ...] | None:
    op = node.op
    if not isinstance(op, Call) or op.kind is not CallKind.JIT:
        return None
    return splice(op.body, node.inputs)


def _array(leaf: Value, value: Any) -> Any:
    """A value as an array of a leaf's type."""
    type_ = leaf.type
    if isinstance(value, bool | int | float | complex | list | tuple):
        value = np.asarray(value, type_.dtype.numpy)
    elif not hasattr(value, "dtype") or not hasattr(value, "shape"):
        value = jnp.asarray(value)
    same = value.dtype == type_.dtype.numpy and len(value.shape) == type_.rank
    if same and all(
        not isinstance(d, int) or d == n for d, n in zip(type_.shape, value.shape, strict=True)
    ):
        if getattr(value, "weak_type", False):
            return jax.lax.convert_element_type(value, value.dtype)
        return value
    advice = "Convert or reshape it."
    if 2 * np.dtype(value.dtype).itemsize == type_.dtype.numpy.itemsize in (8, 16):
        advice = (
            "Convert it, and set jax_enable_x64: without it JAX makes 32-bit numbers of 64-bit "
            "ones under grad, vmap and jit."
        )
    raise RunError(
        f"call: {leaf.name!r} is required to be {type_}; got {value.dtype}"
        f"[{', '.join(map(str, value.shape))}]. {advice}"
    )


def _sizes(declared: Sequence[tuple[str, Shape]], arrays: Sequence[Any]) -> dict[str, Any]:
    """JAX's sizes of the symbols: from the shapes where all are numbers, else read off."""
    shapes = [tuple(x.shape) for x in arrays]
    if not any(jx.is_symbolic(n) for shape in shapes for n in shape):
        names = [name for name, _ in declared]
        found = dims.infer_bindings(declared, dict(zip(names, shapes, strict=True)))
        return dict(sorted(found.items()))
    sizes: dict[str, Any] = {}
    for (_, stated), shape in zip(declared, shapes, strict=True):
        for dim, size in zip(stated, shape, strict=True):
            if not isinstance(dim, int) and str(dim).isidentifier():
                sizes.setdefault(str(dim), size)
    evaluator = Evaluator(sizes)
    for (name, stated), shape in zip(declared, shapes, strict=True):
        wanted = tuple(evaluator.size(d) for d in stated)
        if wanted != shape:
            raise RunError(
                f"call: {name!r} is required to have the shape {stated}, here "
                f"{wanted}; got {shape}."
            )
    return sizes


def _ordered(
    leaves: Sequence[Value], values: Mapping[str, Any], *, extra: bool = False
) -> list[Any]:
    if not extra:
        _check_known(leaves, values)
    missing = [v for v in leaves if v.name not in values]
    if missing:
        listing = ", ".join(f"{v.name!r}: {v.type}" for v in missing)
        raise RunError(f"to_jax: every param is required; missing {listing}.")
    return [values[v.name] for v in leaves]


def _check_known(leaves: Sequence[Value], values: Mapping[str, Any]) -> None:
    names = [v.name for v in leaves]
    unknown = [name for name in values if name not in names]
    if unknown:
        raise RunError(
            f"to_jax: unknown param {unknown[0]!r}; params are {', '.join(names) or 'none'}."
            f"{did_you_mean(unknown[0], names)}"
        )


def _argument_names(arguments: Arguments) -> list[str] | None:
    """Names of the positional arguments, if there are no others."""
    if arguments.kwargs:
        return None
    names = [f"arg{i}" for i in range(len(arguments.args))]
    for leaf in arguments.leaves:
        if isinstance(leaf.argument, int) and leaf.name != leaf.path:
            names[leaf.argument] = leaf.name.removesuffix(f"/{leaf.path}")
    return names


def _dressed(
    call: Callable[..., Any], name: str, names: Sequence[str] | None
) -> Callable[..., Any]:
    """Give a function the graph's name, and parameters named as its inputs where they can be."""
    call.__name__ = call.__qualname__ = name
    wanted = [] if names is None else list(names)
    if names is not None and len(set(wanted)) == len(wanted) and all(map(_is_name, wanted)):
        kind = inspect.Parameter.POSITIONAL_ONLY
        dressed: Any = call
        dressed.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in wanted])
    return call


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
