"""GraphBuilder: named inputs and params, then values with operators, then ``build``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, final

from rlx.dtypes import DType
from rlx.errors import ShapeError, VerifyError
from rlx.ir import location, operators
from rlx.ir.graph import Graph, Value
from rlx.types import Dim, TensorType, as_type


@final
class GraphBuilder:
    """Collects the inputs and params of one graph.

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
        wrong = [
            f"build: outputs are values of a graph; got {type(v).__name__}."
            for v in cast("list[object]", flat)
            if not isinstance(v, Value)
        ]
        if wrong:
            raise VerifyError(wrong)
        return Graph(self._inputs, self._params, flat, effects, name=self.name)

    # RLX's names; every other op is rlx.ops.X(...)(...).
    def matmul(self, lhs: Value, rhs: Value) -> Value:
        """Batched matrix product."""
        from rlx.ops.dot import Matmul

        return Matmul()(lhs, rhs)

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """Same elements under another shape; one dim may be −1."""
        return x.reshape(tuple(shape))

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        """Permute the axes."""
        return x.transpose(tuple(permutation))

    def softmax(self, x: Value, axis: int = -1) -> Value:
        """Softmax along an axis."""
        return x.softmax(axis)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Join along an axis."""
        from rlx.ops.shape import Concatenate

        if not isinstance(cast("object", values), list | tuple) or not values:
            raise ShapeError(
                "concat: a list of at least one value is required; got "
                f"{type(values).__name__ if not isinstance(values, list | tuple) else 'none'}."
            )
        return Concatenate(axis=operators.normalise_axis(axis, values[0].rank))(*values)

    def gather(self, table: Value, indices: Value, axis: int = 0) -> Value:
        """Rows of a table, as an embedding lookup."""
        from rlx.ops.indexing import Gather

        return Gather(axis=operators.normalise_axis(axis, table.rank))(table, indices)

    def layer_norm(
        self, x: Value, gamma: Value, beta: Value, *, axis: int = -1, eps: float = 1e-5
    ) -> Value:
        """Layer normalisation along one axis."""
        from rlx.ops.normalization import LayerNorm

        axis = operators.normalise_axis(axis, x.rank)
        return LayerNorm(axis=axis, eps=eps)(x, gamma, beta)

    def rms_norm(
        self, x: Value, gamma: Value, beta: Value, *, axis: int = -1, eps: float = 1e-6
    ) -> Value:
        """Root-mean-square normalisation along one axis."""
        from rlx.ops.normalization import RmsNorm

        axis = operators.normalise_axis(axis, x.rank)
        return RmsNorm(axis=axis, eps=eps)(x, gamma, beta)

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
