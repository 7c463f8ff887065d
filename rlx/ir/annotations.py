"""Checks of attribute values against the annotations of an op's fields.

Python does not check them; an op checks its own when it is made, and text from a file and nodes
changed by hand are checked again, so that ``infer`` sees the kinds of values it was written for.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import re
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast, get_args

from rlx.dims import DimExpr
from rlx.dtypes import DType
from rlx.ir.attributes import Literal, Opaque

if TYPE_CHECKING:
    from rlx.ir.op import Op

Predicate: TypeAlias = "Callable[[Any], bool]"

_INTS = frozenset({int})
_MODULES = re.compile(r"\b(?:\w+\.)+(?=\w)")


@lru_cache(maxsize=1024)
def enums_of(op: type[Op]) -> dict[str, type[enum.Enum]]:
    """Return the enum classes that the annotations of an op's fields name."""
    found: dict[str, type[enum.Enum]] = {}
    for tree in _annotations(op).values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                target = _enum(op, node.id)
                if target is not None:
                    found[node.id] = target
    return found


def faults(op: type[Op], values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (attribute, what is wrong) for each value that its annotation does not allow."""
    allowed = _predicates(op)
    for name, value in values.items():
        if not allowed[name](value):
            yield (
                name,
                f"attribute {name!r} is required to be {ast.unparse(_annotations(op)[name])}; "
                f"got {type(value).__name__}.",
            )


def fits(op: Op) -> bool:
    """Whether each attribute of an op was given, and is what its annotation allows."""
    values = vars(op)
    for name, test, _ in checks(type(op)):
        if name not in values or not test(values[name]):
            return False
    return True


@lru_cache(maxsize=1024)
def checks(op: type[Op]) -> tuple[tuple[str, Predicate, bool], ...]:
    """Return (attribute, test of its value, whether it is one float) for each field."""
    floats = {n for n, tree in _annotations(op).items() if ast.unparse(tree).startswith("float")}
    return tuple((name, test, name in floats) for name, test in _predicates(op).items())


@lru_cache(maxsize=1024)
def _predicates(op: type[Op]) -> dict[str, Predicate]:
    return {name: _predicate(op, tree) for name, tree in _annotations(op).items()}


@lru_cache(maxsize=1024)
def _annotations(op: type[Op]) -> dict[str, ast.expr]:
    fields = dataclasses.fields(op)  # pyright: ignore[reportArgumentType]
    return {f.name: ast.parse(text_of(f.type), mode="eval").body for f in fields}


def text_of(annotation: object) -> str:
    """Return an annotation as it is written, also where the module evaluates annotations."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return annotation if isinstance(annotation, str) else _MODULES.sub("", str(annotation))


def _enum(op: type[Op], name: str) -> type[enum.Enum] | None:
    target: Any = getattr(sys.modules[op.__module__], name, None)
    if isinstance(target, type) and issubclass(target, enum.Enum) and target is not DType:
        return target
    return None


def _predicate(op: type[Op], tree: ast.expr) -> Predicate:
    """Return the test for an annotation; it goes as deep as the annotation, not as the value."""
    match tree:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            either, other = _predicate(op, left), _predicate(op, right)
            return lambda value: either(value) or other(value)
        case ast.Constant(value=None):
            return lambda value: value is None
        case ast.Subscript(value=ast.Name(id="tuple"), slice=inner):
            kinds = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if len(kinds) == 2 and isinstance(kinds[1], ast.Constant):
                item = _predicate(op, kinds[0])
                if item is _is_int:
                    return _are_ints
                return lambda value: (
                    type(value) is tuple and all(map(item, cast("tuple[Any, ...]", value)))
                )
            items = [_predicate(op, kind) for kind in kinds]
            return lambda value: (
                type(value) is tuple
                and len(cast("tuple[Any, ...]", value)) == len(items)
                and all(
                    test(part)
                    for test, part in zip(items, cast("tuple[Any, ...]", value), strict=True)
                )
            )
        case ast.Name(id=name):
            return _name_predicate(op, name)
        case _:
            return lambda value: True


def _name_predicate(op: type[Op], name: str) -> Predicate:
    match name:
        case "int":
            return _is_int
        case "float":
            return lambda value: type(value) is float or _is_int(value)
        case "Dim":
            return _is_dim
        case "Shape":
            return _is_shape
        case "Graph":
            return _is_graph
        case "Attribute":
            return lambda value: True
        case _:
            kinds: dict[str, type] = {
                "bool": bool, "str": str, "bytes": bytes, "DType": DType, "Literal": Literal,
                "Opaque": Opaque, "tuple": tuple,
            }  # fmt: skip
            kind = kinds.get(name) or _enum(op, name)
            return (lambda value: True) if kind is None else (lambda value: isinstance(value, kind))


def _is_int(value: Any) -> bool:
    """An int (no bool) that 64 bits hold."""
    return type(value) is int and -(2**63) <= value < 2**64


def _are_ints(value: Any) -> bool:
    """A tuple of ints that 64 bits hold; most are tuples of axes, which are seen at once."""
    if type(value) is not tuple:
        return False
    items = cast("tuple[Any, ...]", value)
    if not _INTS.issuperset(map(type, items)):
        return False
    return not items or (min(items) >= -(2**63) and max(items) < 2**64)


def _is_dim(value: object) -> bool:
    return type(value) is int or isinstance(value, DimExpr)  # TensorType says how large


def _is_shape(value: Any) -> bool:
    if type(value) is not tuple:
        return False
    items = cast("tuple[Any, ...]", value)
    return _INTS.issuperset(map(type, items)) or all(map(_is_dim, items))


def _is_graph(value: object) -> bool:
    from rlx.ir.graph import Graph

    return isinstance(value, Graph)
