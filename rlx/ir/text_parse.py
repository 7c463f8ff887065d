"""Reading graphs from text, which may come from anywhere: nothing recurses, nothing is run.

The form is described in `rlx.ir.text`. Types in the text are checked against what ``infer`` says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast, final

from rlx import dims
from rlx.errors import ParseError, RegistryError, RlxError, VerifyError, did_you_mean
from rlx.ir import location as loc
from rlx.ir.annotations import faults
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.location import Location
from rlx.ir.op import Op, op_named
from rlx.ir.scanner import Scanner, shown
from rlx.ir.text_values import ValueReader
from rlx.types import TOKEN, TensorType

TEXT_VERSION = 1
"""Version of the text; it grows when older programs would misread newer text."""

INFER_FAULTS = (
    RlxError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What ``infer`` raises on attributes and types that it was not written for."""

_LINE = "'input', 'param', '%value = op(…)' or 'return'"


def parse(text: str) -> Graph:
    """Return the graph that a text describes, as ``str(graph)`` or `print_graph` gives it.

    Raises:
        ParseError: the text is no graph, with line and column; a stated type is not the inferred
            one; an op, attribute or value is unknown.
    """
    if not isinstance(cast("object", text), str):
        raise ParseError(f"parse: text is required; got {type(text).__name__}.")
    return _Parser(text).whole()


