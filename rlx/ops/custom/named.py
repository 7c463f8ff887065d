"""Ops by name: what a name means is registered by the program that uses it.

An op class (``@define_op``) is the better home of an op: its attributes are typed, and samples test
it. A name serves where a program brings a function of its own, as RLX's host closures do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast, final

import numpy as np

from rlx.errors import DTypeError, InconclusiveDimError, RegistryError, ShapeError, did_you_mean
from rlx.ir.derivatives import Rule
from rlx.ir.graph import Graph
from rlx.ir.op import Op, define_op
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.attributes import Array
    from rlx.ir.graph import Value

Infer: TypeAlias = "Callable[..., TensorType | tuple[TensorType, ...]]"


@final
@dataclass(frozen=True, kw_only=True)
class CustomOp:
    """What a name means; functions get the node's ``attrs`` first.

    Attributes:
        name: the name.
        infer: (attrs, *types) → the result type or a tuple of them; raises ShapeError or
            DTypeError.
        evaluate: (attrs, *arrays) → the NumPy result or a tuple; it runs on the host, wherever
            the graph does. None where there is a decomposition.
        decompose: (attrs, *values) → the same meaning made of ops; None where there is none.
        vjp: the gradient, as `rlx.ir.derivatives.vjp_rule` takes it; ``op.attrs`` has the bytes.
        jvp: the tangents, as `rlx.ir.derivatives.jvp_rule` takes it.
    """

    name: str
    infer: Infer
    evaluate: Callable[..., Any] | None = None
    decompose: Callable[..., Any] | None = None
    vjp: Rule | None = None
    jvp: Rule | None = None


_REGISTERED: dict[str, CustomOp] = {}


def register_custom(op: CustomOp, *, replace: bool = False) -> CustomOp:
    """Give a name its meaning.

    Args:
        op: the meaning.
        replace: take the place of an earlier one of the name.

    Raises:
        RegistryError: the name is taken, or the op has neither evaluate nor decompose.
    """
    if op.evaluate is None and op.decompose is None:
        raise RegistryError(
            f"register_custom: {op.name!r} is required to have evaluate or decompose (or both); "
            "got neither. Say what it computes."
        )
    if op.name in _REGISTERED and not replace:
        raise RegistryError(
            f"register_custom: the name {op.name!r} is taken. Choose another, or pass replace=True."
        )
    _REGISTERED[op.name] = op
    return op


def unregister_custom(name: str) -> None:
    """Forget a name; nothing happens where it is unknown."""
    _REGISTERED.pop(name, None)


def registered_custom(name: str) -> CustomOp:
    """What a name means.

    Raises:
        RegistryError: it is not registered; the closest name is suggested.
    """
    found = _REGISTERED.get(name)
    if found is None:
        raise RegistryError(
            f"custom: op {name!r} is required to be registered; registered are "
            f"{', '.join(sorted(_REGISTERED)) or 'none'}.{did_you_mean(name, _REGISTERED)} Call "
            "rlx.ops.custom.register_custom before the graph is built or loaded."
        )
    return found


def custom_op(name: str, *inputs: Value, attrs: bytes = b"") -> Any:
    """Apply a named op; return its Value, or a tuple where there are several."""
    return Custom(name=name, attrs=attrs)(*inputs)


@define_op("custom")
class Custom(Op):
    """An op whose meaning a program registers under a name.

    y = registered_custom(name)(attrs, *operands)

    Inputs:
        operands: what the registered op takes.

    Attributes:
        name: the name, registered with `rlx.ops.custom.register_custom` wherever the graph is
            built, loaded or run.
        attrs: bytes for the registered functions.

    Result:
        What the registered op says. A device runs its decomposition, or calls back to the host
        for `evaluate`.

    Constraints:
        C1: the registered op takes the operands.

    Source: RLX `Op::Custom`.
    """

    name: str
    attrs: bytes = b""

    def infer(self, *operands: TensorType) -> TensorType | tuple[TensorType, ...]:
        meaning = registered_custom(self.name)
        try:
            return meaning.infer(self.attrs, *operands)
        except (ShapeError, DTypeError, InconclusiveDimError) as error:
            raise type(error)(
                f"{self.op_name} [C1]: {self.name!r} is required to take the operands; {error}",
                label="C1",
            ) from error

    def evaluate(self, *operands: Array) -> Any:
        from rlx.dtypes import as_dtype
        from rlx.ir.interpret import run

        meaning = registered_custom(self.name)
        types = [TensorType(as_dtype(a.dtype), a.shape) for a in operands]
        wanted = self.infer_types(types)
        if meaning.evaluate is None:
            results: Sequence[Any] = run(self.graph(types), operands)
        else:
            made = meaning.evaluate(self.attrs, *operands)
            results = cast("Sequence[Any]", made) if isinstance(made, tuple) else (made,)
        arrays = tuple(map(np.asarray, results))
        found = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
        if found != list(wanted):
            raise RegistryError(
                f"custom: evaluate of {self.name!r} is required to return "
                f"({', '.join(map(str, wanted))}), as its infer says; it returned "
                f"({', '.join(map(str, found))}). Change one of them."
            )
        return arrays

    def graph(self, types: Sequence[TensorType]) -> Graph:
        """The registered decomposition as a graph, for inputs of given types.

        Raises:
            RegistryError: there is none, or its results are not what infer says.
        """
        from rlx.ops.io import Input

        decompose = registered_custom(self.name).decompose
        if decompose is None:
            raise RegistryError(f"custom: {self.name!r} is registered without a decomposition.")
        leaves = [Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types)]
        made = decompose(self.attrs, *leaves)
        outputs = cast("tuple[Value, ...]", made if isinstance(made, tuple) else (made,))
        wanted, found = self.infer_types(types), tuple(v.type for v in outputs)
        if found != wanted:
            raise RegistryError(
                f"custom: decompose of {self.name!r} is required to return "
                f"({', '.join(map(str, wanted))}), as its infer says; it returned "
                f"({', '.join(map(str, found))}). Change one of them."
            )
        return Graph(leaves, (), outputs, name=self.name)
