"""Gives classes of ops a low precision, as a policy says, and puts the conversions in."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from rlx.dtypes import DType
from rlx.ir.attributes import Literal
from rlx.ir.graph import Graph, Node, Value, inner_graphs, make_node
from rlx.ir.op import Op
from rlx.ir.rewrite import with_inner_graphs
from rlx.ops.arithmetic import Add, Max, Min, Mul, Neg, Sub
from rlx.ops.compare import Select
from rlx.ops.control_flow import Call, Cond, Scan, While
from rlx.ops.convert import Convert
from rlx.ops.io import Constant
from rlx.ops.reduction import ReduceMax, ReduceMin, ReduceSum
from rlx.options.precision import OpClass, Precision, PrecisionPolicy
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.precision.classes import class_of

_DTYPES = {Precision.F32: DType.F32, Precision.F16: DType.F16, Precision.BF16: DType.BF16}
_LARGEST_F16 = 65504.0
_NAMED = 5
"""How many params a note names."""

_NESTING = (Call, Cond, Scan, While)
"""Ops whose bodies are looked into; what they take and give keeps its dtype."""

_KEEP_SIZE = (Add, Mul, Neg, Select, Sub)
"""Elementwise ops whose results are as large as a constant that they read: masks that are added."""

_EXTREMES = (Max, Min, ReduceMax, ReduceMin, ReduceSum)
"""Ops that a softmax puts such a mask through, where reductions are lowered too."""

_MASK = "mask"
"""The operand that an attention adds to its scores, or compares with a half: never rounded."""


@final
@dataclass(frozen=True, kw_only=True)
class ApplyPrecision(AbstractPass):
    """Computes f32 ops in the precision of their class.

    Only f32 is lowered: integers, bools, f64 and what the graph itself computes in another dtype
    stay, and so do the types of inputs, params and outputs, here and in the bodies of loops and
    calls. Products accumulate in f32; where their result goes into f32 it is never rounded. What
    flows into or comes out of a reduction without a product between stays in f32, unless the
    policy lowers reductions too; then their operands and results are rounded, not their sums. So
    does the mask of an attention, which is added to scores in f32, and what reads a constant that
    the low dtype cannot hold.

    Attributes:
        policy: precision by class, and overrides by label. What it lowers to a dtype that the
            device lacks stays in f32, and a note says so.
    """

    name: ClassVar[str] = "apply-precision"
    keeps_values: ClassVar[bool] = False
    policy: PrecisionPolicy

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        asked = dict.fromkeys(p for _, p in (*self.policy.low, *self.policy.overrides))
        lacking = [p for p in asked if _DTYPES[p] in ctx.lacks]
        for precision in lacking:
            ctx.note(
                f"the device lacks {precision.value}: what {self.policy} computes in it stays in "
                "f32"
            )
        lowering = _Lowering(_Chooser(self.policy, lacking))
        result = lowering.graph(graph)
        for line in lowering.lines(changed=result is not graph):
            ctx.note(line)
        return result


@final
class _Chooser:
    """The precision of a node, and its class."""

    def __init__(self, policy: PrecisionPolicy, lacking: Sequence[Precision]) -> None:
        self._low = {kind: p for kind, p in policy.low if p not in lacking}
        self._overrides = [
            (pattern, Precision.F32 if p in lacking else p) for pattern, p in policy.overrides
        ]
        self.lowers_reductions = OpClass.REDUCTION in self._low

    def dtype(self, node: Node, kind: OpClass) -> tuple[DType, bool]:
        """The dtype to compute in, and whether an override says so."""
        for pattern, precision in self._overrides:
            if fnmatch.fnmatchcase(node.location.label, pattern):
                return _DTYPES[precision], True
        return _DTYPES[self._low.get(kind, Precision.F32)], False


@final
class _Flow:
    """Where the values of one graph go to and come from."""

    def __init__(self, graph: Graph, chooser: _Chooser) -> None:
        self._to_reduction: set[Value] = set()
        self._from_reduction: set[Value] = set()
        self._whole: set[Value] = set(graph.outputs)
        passing = (OpClass.ELEMENTWISE, OpClass.DATA_MOVEMENT)
        keeping = () if chooser.lowers_reductions else (OpClass.REDUCTION,)
        kinds = {node: class_of(node.op) for node in graph.nodes()}
        for node in reversed(graph.nodes()):
            onward = kinds[node] in passing and any(v in self._to_reduction for v in node.results)
            if onward or kinds[node] in keeping:
                self._to_reduction.update(node.inputs)
            elif kinds[node] is OpClass.COMPUTE and not chooser.lowers_reductions:
                self._to_reduction.update(_masks(node))
        for node in graph.nodes():
            onward = kinds[node] in passing and any(v in self._from_reduction for v in node.inputs)
            if onward or kinds[node] in keeping:
                self._from_reduction.update(node.results)
        for node in reversed(graph.nodes()):
            if self._reads_whole(node, kinds[node], chooser):
                self._whole.update(node.inputs)
            self._whole.update(_masks(node))

    def _reads_whole(self, node: Node, kind: OpClass | None, chooser: _Chooser) -> bool:
        if kind is None:
            return True
        dtype, forced = chooser.dtype(node, kind)
        if forced or dtype is DType.F32:
            return dtype is DType.F32
        if kind is OpClass.DATA_MOVEMENT:
            return self.is_read_whole(node)
        return kind is OpClass.ELEMENTWISE and self.is_statistic(node)

    def is_statistic(self, node: Node) -> bool:
        """Whether a node computes what a reduction reads, or with what one gave."""
        return any(v in self._to_reduction for v in node.results) or any(
            v in self._from_reduction for v in node.inputs
        )

    def is_read_whole(self, node: Node) -> bool:
        """Whether something reads a result in f32, or it is an output."""
        return any(v in self._whole for v in node.results)


@final
class _Lowering:
    """One run of the pass over a graph and the bodies inside."""

    def __init__(self, chooser: _Chooser) -> None:
        self._chooser = chooser
        self._done: dict[Graph, Graph] = {}
        self._casts: Counter[str] = Counter()
        self._lowered: Counter[tuple[OpClass, DType]] = Counter()
        self._overridden = 0
        self._overflow: list[str] = []
        self._cast_params: list[str] = []

    def graph(self, graph: Graph) -> Graph:
        """The graph in the policy's precisions; itself where nothing is lowered."""
        everything = graph.all_graphs()
        nesting = (n.op for g in everything for n in g.nodes() if isinstance(n.op, _NESTING))
        bodies = {body for op in nesting for body in inner_graphs(op)}
        for inner in everything:  # inner ones first
            if inner is graph or inner in bodies:
                self._done[inner] = self._one(inner)
        return self._done[graph]

    def _one(self, graph: Graph) -> Graph:
        flow = _Flow(graph, self._chooser)
        values = _Versions(self._casts)
        changed = False
        for node in graph.nodes():
            made = self._lower(node, flow, values)
            changed = changed or made is not node
            for old, new in zip(node.results, made.results, strict=True):
                values.put(old, new)
        if not changed:
            return graph
        self._cast_params += [p.name for p in graph.params if values.has_low(p)]
        return Graph(
            graph.inputs,
            graph.params,
            [values.get(v, v.type.dtype) for v in graph.outputs],
            [values.get(v, v.type.dtype) for v in graph.effects],
            name=graph.name,
        )

    def _lower(self, node: Node, flow: _Flow, values: _Versions) -> Node:
        kind = class_of(node.op)
        if kind is not None and kind is not OpClass.BOUNDARY and _is_f32(node):
            dtype, forced = self._chooser.dtype(node, kind)
            self._overridden += forced
            if dtype is not DType.F32:
                made = self._lowered_node(node, kind, dtype, forced, flow, values)
                if made is not None:
                    self._lowered[kind, dtype] += 1
                    return made
        if isinstance(node.op, Constant) and kind is OpClass.BOUNDARY:
            values.remember_constant(node)
        keeps_size = _KEEP_SIZE + (_EXTREMES if self._chooser.lowers_reductions else ())
        if kind is OpClass.DATA_MOVEMENT or isinstance(node.op, keeps_size):
            values.remember_moved(node)
        op = node.op
        inner = inner_graphs(op)
        if isinstance(op, _NESTING) and any(self._done[g] is not g for g in inner):
            op = with_inner_graphs(op, [self._done[g] for g in inner])
        inputs = tuple(values.get(v, v.type.dtype) for v in node.inputs)
        if op is node.op and inputs == node.inputs:
            return node
        return Node(op, inputs, node.types, node.location)

    def _lowered_node(
        self,
        node: Node,
        kind: OpClass,
        dtype: DType,
        forced: bool,
        flow: _Flow,
        values: _Versions,
    ) -> Node | None:
        """The node in a low precision; None where it stays as it is."""
        if not forced and self._would_overflow(node, dtype, values):
            return None
        if kind is OpClass.REDUCTION:
            return self._rounded(node, dtype, values)
        if kind is OpClass.ELEMENTWISE and not forced and flow.is_statistic(node):
            return None
        if kind is OpClass.DATA_MOVEMENT and not forced:
            floats = [v for v in node.inputs if v.type.dtype is DType.F32]
            already = all(values.is_low(v, dtype) for v in floats)
            if not already and (flow.is_read_whole(node) or _shrinks(node)):
                return None
        op = _accumulating(node.op)
        if op is None:
            return None
        op = _filling(op, dtype)
        inputs = [
            values.get(v, dtype if v.type.dtype is DType.F32 and name != _MASK else None)
            for name, v in _named(node)
        ]
        self._note_overflow(node, dtype, values)
        return make_node(op, inputs, node.location)

    def _would_overflow(self, node: Node, dtype: DType, values: _Versions) -> bool:
        """Whether a node reads a constant that would be infinite: zero times it would be NaN.

        A policy that lowers reductions too is asked for everything in the dtype, and its report
        names the constant.
        """
        if not any(values.is_beyond(v, dtype) for name, v in _named(node) if name != _MASK):
            return False
        if self._chooser.lowers_reductions:
            self._note_overflow(node, dtype, values)
        return True

    def _rounded(self, node: Node, dtype: DType, values: _Versions) -> Node:
        """A reduction of rounded operands, computed in f32, whose results are rounded."""
        inputs: list[Value] = []
        for value in node.inputs:
            if value.type.dtype is DType.F32:
                low = values.get(value, dtype)
                inputs.append(values.widened(low))
            else:
                inputs.append(values.get(value, None))
        self._note_overflow(node, dtype, values)
        wide = make_node(node.op, inputs, node.location)
        if len(node.types) > 1:
            return wide
        return make_node(Convert(dtype=dtype), wide.results, node.location)

    def _note_overflow(self, node: Node, dtype: DType, values: _Versions) -> None:
        """Name constants that a node reads and that its dtype cannot hold."""
        if dtype is not DType.F16:
            return
        for value in node.inputs:
            count, largest = values.beyond_f16(value)
            if count and isinstance(value.node.op, Constant):
                where = f" at {node.location}" if node.location else ""
                self._overflow.append(
                    f"overflow: constant {value.type}, read by {node.op.op_name}{where}, holds "
                    f"{count} elements beyond {_LARGEST_F16:g}, the largest f16 (up to "
                    f"{largest:g})"
                )

    def lines(self, *, changed: bool) -> list[str]:
        """What was done, for the report; of a graph that stays, constants beyond the dtype."""
        if not changed:
            return list(dict.fromkeys(self._overflow))
        made = [
            f"{kind.value} in {dtype}: {count} ops"
            for (kind, dtype), count in self._lowered.items()
        ]
        if self._overridden:
            made.append(f"{self._overridden} ops by overrides of labels")
        casts = ", ".join(f"{what} × {count}" for what, count in sorted(self._casts.items()))
        made.append(f"casts: {casts or 'none'}")
        made += dict.fromkeys(self._overflow)
        if self._cast_params:
            made.append(
                f"params converted on every run: {_some(self._cast_params)}; "
                "cache_param_invariant=True converts them once"
            )
        return made


