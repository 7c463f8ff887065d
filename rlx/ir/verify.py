"""The rules of the IR, checked on any graph, however damaged; all faults are found at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast, final

from rlx.dtypes import DType
from rlx.errors import ShapeError, VerifyError
from rlx.ir.annotations import faults, fits
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.location import Location
from rlx.ir.op import Op
from rlx.ir.text_parse import INFER_FAULTS
from rlx.sharding import mesh_of
from rlx.types import TOKEN, TensorType

_LEAVES = ("input", "param")


def verify(graph: Graph) -> None:
    """Check that a graph keeps every rule of the IR.

    Structure: it is acyclic, and inputs are results of nodes. Leaves: each is listed once, under
    its role, and names are unique. Types: each node's types are what ``infer`` gives, attributes
    are of their annotated kinds, and a symbol has one declaration. Effects: each token is used
    once, and the last ones are the graph's effects. Inner graphs: they keep the rules too and
    have no params. Meshes: all are of one number of devices.

    Raises:
        VerifyError: with a line for each fault, naming the node and its location.
    """
    findings: list[str] = []
    seen: set[int] = {id(graph)}
    stack: list[tuple[Graph, str]] = [(graph, "")]
    while stack:
        current, where = stack.pop()
        if _keeps_rules(current):
            nodes = [node for node in current.nodes() if node.op.holds_graphs]
        else:
            check = _Check(current)
            check.run()
            findings.extend(where + f for f in check.findings)
            nodes = check.nodes
        for node in nodes:
            for inner in _inner_graphs(node.op):
                if id(inner) in seen:
                    continue
                seen.add(id(inner))
                place = f"in graph {_text(inner.name)} of {_described(node)}: "
                if inner.params:
                    names = ", ".join(_described(v) for v in inner.params)
                    findings.append(f"{place}an inner graph has inputs only; got params {names}.")
                stack.append((inner, place))
    if not findings:
        try:
            mesh_of(graph)
        except ShapeError as error:
            findings.append(str(error))
    if findings:
        raise VerifyError(findings)


def _keeps_rules(graph: Any) -> bool:
    """Whether a graph without tokens keeps every rule: one walk over it in its own order.

    Almost every graph does. Where this says no, ``_Check`` finds what is wrong, if anything is.
    """
    if type(graph) is not Graph or type(graph.name) is not str or graph.effects != ():
        return False
    leaves = _sound_leaves(graph)
    if leaves is None or type(graph.outputs) is not tuple:
        return False
    seen: set[Node] = set()
    for node in graph.nodes():
        if not _is_sound_node(node, seen, leaves):
            return False
        seen.add(node)
    for value in (*graph.outputs, *graph.inputs, *graph.params):
        if _type_among(value, seen) is None:
            return False
    from rlx.ir.text import clashing_symbols

    return not clashing_symbols(graph.nodes())


def _sound_leaves(graph: Graph) -> set[Node] | None:
    """The leaves that a graph lists; None where one is wrong."""
    leaves: set[Node] = set()
    names: set[str] = set()
    for role, values in (("input", graph.inputs), ("param", graph.params)):
        if type(values) is not tuple:
            return None
        for value in values:
            if _value_fault(value) or not _is_op(value.node.op) or value.node in leaves:
                return None
            op = value.node.op
            name = getattr(op, "name", None)
            if op.op_name != role or type(name) is not str or name in names:
                return None
            leaves.add(value.node)
            names.add(name)
    return leaves


def _is_sound_node(node: Any, seen: set[Node], leaves: set[Node]) -> bool:
    """Whether a node after those seen keeps every rule, and neither reads nor makes a token."""
    op, types, inputs = node.op, node.types, node.inputs
    if type(types) is not tuple or type(inputs) is not tuple or type(node.location) is not Location:
        return False
    if not _is_op(op) or (op.attribute_names and not fits(op)):
        return False
    for kind in cast("tuple[Any, ...]", types):
        if type(kind) is not TensorType or kind.dtype is DType.TOKEN:
            return False
    if len(cast("tuple[Any, ...]", types)) != len(_tuple(node.results)):
        return False
    operands: list[TensorType] = []
    for value in cast("tuple[Any, ...]", inputs):
        found = _type_among(value, seen)
        if found is None:
            return False
        operands.append(found)
    if op.op_name in _LEAVES and node not in leaves:
        return False
    try:
        return bool(op.infer_types(operands) == types)
    except INFER_FAULTS:
        return False


def _type_among(value: Any, nodes: set[Node]) -> TensorType | None:
    """The type of a result of one of the nodes; None for anything else."""
    if type(value) is not Value or value.node not in nodes:
        return None
    index, results = value.index, value.node.results
    if type(index) is not int or not 0 <= index < len(results) or results[index] is not value:
        return None
    return value.node.types[index]


@final
class _Check:
    """The faults of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.findings: list[str] = []
        self.nodes: list[Node] = []
        self.sound: set[int] = set()
        self.typed: set[int] = set()

    def run(self) -> None:
        if not isinstance(cast("object", self.graph), Graph):
            given = f"a Graph is required; got {_kind(self.graph)}."
            self.add(f"{given} For a traced function give traced.graph.")
            return
        if not isinstance(cast("object", self.graph.name), str):
            self.add(f"the graph's name is a str; got {_kind(self.graph.name)}.")
        self.order()
        for node in self.nodes:
            self.check_op(node)
        self.check_leaves()
        self.check_tokens()
        self.check_symbols()

    def add(self, finding: str) -> None:
        self.findings.append(finding)

    def roots(self) -> Iterator[Value]:
        for role in ("inputs", "params", "outputs", "effects"):
            values: Any = getattr(self.graph, role)
            if type(values) is not tuple:
                self.add(f"the graph's {role} are a tuple; got {_kind(values)}.")
                continue
            for position, value in enumerate(cast("tuple[Any, ...]", values)):
                if self.is_sound_value(value, role, position):
                    yield value

    def is_sound_value(self, value: Any, owner: Node | str, position: int) -> bool:
        """Whether something is a result of a node, which then can be visited."""
        fault = _value_fault(value)
        if fault:
            is_role = isinstance(owner, str)
            where = f"{owner}[{position}]" if is_role else f"{_described(owner)}: input {position}"
            self.add(f"{where} is required to be {fault}")
        return not fault

    def order(self) -> None:
        """Visit what is reachable, inputs before users; report cycles and unsound inputs."""
        state: dict[int, int] = {}  # 1 = being visited, 2 = done
        for root in list(self.roots()):
            stack: list[tuple[Node, list[Value]]] = []
            self.enter(root.node, state, stack)
            while stack:
                node, waiting = stack[-1]
                if waiting:
                    inner = waiting.pop().node
                    if state.get(id(inner)) == 1:
                        self.add(f"{_described(inner)} depends on itself: the graph has a cycle.")
                        self.sound.discard(id(node))
                    else:
                        self.enter(inner, state, stack)
                    continue
                stack.pop()
                state[id(node)] = 2
                self.nodes.append(node)

    def enter(
        self, node: Node, state: dict[int, int], stack: list[tuple[Node, list[Value]]]
    ) -> None:
        if id(node) in state:
            return
        state[id(node)] = 1
        inputs: Any = node.inputs
        good: list[Value] = []
        before = len(self.findings)
        if type(inputs) is not tuple:
            self.add(f"{_described(node)}: inputs are a tuple; got {_kind(inputs)}.")
        else:
            for position, value in enumerate(cast("tuple[Any, ...]", inputs)):
                if self.is_sound_value(value, node, position):
                    good.append(value)
        if len(self.findings) == before:
            self.sound.add(id(node))
        good.reverse()
        stack.append((node, good))

    def check_op(self, node: Node) -> None:
        """Attributes, types and inference of one node."""
        op: Any = node.op
        types: Any = node.types
        if not isinstance(cast("object", node.location), Location):
            self.add(f"{_described(node)}: the location is a Location; got {_kind(node.location)}.")
        wrong = _type_fault(types)
        if wrong:
            self.add(f"{_described(node)}: {wrong}")
        elif len(types) != len(_tuple(node.results)):
            self.add(f"{_described(node)}: each of its {len(types)} types needs a result.")
            wrong = "count"
        if not wrong:
            self.typed.add(id(node))
        if not _is_op(op):
            self.add(f"{_described(node)}: the op is required to be an Op; got {_kind(op)}.")
            return
        found: list[str] = []
        if op.attribute_names:
            missing = [n for n in op.attribute_names if not hasattr(op, n)]
            found = [f"attribute {n!r} is missing." for n in missing]
            if not missing:
                found = [fault for _, fault in faults(cast("type[Op]", type(op)), op.attributes())]
        for fault in found:
            self.add(f"{_described(node)}: {fault}")
        if found or wrong or id(node) not in self.sound:
            return
        operands: list[TensorType] = []
        for value in node.inputs:
            if id(value.node) not in self.typed:
                return  # reported at that node
            operands.append(value.node.types[value.index])
        try:
            inferred = op.infer_types(operands)
        except INFER_FAULTS as error:
            self.add(f"{_described(node)}: infer refuses it: {type(error).__name__}: {error}")
            return
        if inferred != types:
            self.add(f"{_described(node)}: the inferred types ({_listed(inferred)}) are required; "
                     f"got ({_listed(types)}).")  # fmt: skip

    def check_leaves(self) -> None:
        listed: set[int] = set()
        names: dict[str, str] = {}
        for role, leaves in (("input", self.graph.inputs), ("param", self.graph.params)):
            for leaf in _tuple(leaves):
                if not isinstance(getattr(leaf, "node", None), Node):
                    continue  # reported as a root
                op = leaf.node.op
                if not _is_op(op) or op.op_name != role:
                    self.add(f"the {role} list holds {_described(leaf.node)}, which is no {role}.")
                    continue
                if id(leaf.node) in listed:
                    self.add(f"{_described(leaf.node)} is listed twice.")
                    continue
                listed.add(id(leaf.node))
                name = getattr(op, "name", None)
                if not isinstance(name, str):
                    continue
                if name in names:
                    self.add(
                        f"{_described(leaf.node)}: names are unique among inputs and params; "
                        f"{name!r} is the name of another {names[name]}."
                    )
                names[name] = role
        for node in self.nodes:
            if _is_op(node.op) and node.op.op_name in _LEAVES and id(node) not in listed:
                self.add(f"{_described(node)} is used but not listed among the graph's leaves.")

    def check_tokens(self) -> None:
        """Each token goes to one user or is an effect: chains are linear and none is dropped."""
        users: dict[int, list[str]] = {}
        if not self.findings and not any(TOKEN in node.types for node in self.nodes):
            for value in self.graph.effects:  # sound, and there are no tokens at all
                self.add(f"effects are tokens; got {_described(value.node)}.")
            return
        for node in self.nodes:
            for value in _tuple(node.inputs):
                if _is_token(value):
                    users.setdefault(id(value), []).append(_described(node))
        for value in _tuple(self.graph.effects):
            if _is_token(value):
                users.setdefault(id(value), []).append("the graph's effects")
            elif isinstance(cast("object", value), Value):
                self.add(f"effects are tokens; got {_described(value.node)}.")
        for value in _tuple(self.graph.outputs):
            if _is_token(value):
                self.add(f"outputs are no tokens; {_described(value.node)} belongs to effects.")
        for node in self.nodes:
            for value in _tuple(node.results):
                if not _is_token(value):
                    continue
                found = users.get(id(value), [])
                if not found:
                    self.add(f"{_described(node)}: its token is dropped: no node and no effect "
                             "uses it.")  # fmt: skip
                elif len(found) > 1:
                    self.add(f"{_described(node)}: its token is required to have one user; got "
                             f"{len(found)}: {'; '.join(found[:4])}.")  # fmt: skip

    def check_symbols(self) -> None:
        from rlx.ir.text import clashing_symbols

        good = [n for n in self.nodes if _is_op(n.op) and not _type_fault(n.types)]
        for name in clashing_symbols(good):
            self.add(f"symbol {name!r} is required to have one declaration in a graph; got several "
                     "with different bounds.")  # fmt: skip


