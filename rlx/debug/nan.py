"""Which node made the first NaN, with what it read and where the user wrote it.

The graph is interpreted in NumPy. The culprit is a node whose result holds NaN though no operand
does, and whose NaN reaches a result of the graph; a node that only passes NaN on is never named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.errors import RunError
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.interpret import evaluate_node
from rlx.ops.control_flow import Call, Cond, Scan, While
from rlx.options.precision import effective
from rlx.passes.base import PassContext
from rlx.passes.bind_dims import bind_shapes
from rlx.passes.bind_rng import BindRng
from rlx.passes.precision import ApplyPrecision
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.compiled import CompiledGraph
    from rlx.ir.attributes import Array

_LEAVES = ("input", "param", "constant")


@final
@dataclass(frozen=True)
class Operand:
    """What the culprit read.

    Attributes:
        name: the operand's name in the op's definition.
        type: dtype and shape.
        value: the array.
    """

    name: str
    type: TensorType
    value: Array


@final
@dataclass(frozen=True)
class Culprit:
    """The first node that made a NaN (or infinity) which reaches a result.

    Attributes:
        node: the node; its ``location`` is the user's line. An input, param or constant that
            holds the NaN itself is its own culprit.
        path: the loops, branches and calls around it, outermost first, with the step.
        operands: what it read.
        result: which of its results.
        element: index of the first such element.
        value: that element.
        what: ``NaN`` or ``infinity``.
    """

    node: Node
    path: tuple[str, ...]
    operands: tuple[Operand, ...]
    result: int
    element: tuple[int, ...]
    value: float | complex
    what: str

    def __str__(self) -> str:
        name = self.node.op.op_name
        if name in _LEAVES[:2]:
            name = f"{name} {self.node.results[0].name!r}"
        where = f" at {self.node.location}" if self.node.location else ""
        inside = "".join(f", in {step}" for step in reversed(self.path))
        verb = "holds" if self.node.op.op_name in _LEAVES else "makes"
        type_ = self.node.types[self.result]
        at = f" at {list(self.element)}" if self.element else ""
        lines = [f"{name}{where}{inside} {verb} the first {self.what}: {type_}{at} is {self.value}"]
        if type_.dtype is DType.F16 and self.what == "infinity":
            lines[0] += " (overflow: the largest f16 is 65504)"
        lines += [f"  {_shown(o, self.node.types[self.result], self.element)}"
                  for o in self.operands]  # fmt: skip
        return "\n".join(lines)


def localize_nan(compiled: CompiledGraph, *inputs: Any, infinities: bool = False) -> Culprit | None:
    """Find the node that makes the first NaN in a run with these inputs.

    Args:
        compiled: a compiled graph, its params set. What runs is its source graph in NumPy, in the
            precision that its options ask for.
        inputs: the arguments of a call, in the caller's structure.
        infinities: look for infinities that come from finite operands instead: overflow.

    Returns:
        The culprit, or None where no result of the graph holds one.

    Raises:
        RunError: params are not set, or arguments do not fit.
    """
    if not callable(compiled) or not hasattr(compiled, "graph"):
        raise RunError(
            "localize_nan: a compiled graph is required, with the arguments of a call; got "
            f"{type(compiled).__name__}. Compile it with rlx.Session(...).compile(...)."
        )
    graph = compiled.graph
    leaves = compiled.signature.leaves(inputs, {})
    if len(leaves) != len(graph.inputs):
        raise RunError(
            f"localize_nan: every input is required "
            f"({', '.join(f'{v.name}: {v.type}' for v in graph.inputs)}); got {len(leaves)}."
        )
    values = compiled.params()
    missing = [v.name for v in graph.params if v.name not in values]
    if missing:
        raise RunError(
            f"localize_nan: every param is required to be set; missing {', '.join(missing)}. "
            "Use set_params."
        )
    arrays = {
        v.name: _array(v, x, v.name in compiled.signature.key_inputs)
        for v, x in zip(graph.inputs, leaves, strict=True)
    }
    arrays |= {v.name: np.asarray(values[v.name]) for v in graph.params}
    graph = bind_shapes(graph, {n: a.shape for n, a in arrays.items()})
    for leaf in (*graph.inputs, *graph.params):
        if arrays[leaf.name].shape != leaf.type.shape:
            raise RunError(
                f"localize_nan: {leaf.name!r} is required to be {leaf.type}; got the shape "
                f"{list(arrays[leaf.name].shape)}. Reshape it."
            )
    ctx = PassContext(compiled.capabilities().options)
    policy = effective(ctx.options.precision, ctx.options.policy)
    if policy is not None:
        graph = ApplyPrecision(policy=policy).run(graph, ctx)
    graph = BindRng(rng=compiled.rng, hidden=False).run(graph, ctx)
    search = _Search("infinity" if infinities else "NaN")
    return search.find(graph, [arrays[v.name] for v in (*graph.inputs, *graph.params)], ())


def _array(leaf: Value, given: Any, is_key: bool) -> Array:
    """An argument as an array of the input's dtype."""
    if is_key and str(getattr(given, "dtype", "")).startswith("key"):
        raise RunError(
            f"localize_nan: the numbers of key {leaf.name!r} are required, {leaf.type}; got a key "
            "array. Pass jax.random.key_data(key)."
        )
    return np.asarray(given, leaf.type.dtype.numpy)


