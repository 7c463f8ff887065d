"""GraphBuilder: named inputs and params, then values with operators, then ``build``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, final

from rlx.dtypes import DType
from rlx.errors import VerifyError
from rlx.ir import location, operators
from rlx.ir.builder_layers import AbstractLayerNames
from rlx.ir.builder_models import AbstractModelNames
from rlx.ir.builder_names import AbstractShortNames
from rlx.ir.builder_quantized import AbstractQuantizedNames
from rlx.ir.graph import Graph, Value
from rlx.types import TensorType, as_type


@final
class GraphBuilder(
    AbstractShortNames, AbstractLayerNames, AbstractModelNames, AbstractQuantizedNames
):
    """Collects the inputs and params of one graph, and has RLX's short names for ops.

    Example:
        >>> import rlx
        >>> b = rlx.GraphBuilder("mlp")
        >>> x = b.input("x", "f32[batch, 64]")
        >>> w = b.param("w", "f32[64, 10]")
        >>> graph = b.build((x @ w).softmax(axis=-1))
        >>> graph.outputs[0].type
        TensorType(dtype=f32, shape=(batch, 10))
    """

    def __init__(self, name: str = "graph") -> None:
        """Start an empty graph."""
        self.name = name
        self._inputs: list[Value] = []
        self._params: list[Value] = []
        self._taken: dict[str, Value] = {}

    def input(self, name: str, type: TensorType | str) -> Value:  # noqa: A002  the field's word
        """Declare a value fed by name on every run."""
        from rlx.ops.io import Input

        return self._leaf(self._inputs, name, type, Input)

    def param(self, name: str, type: TensorType | str) -> Value:  # noqa: A002  the field's word
        """Declare a value bound once by name."""
        from rlx.ops.io import Param

        return self._leaf(self._params, name, type, Param)

    def constant(self, data: Any, dtype: DType | str | None = None) -> Value:
        """Put an array or scalar into the graph."""
        return operators.constant(data, dtype)

    def scope(self, label: str) -> Any:
        """Context manager: nodes made inside carry the label; scopes nest with ``/``."""
        return location.scope(label)

    def build(self, *outputs: Value | Sequence[Value], effects: Sequence[Value] = ()) -> Graph:
        """Return the graph that computes the outputs.

        Args:
            outputs: values, or one sequence of values.
            effects: the last token of each effect chain.

        Raises:
            VerifyError: an output is no value, or belongs to another builder's inputs.
        """
        flat: list[Value] = []
        for output in outputs:
            if isinstance(output, list | tuple):
                flat.extend(output)
            else:
                flat.append(cast("Value", output))
        tokens = cast("object", effects)
        if not isinstance(tokens, list | tuple):
            raise VerifyError(
                [f"build: effects are a list of tokens; got {type(tokens).__name__}."]
            )
        wrong = [
            f"build: {what} are values of a graph; got {type(v).__name__}."
            for what, group in (("outputs", flat), ("effects", effects))
            for v in cast("Sequence[object]", group)
            if not isinstance(v, Value)
        ]
        if wrong:
            raise VerifyError(wrong)
        return Graph(self._inputs, self._params, flat, effects, name=self.name)

    def _leaf(self, leaves: list[Value], name: str, spec: TensorType | str, cls: Any) -> Value:
        declared = as_type(spec)
        value: Value = cls(name=name, dtype=declared.dtype, shape=declared.shape)()
        if name in self._taken:
            raise VerifyError(
                [f"builder {self.name!r}: the name {name!r} is taken by {self._taken[name]!r}."]
            )
        leaves.append(value)
        self._taken[name] = value
        return value
