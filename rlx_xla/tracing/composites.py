"""Composite ops as named ``jit``s, and back.

An op that is no single JAX primitive becomes ``jax.jit`` of a function named
``rlx:softmax{axis = 1}``. JAX keeps that name through its transformations, also where the body no
longer is that op (a derivative, a batched body). So a name alone proves nothing: tracing makes the
op again only where the body is, node for node, the one that the op named would have given.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from rlx import dims
from rlx.dims import DimExpr
from rlx.errors import RlxError
from rlx.ir.attributes import Opaque
from rlx.ir.derivatives import has_rule, rule_graphs, rules_of
from rlx.ir.graph import Graph, inner_graphs, same
from rlx.ir.op import Op
from rlx.ir.text import parse
from rlx.ops.io import Input
from rlx.types import TensorType
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla.tracing.jax_registry import jax_rule_for

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from rlx_xla.tracing.context import TraceContext

PREFIX = "rlx:"
CALL_PREFIX = "rlx-call:"

Sizes = tuple[tuple[str, Any], ...]

_numbers = itertools.count()
_by_number: weakref.WeakValueDictionary[str, Op] = weakref.WeakValueDictionary()


def call(
    op: Op, types: Sequence[TensorType], sizes: Mapping[str, Any], arrays: Sequence[Any]
) -> Any:
    """Apply a composite op to arrays through its named ``jit``.

    Args:
        op: the op.
        types: types of its inputs.
        sizes: JAX's size of each symbol in ``op`` and ``types``.
        arrays: the inputs.

    Returns:
        A list of the results.
    """
    return _function(op, tuple(types), tuple(sorted(sizes.items())))(*arrays)


def recognise(
    ctx: TraceContext, name: str, closed: Any, operands: Sequence[Value]
) -> tuple[Value, ...] | None:
    """The op that a named ``jit`` stands for, applied to values; None where it is none.

    Args:
        ctx: the trace at the ``jit``.
        name: the function's name.
        closed: its jaxpr.
        operands: the inputs.
    """
    if not name.startswith(PREFIX):
        return None
    found = _named(name[len(PREFIX) :], [v.type for v in operands], ctx.out_types)
    if found is None:
        return None
    body = ctx.graph(closed, "body")
    if ctx.constants(closed):
        return None
    types, sizes = tuple(v.type for v in operands), tuple(sorted(ctx.walker.symbols().items()))
    current = jx.x64_enabled()
    for x64 in (current, not current):
        with jx.enable_x64(x64):
            wanted = _expected(found, types, sizes, x64)
        if wanted is not None and same(body, wanted):
            made = found(*operands)
            return made if isinstance(made, tuple) else (made,)
    return None


def plain_name(name: str) -> str:
    """The name of a function for people: of a composite, the op's."""
    if is_call(name):
        return name.removeprefix(CALL_PREFIX)
    if not name.startswith(PREFIX):
        return name
    return name.removeprefix(PREFIX).partition("{")[0].rpartition(":")[2]


def call_name(name: str, body: Graph) -> str:
    """The name of a function for a call; marked where tracing would write the body in place."""
    leaves = ("input", "param", "constant", "create_token")
    size = sum(node.op.op_name not in leaves for node in body.nodes())
    return CALL_PREFIX + name if size < 3 else name


def is_call(name: str) -> bool:
    """Tell whether a function's name says that it is a call however small it is."""
    return name.startswith(CALL_PREFIX)


def decomposition(op: Op, types: Sequence[TensorType]) -> Graph:
    """What an op is made of, as a graph of its inputs."""
    leaves = [Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types)]
    made = op.decompose(*leaves)
    return Graph(leaves, (), made if isinstance(made, tuple) else (made,), name=op.op_name)


@functools.lru_cache(maxsize=4096)
def _function(op: Op, types: tuple[TensorType, ...], sizes: Sizes) -> Callable[..., list[Any]]:
    from rlx_xla.tracing.evaluation import Evaluator, JaxContext

    evaluator = Evaluator(dict(sizes))
    rule = jax_rule_for(type(op))
    if rule is None:
        graph = decomposition(op, types)

        def body(*arrays: Any) -> list[Any]:
            return evaluator.run(graph, arrays)
    else:
        leaves = [Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types)]
        results = op(*leaves)
        node = (results[0] if isinstance(results, tuple) else results).node

        def body(*arrays: Any) -> list[Any]:
            made = rule(JaxContext(evaluator, node), op, *arrays)
            return list(made) if isinstance(made, list | tuple) else [made]

    body.__name__ = body.__qualname__ = _name(op, types, dict(sizes))
    if not has_rule(type(op)):
        return jax.jit(body)
    from rlx_xla.tracing import own_rules

    graphs = rule_graphs(op, types, *rules_of(type(op)))
    vjp, jvp = (None if graph is None else evaluator.function(graph) for graph in graphs)
    results = op.infer_types(types)
    return own_rules.with_rules(jax.jit(body), types, results, vjp, jvp, jvp_takes_results=True)