@final
class _Parser:
    """One text, from the first token to the last."""

    def __init__(self, text: str) -> None:
        self.scan = Scanner(text)
        self.reader = ValueReader(self.scan)
        self.plain: dict[str, Op] = {}
        self.places: dict[tuple[str, int, str], Location] = {}
        self.start_graph()

    def start_graph(self) -> None:
        self.values: dict[str, tuple[Value, ...]] = {}
        self.starts: dict[str, int] = {}
        self.inputs: list[Value] = []
        self.params: list[Value] = []
        self.reader.start_graph({})

    def whole(self) -> Graph:
        scan = self.scan
        if scan.word("format"):
            scan.advance()
            at = scan.start
            version = scan.integer("a version of the text", 2**31)
            if version != TEXT_VERSION:
                scan.fail(
                    f"text of format {TEXT_VERSION} is required; got {version}. "
                    "Read it with a newer version of RLX.",
                    at,
                )
        while True:
            if not scan.word("graph"):
                scan.expected("'graph'")
            scan.advance()
            start, name = scan.start, ""
            if scan.kind == "graph":
                name = scan.token[1:]
                if name in self.reader.graphs:
                    scan.fail(f"a new name is required; {shown('@' + name)} is taken.", start)
                scan.advance()
            graph = self.graph(scan.string("the graph's name, in quotes,"), start)
            if name:
                self.reader.graphs[name] = graph
                continue
            if scan.kind != "end":
                scan.expected("the end of the text, after the graph without an @name,")
            return graph

    def graph(self, name: str, start: int) -> Graph:
        scan = self.scan
        self.start_graph()
        scan.sign("{")
        if scan.word("where"):
            self.where()
        asked = self.questions("asked")
        keyed = self.questions("keyed")
        while not scan.word("return"):
            if scan.kind == "value":
                self.node()
            elif scan.token in ("input", "param"):
                self.leaf(scan.token)
            else:
                scan.expected(_LINE)
        scan.advance()
        outputs = self.operands()
        effects: list[Value] = []
        if scan.word("effects"):
            scan.advance()
            effects = self.operands()
        scan.sign("}")
        try:
            graph = Graph(
                self.inputs, self.params, outputs, effects, name=name, asked=asked, keyed=keyed
            )
        except VerifyError as error:
            scan.fail(f"a graph is required; {'; '.join(error.findings)}", start, error)
        if len(graph.nodes()) != len(self.values):
            self.refuse_lost_effects(graph)
        return graph

    def refuse_lost_effects(self, graph: Graph) -> None:
        """A line that nothing uses is dropped, unless it has an effect."""
        kept = {id(node) for node in graph.nodes()}
        for name, results in self.values.items():
            node = results[0].node
            if id(node) not in kept and TOKEN in node.types:
                self.scan.fail(
                    f"a last token is required under 'effects'; {shown(name)} is used by nothing.",
                    self.starts[name],
                )

    def where(self) -> None:
        scan = self.scan
        bounds: dict[str, tuple[int | None, int | None]] = {}
        start = scan.start
        more = True
        while more:
            scan.advance()
            name = scan.take("name", "a symbol's name")
            sign = scan.token
            if sign not in (">=", "<="):
                scan.expected("'>=' or '<='")
            scan.advance()
            low, high = bounds.get(name, (1, None))
            bound = self.bound(sign)
            bounds[name] = (bound, high) if sign == ">=" else (low, bound)
            more = scan.at(",")
        try:
            symbols = {name: dims.symbol(name, *limits) for name, limits in bounds.items()}
        except RlxError as error:
            scan.fail(str(error), start, error)
        self.reader.start_graph(symbols)

    def questions(self, word: str) -> list[dims.DimExpr]:
        """Read the dims after a word, where it stands here."""
        scan = self.scan
        found: list[dims.DimExpr] = []
        more = scan.word(word)
        while more:
            scan.advance()
            found.append(self.reader.dim())
            more = scan.at(",")
        return found

    def bound(self, sign: str) -> int | None:
        scan = self.scan
        token = scan.token
        whole = scan.kind == "number" and token.lstrip("+-").isdecimal() and len(token) <= 80
        if not whole and not (token == "-inf" and sign == ">="):
            scan.expected("an integer of at most 80 digits")
        scan.advance()
        return int(token) if whole else None

    def leaf(self, role: str) -> None:
        scan = self.scan
        start = scan.start
        scan.advance()
        target = self.target()
        values: dict[str, Any] = {"name": scan.string("the name, in quotes,")}
        scan.sign(":")
        kind = self.reader.type()
        values.update(dtype=kind.dtype, shape=kind.shape)
        cls = op_named(role)
        self.attributes(cls, values)
        node = self.make(self.op(cls, values, start), (), (kind,), start, start)
        (self.inputs if role == "input" else self.params).append(node.results[0])
        self.values[target] = node.results

    def target(self) -> str:
        """Read the name of a new value."""
        scan = self.scan
        start = scan.start
        name = scan.take("value", "a new value such as %0")
        if name in self.values:
            line = scan.line(self.starts[name])
            scan.fail(f"a new value is required; {shown(name)} is defined on line {line}.", start)
        if "#" in name:
            scan.fail(f"a name without '#' is required left of '='; got {shown(name)}.", start)
        self.starts[name] = start
        return name

    def node(self) -> None:
        scan, reader = self.scan, self.reader
        target = self.target()
        count, counted = 1, scan.start
        if scan.at(":"):
            scan.advance()
            counted = scan.start
            count = scan.integer("the number of results", 2**31)
        scan.sign("=")
        start = scan.start
        cls = self.op_class()
        inputs: list[Value] = []
        values: dict[str, Any] = {}
        data = None
        if cls.op_name == "constant":
            data = reader.literal()
        else:
            scan.sign("(")
            if not scan.at(")"):
                inputs = self.operands()
            scan.sign(")")
            self.attributes(cls, values)
        scan.sign(":")
        at = scan.start
        types = reader.types()
        if data is not None:
            values["value"] = reader.make_literal(types[0], *data)
        node = self.make(self.op(cls, values, start), tuple(inputs), types, start, at)
        if len(types) != count:
            scan.fail(
                f"{len(types)} results are required, as there are types; got {count}. "
                f"Write {target[:80]}:{len(types)} =.",
                counted,
            )
        self.values[target] = node.results

    def op_class(self) -> type[Op]:
        """Read the name of an op, with its version unless that is 1."""
        scan = self.scan
        start = scan.start
        if scan.kind not in ("name", "string"):
            scan.expected("an op's name")
        is_name = scan.kind == "name"
        name = scan.token if is_name else ""
        if is_name:
            scan.advance()
        else:
            name = scan.string("an op's name")
        version = 1
        stem, _, last = name.rpartition(".")
        if is_name and stem and last[:1] == "v" and last[1:].isdecimal() and len(last) < 10:
            name, version = stem, int(last[1:])
        try:
            cls = op_named(name[:200])
        except RegistryError as error:
            scan.fail(str(error), start, error)
        if cls.version != version:
            scan.fail(
                f"version {cls.version} of op {name!r} is required; got version {version}. "
                "Read the text with the version of RLX that wrote it.",
                start,
            )
        return cls

    def operands(self) -> list[Value]:
        """Read values with commas between them; none at all when the first is no value."""
        scan = self.scan
        found: list[Value] = []
        while scan.kind == "value":
            found.append(self.operand(scan.token, scan.start))
            scan.advance()
            if not scan.at(","):
                return found
            scan.advance()
        if found:
            scan.expected("a value")
        return found

    def operand(self, token: str, start: int) -> Value:
        results = self.values.get(token)
        if results is not None and len(results) == 1:
            return results[0]
        name, _, number = token.partition("#")
        results = self.values.get(name)
        if results is None:
            near = [n for n in list(self.values)[-2000:] if abs(len(n) - len(name)) < 4]
            self.scan.fail(
                f"a value that is defined above is required; got {shown(name)}."
                f"{did_you_mean(name[:80], near)}",
                start,
            )
        if not number or len(number) > 9 or int(number) >= len(results):
            self.scan.fail(
                f"{shown(name)} has {len(results)} results, so {name}#0 to "
                f"{name}#{len(results) - 1} are values; got {shown(token)}.",
                start,
            )
        return results[int(number)]

    def attributes(self, cls: type[Op], values: dict[str, Any]) -> None:
        """Read ``{name = value, …}`` if it is there; check values against the annotations."""
        scan = self.scan
        if not scan.at("{"):
            return
        starts: dict[str, int] = {}
        while not starts or scan.at(","):
            scan.advance()
            start = scan.start
            name = scan.take("name", "an attribute's name")
            if name not in cls.attribute_names:
                scan.fail(
                    f"{cls.op_name} has no attribute {shown(name)}; it has "
                    f"{', '.join(cls.attribute_names) or 'none'}."
                    f"{did_you_mean(name[:80], cls.attribute_names)}",
                    start,
                )
            if name in values:
                scan.fail(f"one value of {name!r} is required; this is a second one.", start)
            scan.sign("=")
            starts[name] = start
            values[name] = self.reader.attribute(cls)
        scan.sign("}")
        for name, fault in faults(cls, values):
            scan.fail(f"{cls.op_name}: {fault}", starts.get(name, scan.start))

    def op(self, cls: type[Op], values: dict[str, Any], start: int) -> Op:
        if not values and cls.op_name in self.plain:
            return self.plain[cls.op_name]
        missing = [name for name in _required(cls) if name not in values]
        if missing:
            self.scan.fail(
                f"{cls.op_name} requires the attribute{'s' if len(missing) > 1 else ''} "
                f"{', '.join(missing)}; got {', '.join(values) or 'none'}.",
                start,
            )
        try:
            op = cls(**values)
        except INFER_FAULTS as error:
            self.scan.fail(_reason(cls.op_name, error), start, error)
        if not values:
            self.plain[cls.op_name] = op
        return op

    def make(
        self, op: Op, inputs: tuple[Value, ...], stated: tuple[TensorType, ...], start: int, at: int
    ) -> Node:
        """Infer the types of a node and hold the stated ones to them."""
        try:
            found = op.infer_types([v.node.types[v.index] for v in inputs])
        except INFER_FAULTS as error:
            self.scan.fail(_reason(op.op_name, error), start, error)
        if found != stated:
            self.scan.fail(
                f"{op.op_name}: the inferred type {_listed(found)} is required; "
                f"got {_listed(stated)}.",
                at,
            )
        return Node(op, inputs, stated, self.location())

    def location(self) -> Location:
        """Read ``loc("label" "file":line)`` if it is there."""
        scan = self.scan
        if not scan.word("loc"):
            return loc.UNKNOWN
        scan.advance()
        scan.sign("(")
        label, file, line = scan.string("a label in quotes"), "", 0
        if scan.kind == "string":
            file = scan.string("a file")
            scan.sign(":")
            line = scan.integer("a line number", 2**31)
        scan.sign(")")
        key = (file, line, label)
        found = self.places.get(key)
        if found is None:
            found = self.places[key] = Location(file, line, label)
        return found


@lru_cache(maxsize=1024)
def _required(cls: type[Op]) -> tuple[str, ...]:
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    missing = dataclasses.MISSING
    return tuple(f.name for f in fields if f.default is missing and f.default_factory is missing)


def _listed(types: Iterable[TensorType]) -> str:
    shown_types = [str(t) for t in types]
    return shown_types[0] if len(shown_types) == 1 else f"({', '.join(shown_types)})"


def _reason(name: str, error: Exception) -> str:
    if isinstance(error, RlxError):
        return str(error)
    return f"{name} refuses its attributes or inputs: {type(error).__name__}: {error}"