@final
class _Search:
    """One search for one kind of number."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._test: Callable[[Any], Any] = np.isinf if what == "infinity" else np.isnan

    def find(self, graph: Graph, arrays: Sequence[Array], path: tuple[str, ...]) -> Culprit | None:
        """The culprit in a static graph; the arrays are for its inputs, then its params."""
        bad: set[Value] = set()
        for node, _, results in _executed(graph, arrays):
            bad.update(v for v, a in zip(node.results, results, strict=True) if self._has(a))
        guilty = self._guilty(graph, bad)
        if guilty is None:
            return None
        for node, operands, results in _executed(graph, arrays):
            if node is guilty:
                inner = self._inside(node, operands, path)
                return inner or self._culprit(node, operands, results, path)
        return None

    def _guilty(self, graph: Graph, bad: set[Value]) -> Node | None:
        """The first node, in the graph's order, of those that lead to a bad result."""
        reached: set[Node] = set()
        stack = [v.node for v in graph.outputs if v in bad]
        while stack:
            node = stack.pop()
            if node not in reached:
                reached.add(node)
                stack += [v.node for v in node.inputs if v in bad]
        for node in graph.nodes():
            if node in reached and not any(v in bad for v in node.inputs):
                return node
        return None

    def _has(self, array: Array) -> bool:
        dtype = as_dtype(array.dtype)
        if not (dtype.is_float or dtype.is_complex):
            return False
        return bool(self._test(_wide(array)).any())

    def _culprit(
        self,
        node: Node,
        operands: Sequence[Array],
        results: Sequence[Array],
        path: tuple[str, ...],
    ) -> Culprit:
        number = next(i for i, a in enumerate(results) if self._has(a))
        array = _wide(results[number])
        place = tuple(int(i) for i in np.argwhere(self._test(array))[0])
        names = node.op.operand_names(len(operands))
        return Culprit(
            node,
            path,
            tuple(
                Operand(name, v.type, a)
                for name, v, a in zip(names, node.inputs, operands, strict=True)
            ),
            number,
            place,
            array[place].item(),
            self._what,
        )

    def _inside(
        self, node: Node, operands: Sequence[Array], path: tuple[str, ...]
    ) -> Culprit | None:
        """The culprit in the body of a loop, choice or call."""
        op = node.op
        where = f" at {node.location}" if node.location else ""
        if isinstance(op, Call):
            return self.find(op.body, operands, (*path, f"call {op.name!r}{where}"))
        if isinstance(op, Cond):
            chosen = min(max(int(operands[0]), 0), len(op.branches) - 1)
            inner = (*path, f"branch {chosen} of cond{where}")
            return self.find(op.branches[chosen], operands[1:], inner)
        if isinstance(op, Scan):
            return self._in_scan(op, operands, path, where)
        if isinstance(op, While):
            return self._in_while(op, operands, path, where)
        return None

    def _in_scan(
        self, op: Scan, operands: Sequence[Array], path: tuple[str, ...], where: str
    ) -> Culprit | None:
        length = op.length if isinstance(op.length, int) else int(str(op.length))
        first, last = op.num_consts + op.num_carry, len(operands) - len(op.body.effects)
        consts, carry = operands[: op.num_consts], list(operands[op.num_consts : first])
        xs, tokens = operands[first:last], operands[last:]
        for turn in range(length):
            step = length - 1 - turn if op.reverse else turn
            arguments = [*consts, *carry, *(x[step, ...] for x in xs), *tokens]
            results = _outputs(op.body, arguments)
            if any(self._has(a) for a in results):
                return self.find(
                    op.body, arguments, (*path, f"step {step} of {length} of scan{where}")
                )
            carry = results[: op.num_carry]
        return None

    def _in_while(
        self, op: While, operands: Sequence[Array], path: tuple[str, ...], where: str
    ) -> Culprit | None:
        consts = op.cond_consts + op.body_consts
        for_cond, for_body = operands[: op.cond_consts], operands[op.cond_consts : consts]
        carry, step = list(operands[consts:]), 0
        tokens = carry[len(op.body.outputs) :]
        carry = carry[: len(op.body.outputs)]
        while bool(_outputs(op.cond, [*for_cond, *carry])[0]):
            arguments = [*for_body, *carry, *tokens]
            carry = _outputs(op.body, arguments)
            if any(self._has(a) for a in carry):
                return self.find(op.body, arguments, (*path, f"step {step} of while{where}"))
            step += 1
        return None


