"""What an import rule gets: attributes, regions and result types of one op."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx.ir.graph import Graph, Value
from rlx.ops.convert import Convert
from rlx.ops.io import Constant
from rlx.ops.shape import BroadcastInDim, Reshape
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import ir
from rlx_xla.tracing.stablehlo.calls import name_of

if TYPE_CHECKING:
    from rlx_xla.tracing.stablehlo.walk import Scope, Walker

_WORD = re.compile(r"<\w+ (\w+)>")


@final
class OpContext:
    """One op of the module.

    Attributes:
        walker: the state of the import.
        scope: the graph that is being made.
        op: the op.
        out_types: RLX types of its results.
        captured: values from outside that its regions use.
    """

    __slots__ = ("captured", "op", "out_types", "scope", "walker")

    def __init__(
        self,
        walker: Walker,
        scope: Scope,
        op: ir.Operation,
        out_types: Sequence[TensorType],
        captured: Sequence[ir.Value],
    ) -> None:
        """Look at an op."""
        self.walker = walker
        self.scope = scope
        self.op = op
        self.out_types = tuple(out_types)
        self.captured = list(captured)

    def has(self, name: str) -> bool:
        """Whether an attribute is there."""
        return name in self.op.attributes

    def attribute(self, name: str) -> Any:
        """An attribute that must be there."""
        return self.op.attributes[name]

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """An array of integers, flattened."""
        if not self.has(name):
            return tuple(default)
        found = self.attribute(name)
        if isinstance(found, ir.DenseElementsAttr):
            return tuple(int(n) for n in np.array(found).reshape(-1))
        return tuple(int(n) for n in found)

    def integer(self, name: str, default: int = 0) -> int:
        """An integer."""
        return int(self.attribute(name).value) if self.has(name) else default

    def flag(self, name: str) -> bool:
        """A truth value, false where it is absent."""
        return bool(self.attribute(name).value) if self.has(name) else False

    def flags(self, name: str) -> tuple[bool, ...]:
        """An array of truth values, empty where it is absent."""
        if not self.has(name):
            return ()
        found = self.attribute(name)
        if isinstance(found, ir.DenseElementsAttr):
            return tuple(bool(n) for n in np.array(found).reshape(-1))
        return tuple(bool(n) for n in found)

    def word(self, name: str, default: str = "") -> str:
        """The word of an enumeration: ``#stablehlo<fft_type RFFT>`` → ``RFFT``."""
        if not self.has(name):
            return default
        found = _WORD.search(str(self.attribute(name)))
        return found.group(1) if found else default

    def text(self, name: str) -> str:
        """The value of a string attribute, empty where it is absent."""
        return name_of(self.attribute(name)) if self.has(name) else ""

    def pairs(self, name: str, count: int) -> tuple[tuple[int, ...], ...]:
        """A ``count`` × 2 array of integers; zeros where it is absent."""
        flat = self.integers(name, (0,) * (2 * count))
        return tuple((flat[2 * i], flat[2 * i + 1]) for i in range(count))

    def free(self) -> list[ir.Value]:
        """Captured values that must become operands: all but constants."""
        found: list[ir.Value] = []
        for value in self.captured:
            known = self.scope.find(value)
            if isinstance(known, Value) and not isinstance(known.node.op, Constant):
                found.append(value)
        return found

    def values(self, captured: Sequence[ir.Value]) -> list[Value]:
        """Our values of captured ones."""
        return [v for v in map(self.scope.find, captured) if isinstance(v, Value)]

    def graph(self, index: int, captured: Sequence[ir.Value] = (), name: str = "") -> Graph | None:
        """Region ``index`` as a graph that takes captured values, then the block's arguments."""
        return self.walker.region(self.op.regions[index], captured, self.scope, name or "body")

    def refuse(self, reason: str) -> None:
        """Record that this op cannot be imported; the rule then returns the result, None."""
        self.walker.refuse(f"{self.op.name}: {reason}", self.op)


def constant_of(value: Value) -> np.ndarray | None:
    """The array of a constant, or the scalar of a broadcast one, or None."""
    op = value.node.op
    while isinstance(op, BroadcastInDim | Reshape):
        value = value.node.inputs[0]
        if value.type.shape and isinstance(op, BroadcastInDim):
            return None
        op = value.node.op
    return op.value.array if isinstance(op, Constant) else None


def integer_constant(value: Value) -> tuple[int, ...] | None:
    """The numbers of an integer constant of rank 0 or 1, flattened, or None.

    Joins, reshapes and conversions of constants, which dynamic shapes are made of, are followed.
    """
    op = value.node.op
    if isinstance(op, Constant):
        return tuple(int(n) for n in op.value.array.reshape(-1))
    if isinstance(op, Reshape | Convert):
        return integer_constant(value.node.inputs[0])
    if op.op_name == "concatenate":
        parts = [integer_constant(v) for v in value.node.inputs]
        if None not in parts:
            return tuple(n for part in parts if part is not None for n in part)
    return None