def _is_op(op: object) -> bool:
    """Whether this is an instance of a declared op."""
    known: object = getattr(type(op), "op_name", None)
    return isinstance(op, Op) and isinstance(known, str)


def _tuple(value: Any) -> tuple[Any, ...]:
    """The value if it is a tuple, else an empty one."""
    return cast("tuple[Any, ...]", value) if type(value) is tuple else ()


def _is_token(value: object) -> bool:
    node: Any = getattr(value, "node", None)
    index: Any = getattr(value, "index", None)
    types = _tuple(getattr(node, "types", None))
    return type(index) is int and 0 <= index < len(types) and types[index] == TOKEN


def _value_fault(value: Any) -> str:
    if not isinstance(value, Value):
        return f"a Value; got {_kind(value)}."
    node: Any = getattr(value, "node", None)
    index: Any = getattr(value, "index", None)
    if not isinstance(node, Node):
        return f"a result of a node; got one of {_kind(node)}."
    results = _tuple(getattr(node, "results", None))
    if type(index) is int and 0 <= index < len(results) and results[index] is value:
        return ""
    return f"a result of {_described(node)}, which has {len(results)}; got index {_text(index)}."


def _type_fault(types: Any) -> str:
    if type(types) is not tuple:
        return f"types are a tuple; got {_kind(types)}."
    for position, kind in enumerate(cast("tuple[Any, ...]", types)):
        if not isinstance(kind, TensorType):
            return f"types[{position}] is required to be a TensorType; got {_kind(kind)}."
    return ""