def _name(op: Op, types: Sequence[TensorType], sizes: Mapping[str, Any]) -> str:
    """``rlx:`` and the op's text; attributes in JAX's symbols."""
    values = op.attributes().values()
    if any(isinstance(v, Opaque) for v in values):
        return op.op_name
    if inner_graphs(op):
        return op.op_name if sizes else _numbered(op)
    if sizes:
        binding = {n: dims.parse(str(s)) for n, s in sizes.items()}
        op = op.replace(**{n: _substitute(v, binding) for n, v in op.attributes().items()})
        types = [t.with_shape(tuple(_substitute(d, binding) for d in t.shape)) for t in types]
    leaves = [Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types)]
    made = op(*leaves)
    outputs = made if isinstance(made, tuple) else (made,)
    lines = str(Graph(leaves, (), outputs)).splitlines()
    line = next(line for line in lines if f" = {op.op_name}(" in line)
    shown = line.partition(") ")[2].partition("}: ")[0]
    return (
        f"{PREFIX}{op.op_name}{shown}}}" if shown.startswith("{") else f"{PREFIX}{op.op_name}{{}}"
    )


def _numbered(op: Op) -> str:
    """The name of an op whose text is too long for one: a number of this process."""
    number = str(next(_numbers))
    _by_number[number] = op
    return f"{PREFIX}#{number}:{op.op_name}"


def _substitute(value: Any, binding: Mapping[str, Any]) -> Any:
    if isinstance(value, DimExpr):
        known = {n: d for n, d in binding.items() if n in dims.symbols(value)}
        return dims.substitute(value, known)
    if isinstance(value, tuple):
        return tuple(_substitute(item, binding) for item in value)
    return value


def _named(text: str, in_types: Sequence[TensorType], out_types: Sequence[TensorType]) -> Op | None:
    if not text.startswith("#"):
        return _parse(text, in_types, out_types)
    op = _by_number.get(text[1:].partition(":")[0])
    if op is None:
        return None
    try:
        made = op.infer_types(in_types)
    except RlxError:
        return None  # a batch or a derivative of the function
    return op if made == tuple(out_types) else None


def _parse(text: str, in_types: Sequence[TensorType], out_types: Sequence[TensorType]) -> Op | None:
    """Read an op's text; None unless it takes and gives these types."""
    name, _, rest = text.partition("{")
    attributes = rest.removesuffix("}")
    inputs = "\n".join(f'input %a{i} "a{i}": {t}' for i, t in enumerate(in_types))
    operands = ", ".join(f"%a{i}" for i in range(len(in_types)))
    count = "" if len(out_types) == 1 else f":{len(out_types)}"
    results = ", ".join(map(str, out_types))
    shown = results if len(out_types) == 1 else f"({results})"
    returned = "%r" if len(out_types) == 1 else "%r#0"
    if not name.isidentifier() or "\n" in attributes:
        return None
    source = (
        f'graph "composite" {{\n{inputs}\n'
        f"%r{count} = {name}({operands}) {{{attributes}}}: {shown}\nreturn {returned}\n}}"
    )
    if not attributes:
        source = source.replace(") {}:", "):")
    try:
        graph = parse(source)
    except RlxError:
        return None  # the name of a user's function, or a body of other types
    return graph.outputs[0].node.op


@functools.lru_cache(maxsize=4096)
def _expected(op: Op, types: tuple[TensorType, ...], sizes: Sizes, x64: bool) -> Graph | None:
    """The graph that tracing an op's named ``jit`` gives; None for an op that has none."""
    from rlx_xla.tracing.evaluation import Evaluator
    from rlx_xla.tracing.jax_registry import is_direct
    from rlx_xla.tracing.walk import JaxprWalker
    from rlx_xla.tracing.wide import is_made_of_64_bits

    if not x64 and is_made_of_64_bits(op, types):
        return None
    if is_direct(op, types) or not (op.has_decompose or jax_rule_for(type(op))):
        return None
    known = {name for name, _ in sizes}
    if any(not known.issuperset(t.symbols) for t in types):
        return None
    evaluator = Evaluator(dict(sizes))
    shapes = [tuple(evaluator.size(d) for d in t.shape) for t in types]
    avals = [jx.abstract(s, t.dtype.numpy) for s, t in zip(shapes, types, strict=True)]
    traced = jx.trace_function(_function(op, types, sizes), avals)
    (equation,) = jx.open_jaxpr(traced.jaxpr).eqns
    closed = jx.called_jaxpr(equation.primitive.name, equation.params)
    if has_rule(type(op)):  # the named jit stands inside the function with the rule
        (equation,) = jx.open_jaxpr(closed).eqns
        closed = jx.called_jaxpr(equation.primitive.name, equation.params)
    walker = JaxprWalker(_refuse)
    return walker.inner_graph(closed, "body")


def _refuse(array: Any, index: int) -> Any:
    raise AssertionError("a composite captures nothing outside its body")
