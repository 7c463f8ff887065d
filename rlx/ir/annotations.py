"""Checks of attribute values against the annotations of an op's fields.

Python does not check them; text from a file and nodes changed by hand need it, so that ``infer``
sees the kinds of values it was written for.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

from rlx.dims import DimExpr
from rlx.dtypes import DType
from rlx.ir.attributes import Literal, Opaque
from rlx.ir.op import Op


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
    annotations = _annotations(op)
    for name, value in values.items():
        tree = annotations[name]
        if not _allows(op, tree, value):
            yield (
                name,
                f"attribute {name!r} is required to be {ast.unparse(tree)}; "
                f"got {type(value).__name__}.",
            )


@lru_cache(maxsize=1024)
def _annotations(op: type[Op]) -> dict[str, ast.expr]:
    fields = dataclasses.fields(op)  # pyright: ignore[reportArgumentType]
    return {f.name: ast.parse(str(f.type), mode="eval").body for f in fields}


def _enum(op: type[Op], name: str) -> type[enum.Enum] | None:
    target: Any = getattr(sys.modules[op.__module__], name, None)
    if isinstance(target, type) and issubclass(target, enum.Enum) and target is not DType:
        return target
    return None


def _allows(op: type[Op], tree: ast.expr, value: Any) -> bool:
    """Whether an annotation allows a value; as deep as the annotation, not as the value."""
    match tree:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _allows(op, left, value) or _allows(op, right, value)
        case ast.Constant(value=None):
            return value is None
        case ast.Subscript(value=ast.Name(id="tuple"), slice=inner):
            if type(value) is not tuple:
                return False
            items = cast("tuple[Any, ...]", value)
            kinds = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if len(kinds) == 2 and isinstance(kinds[1], ast.Constant):
                return all(_allows(op, kinds[0], item) for item in items)
            same_length = len(kinds) == len(items)
            return same_length and all(
                _allows(op, kind, item) for kind, item in zip(kinds, items, strict=True)
            )
        case ast.Name(id=name):
            return _allows_name(op, name, value)
        case _:
            return True


def _allows_name(op: type[Op], name: str, value: Any) -> bool:
    match name:
        case "int":
            return isinstance(value, int)
        case "float":
            return isinstance(value, int | float)
        case "Dim":
            return _is_dim(value)
        case "Shape":
            return type(value) is tuple and all(map(_is_dim, cast("tuple[Any, ...]", value)))
        case "Graph":
            from rlx.ir.graph import Graph

            return isinstance(value, Graph)
        case "Attribute":
            return True
        case _:
            kinds: dict[str, type] = {
                "bool": bool, "str": str, "bytes": bytes, "DType": DType, "Literal": Literal,
                "Opaque": Opaque, "tuple": tuple,
            }  # fmt: skip
            kind = kinds.get(name) or _enum(op, name)
            return kind is None or isinstance(value, kind)


def _is_dim(value: object) -> bool:
    return type(value) is int or isinstance(value, DimExpr)