def _inner_graphs(op: Any) -> Iterator[Graph]:
    if not _is_op(op):
        return
    for name in op.attribute_names:
        value = getattr(op, name, None)
        items: Iterable[Any] = cast("Any", value) if type(value) is tuple else (value,)
        yield from (item for item in items if isinstance(item, Graph))


def _described(thing: Any) -> str:
    """A node, or a value's node, with its location; whatever its fields hold."""
    node = getattr(thing, "node", thing)
    op: Any = getattr(node, "op", None)
    types: Any = getattr(node, "types", ())
    location: Any = getattr(node, "location", None)
    name = str(op.op_name) if _is_op(op) else f"node without an op ({_kind(op)})"
    label = getattr(op, "name", None) if name in _LEAVES else None
    where = f" at {location}" if isinstance(location, Location) and location else ""
    shown = _listed(types) if not _type_fault(types) else "no types"
    return f"{name}{f' {_text(label)}' if label is not None else ''} ({shown}){where}"


def _listed(types: Iterable[TensorType]) -> str:
    return ", ".join(map(str, types))


def _kind(thing: object) -> str:
    return type(thing).__name__


def _text(thing: object) -> str:
    return (
        repr(thing[:60])
        if isinstance(thing, str)
        else repr(thing)
        if type(thing) is int
        else _kind(thing)
    )
