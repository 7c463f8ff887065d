"""Reading types, arrays and attribute values from graph text."""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Never, final

from rlx import dims
from rlx.dims import DimExpr
from rlx.dtypes import BY_LABEL
from rlx.errors import FormatError, RlxError, did_you_mean
from rlx.ir.annotations import enums_of
from rlx.ir.attributes import Literal
from rlx.ir.graph import Graph
from rlx.ir.literals import Element, from_bytes, from_elements
from rlx.ir.op import Op, all_ops
from rlx.ir.scanner import Scanner, shown
from rlx.types import TOKEN, TensorType, split_commas

MAX_NESTING = 64
"""Tuples in tuples, brackets in brackets, and axes of one type."""

MAX_DIGITS = 40
"""Of one integer: what goes beyond 128 bits is no attribute of ours."""

_WORDS = {"true": True, "false": False, "none": None, "inf": float("inf"), "nan": float("nan")}


@final
class ValueReader:
    """Reads values at a scanner's place.

    Attributes:
        graphs: the graphs defined so far, by the name after ``@``.
        symbols: the symbols declared in the current graph.
    """

    def __init__(self, scan: Scanner) -> None:
        """Read from a scanner; no graphs are known yet."""
        self.scan = scan
        self.graphs: dict[str, Graph] = {}
        self.start_graph({})

    def start_graph(self, symbols: Mapping[str, DimExpr]) -> None:
        """Forget the types read so far: symbols may be declared otherwise from here."""
        self.symbols = symbols
        self._types: dict[str, TensorType] = {}

    def type(self) -> TensorType:
        """Read a type such as ``f32[batch, 64]``, ``f32`` or ``token``."""
        scan = self.scan
        token, start = scan.token, scan.start
        known = self._types.get(token) if scan.kind == "type" else None
        if known is None:
            if scan.kind == "type":
                known = self._types[token] = self._shaped(token, start)
            elif token in BY_LABEL and scan.text.startswith("[", start + len(token)):
                scan.fail("a type is required to have a ']' at its end, on its line.", start)
            elif scan.kind == "name" and token in BY_LABEL:
                known = TOKEN if token == "token" else TensorType(BY_LABEL[token])
            else:
                label = token.split("[", maxsplit=1)[0][:40] if scan.kind == "name" else ""
                hint = did_you_mean(label, BY_LABEL) if label else ""
                scan.fail(
                    f"a type such as f32[batch, 64] is required; got {shown(token)}.{hint}", start
                )
        scan.advance()
        return known

    def types(self) -> tuple[TensorType, ...]:
        """Read a type, or several in parentheses."""
        scan = self.scan
        if not scan.at("("):
            return (self.type(),)
        found: list[TensorType] = []
        while not (scan.at(")") and not found):
            scan.advance()
            if scan.at(")") and not found:
                break
            found.append(self.type())
            if not scan.at(","):
                break
        scan.sign(")")
        return tuple(found)

    def _shaped(self, token: str, start: int) -> TensorType:
        label, _, inner = token[:-1].partition("[")
        parts = split_commas(inner) if inner.strip() else []
        if len(parts) > MAX_NESTING:
            self.scan.fail(f"at most {MAX_NESTING} axes are required; got {len(parts)}.", start)
        shape = tuple(self._dim(part, start) for part in parts)
        if label == "token":
            if shape:
                self.scan.fail("a token has no axes.", start)
            return TOKEN
        try:
            return TensorType(BY_LABEL[label], shape)
        except RlxError as error:
            self.scan.fail(str(error), start, error)

    def dim(self) -> DimExpr:
        """Read a dim with symbols, such as ``<n-5>``."""
        scan = self.scan
        token, start = scan.token, scan.start
        found = self._dim(token[1:-1], start) if scan.kind == "dim" else None
        if not isinstance(found, DimExpr):
            scan.expected("a dim with symbols, such as <n-5>,")
        scan.advance()
        return found

    def _dim(self, text: str, start: int) -> int | DimExpr:
        try:
            return dims.parse(text, self.symbols)
        except RlxError as error:
            self.scan.fail(str(error), start, error)

    def literal(self) -> tuple[bytes | tuple[list[Element], list[int]], int]:
        """Read the elements of an array; `make_literal` gives them a type.

        Returns:
            Raw bytes, or elements with the sizes of their nesting; and where they start.
        """
        start = self.scan.start
        if self.scan.kind == "bytes":
            return self.scan.raw("bytes"), start
        return self._nested(), start

    def make_literal(
        self, kind: TensorType, data: bytes | tuple[list[Element], list[int]], at: int
    ) -> Literal:
        """Return elements as an array of a type; a fault points at an offset."""
        try:
            if isinstance(data, bytes):
                return from_bytes(kind, data)
            return from_elements(kind, *data)
        except FormatError as error:
            self.scan.fail(str(error), at, error)

    def _nested(self) -> tuple[list[Element], list[int]]:
        """Elements in brackets, all rows of one length and all elements equally deep."""
        scan = self.scan
        elements: list[Element] = []
        sizes: list[int | None] = []
        counts: list[int] = []
        deepest = -1
        while True:
            while scan.at("["):
                counts.append(0)
                if len(counts) > MAX_NESTING or (deepest >= 0 and len(counts) > deepest):
                    scan.expected("an element as deep in brackets as the first")
                if len(counts) > len(sizes):
                    sizes.append(None)
                scan.advance()
            if not scan.at("]"):
                if deepest < 0:
                    deepest = len(counts)
                if len(counts) != deepest:
                    scan.expected("an element as deep in brackets as the first")
                elements.append(self._element())
                if counts:
                    counts[-1] += 1
            elif counts and not counts[-1] and deepest < 0:
                deepest = len(counts)
            while counts and scan.at("]"):
                count = counts.pop()
                size = sizes[len(counts)]
                if size is not None and size != count:
                    scan.expected(f"a row of {size} elements as above; {count} elements and then")
                sizes[len(counts)] = count
                scan.advance()
                if counts:
                    counts[-1] += 1
            if not counts:
                return elements, [size or 0 for size in sizes]
            scan.sign(",")

    def _element(self) -> Element:
        scan = self.scan
        if not scan.at("("):
            return (self._number(),)
        scan.advance()
        real = self._number()
        scan.sign(",")
        imaginary = self._number()
        scan.sign(")")
        return real, imaginary

    def _number(self) -> str:
        scan = self.scan
        token = scan.token
        word = scan.kind == "name" and token in ("true", "false", "inf", "nan")
        if not word and scan.kind != "number":
            scan.expected("a number, 'true', 'false', a pair, '[' or bytes")
        scan.advance()
        return token

    def attribute(self, op: type[Op]) -> Any:
        """Read one value of an attribute; tuples without recursion."""
        scan = self.scan
        stack: list[tuple[list[Any], int]] = []
        while True:
            if scan.at("("):
                if len(stack) == MAX_NESTING:
                    scan.expected(f"at most {MAX_NESTING} tuples inside each other")
                stack.append(([], scan.start))
                scan.advance()
                if not scan.at(")"):
                    continue
                value: Any = None
            else:
                value = self._single(op)
                if not stack:
                    return value
                stack[-1][0].append(value)
            while stack:  # after an item: the next one, or the end of one or more tuples
                items = stack[-1][0]
                if scan.at(",") and items:
                    scan.advance()
                    if not scan.at(")"):
                        break
                elif len(items) == 1 and scan.at(")"):
                    scan.expected("',' after the only item of a tuple")
                scan.sign(")")
                stack.pop()
                value = tuple(items)
                if not stack:
                    return value
                stack[-1][0].append(value)

    def _single(self, op: type[Op]) -> Any:
        scan = self.scan
        token, start = scan.token, scan.start
        match scan.kind:
            case "string":
                return scan.string("a string")
            case "bytes":
                return scan.raw("bytes")
            case "type":
                kind = self.type()
                data, at = self.literal()
                return self.make_literal(kind, data, at)
            case "number":
                value: Any = self._python_number(token, start)
            case "dim":
                value = self._dim(token[1:-1], start)
            case "graph":
                value = self._graph(token[1:], start)
            case "name" if token == "nan":
                return self._nan()
            case "name" if token in _WORDS:
                value = _WORDS[token]
            case "name" if token in BY_LABEL:
                value = BY_LABEL[token]
            case "name":
                value = self._enum(op, token, start)
            case _:
                scan.expected("a value of an attribute")
        scan.advance()
        return value

    def _graph(self, name: str, start: int) -> Graph:
        found = self.graphs.get(name)
        if found is None:
            hint = did_you_mean(name[:80], list(self.graphs)[-1000:])
            self.scan.fail(
                f"a graph that is defined above is required; got {shown('@' + name)}.{hint}", start
            )
        return found

    def _enum(self, op: type[Op], token: str, start: int) -> enum.Enum:
        known = enums_of(op)
        name, _, member = token.rpartition(".")
        cls = known.get(name) or _all_enums().get(name)
        if cls is None:
            members = [f"{c.__name__}.{m}" for c in known.values() for m in c.__members__]
            self.scan.fail(
                f"a value of an attribute is required; got {shown(token)}."
                f"{did_you_mean(token[:80], [*members, *_WORDS, *BY_LABEL])}",
                start,
            )
        if member not in cls.__members__:
            self.scan.fail(
                f"a member of {name} is required: {', '.join(cls.__members__)}; got "
                f"{shown(member)}.{did_you_mean(member[:80], cls.__members__)}",
                start,
            )
        return cls[member]

    def _nan(self) -> float:
        """``nan``, or ``nan(0x…)`` with all sixteen digits of its bits."""
        scan = self.scan
        scan.advance()
        if not scan.at("("):
            return float("nan")
        scan.advance()
        token = scan.token
        value = 0.0
        if scan.kind == "number" and token.startswith("0x") and len(token) == 18:
            (value,) = struct.unpack(">d", bytes.fromhex(token[2:]))
        if value == value:
            scan.expected("0x and the sixteen digits of a NaN")
        scan.advance()
        scan.sign(")")
        return value

    def _python_number(self, token: str, start: int) -> int | float:
        if token.lstrip("+-").isdecimal():
            if len(token) > MAX_DIGITS:
                self._refuse_number(f"an integer of at most {MAX_DIGITS} digits", token, start)
            return int(token)
        if "x" in token:
            self._refuse_number("a decimal number", token, start)
        value = float(token)
        if value in (float("inf"), -float("inf")) and "inf" not in token:
            self._refuse_number("a number in the range of 64-bit floats", token, start)
        return value

    def _refuse_number(self, required: str, token: str, start: int) -> Never:
        self.scan.fail(f"{required} is required; got {shown(token)}.", start)


@lru_cache(maxsize=1)
def _all_enums() -> dict[str, type[enum.Enum]]:
    """Every enum class that some op's attribute is annotated with."""
    return {name: cls for op in all_ops().values() for name, cls in enums_of(op).items()}