@final
class _Versions:
    """What stands for each value of the source graph, in one dtype or several."""

    def __init__(self, casts: Counter[str]) -> None:
        self._known: dict[Value, dict[DType, Value]] = {}
        self._wide: dict[Value, Value] = {}
        self._beyond: dict[Value, tuple[int, float]] = {}
        self._casts = casts

    def put(self, old: Value, new: Value) -> None:
        """A node was made anew, perhaps in another dtype."""
        self._known.setdefault(old, {})[new.type.dtype] = new

    def get(self, value: Value, dtype: DType | None) -> Value:
        """The value in a dtype (None: its own), converted once."""
        known = self._known[value]
        wanted = value.type.dtype if dtype is None else dtype
        found = known.get(wanted)
        if found is None:
            source = known.get(value.type.dtype, next(iter(known.values())))
            found = known[wanted] = self._cast(source, wanted)
        return found

    def widened(self, low: Value) -> Value:
        """A rounded value in f32."""
        if low not in self._wide:
            self._wide[low] = self._cast(low, DType.F32)
        return self._wide[low]

    def is_low(self, value: Value, dtype: DType) -> bool:
        """Whether a value exists in a dtype and nowhere in its own."""
        known = self._known[value]
        return dtype in known and value.type.dtype not in known

    def has_low(self, value: Value) -> bool:
        """Whether a value was converted."""
        return len(self._known.get(value, ())) > 1

    def remember_constant(self, node: Node) -> None:
        """Look whether f16 can hold a constant."""
        op = node.op
        if isinstance(op, Constant) and node.types[0].dtype is DType.F32:
            sizes = np.abs(op.value.array)
            beyond = np.isfinite(sizes) & (sizes > _LARGEST_F16)
            if beyond.any():
                self._beyond[node.results[0]] = (int(beyond.sum()), float(sizes[beyond].max()))

    def remember_moved(self, node: Node) -> None:
        """The results of a node that stays in f32 hold what its constants hold."""
        for value in node.inputs:
            if value in self._beyond:
                self._beyond.update(dict.fromkeys(node.results, self._beyond[value]))

    def is_beyond(self, value: Value, dtype: DType) -> bool:
        """Whether an element of a constant is finite and would not be in a dtype."""
        if value not in self._beyond:
            return False
        with np.errstate(over="ignore"):
            return bool(np.isinf(np.float32(self._beyond[value][1]).astype(dtype.numpy)))

    def beyond_f16(self, value: Value) -> tuple[int, float]:
        """How many elements of a constant f16 cannot hold, and the largest."""
        return self._beyond.get(value, (0, 0.0))

    def _cast(self, source: Value, dtype: DType) -> Value:
        self._casts[f"{source.type.dtype} → {dtype}"] += 1
        made: Value = make_node(Convert(dtype=dtype), [source], source.node.location).results[0]
        return made