def _executed(
    graph: Graph, arrays: Sequence[Array]
) -> Iterator[tuple[Node, list[Array], tuple[Array, ...]]]:
    """Each node with its operands and results, in order."""
    known = dict(zip((*graph.inputs, *graph.params), arrays, strict=True))
    for node in graph.nodes():
        operands = [known[v] for v in node.inputs]
        if node.results and node.results[0] in known:
            results = tuple(known[v] for v in node.results)
        else:
            with np.errstate(all="ignore"):
                results = evaluate_node(node, operands)
        known.update(zip(node.results, results, strict=True))
        yield node, operands, results


def _outputs(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    found: dict[Value, Array] = {}
    for node, _, results in _executed(graph, arrays):
        found.update(zip(node.results, results, strict=True))
    return [found[v] for v in graph.outputs]


def _wide(array: Array) -> np.ndarray[Any, Any]:
    dtype = as_dtype(array.dtype)
    return array if dtype.is_complex else array.astype(np.float64)


def _shown(operand: Operand, result: TensorType, element: tuple[int, ...]) -> str:
    """One operand: its element where the result's is, or its range."""
    array = operand.value
    head = f"{operand.name}: {operand.type}"
    if not array.size or operand.type.dtype is DType.TOKEN:
        return head
    if array.shape == result.shape:
        at = f" at {list(element)}" if element else ""
        return f"{head}{at} is {array[element].item()}"
    if array.size == 1:
        return f"{head} is {array.reshape(-1)[0].item()}"
    if as_dtype(array.dtype).is_complex:
        return f"{head}, moduli {np.abs(array).min()} to {np.abs(array).max()}"
    wide = array.astype(np.float64)
    return f"{head}, elements {np.nanmin(wide):g} to {np.nanmax(wide):g}"