def _shrinks(node: Node) -> bool:
    """Whether the results are smaller than the operands: they are what is cheaper to convert."""
    sizes = [t.shape for t in (*node.types, *(v.type for v in node.inputs))]
    if not all(isinstance(d, int) for shape in sizes for d in shape):
        return False
    return sum(t.nbytes for t in node.types) < max(v.type.nbytes for v in node.inputs)


def _named(node: Node) -> list[tuple[str, Value]]:
    """The operands of a node, each with its name."""
    return list(zip(node.op.operand_names(len(node.inputs)), node.inputs, strict=True))


def _masks(node: Node) -> tuple[Value, ...]:
    """The masks that a node reads, which stay as they are."""
    return tuple(value for name, value in _named(node) if name == _MASK)


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _is_f32(node: Node) -> bool:
    """Whether every float that a node takes and gives is f32."""
    types = (*node.types, *(v.type for v in node.inputs))
    numbers = [t.dtype for t in types if t.dtype.is_float or t.dtype.is_complex]
    return bool(numbers) and all(d is DType.F32 for d in numbers) and _gives_float(node)


def _gives_float(node: Node) -> bool:
    return all(t.dtype is DType.F32 for t in node.types)


def _filling(op: Op, dtype: DType) -> Op:
    """The op that fills with a number of a low dtype where it fills with one of f32."""
    fill = op.attributes().get("fill_value")
    if isinstance(fill, Literal) and fill.type.dtype is DType.F32:
        with np.errstate(over="ignore"):
            return op.replace(fill_value=Literal(fill.array, dtype))
    return op


def _accumulating(op: Op) -> Op | None:
    """The op with low operands; None for one that says itself how it multiplies."""
    attributes: Mapping[str, object] = op.attributes()
    if attributes.get("algorithm") is not None:
        return None
    if "preferred_element_type" in attributes:
        return op.replace(preferred_element_type=DType.F32)
    return op
