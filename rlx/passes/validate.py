"""Proves passes: interprets the graph before and after each on drawn inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from rlx.dtypes import DType, Kind, as_dtype
from rlx.errors import PassError, TraceError
from rlx.ir.graph import Graph, Value
from rlx.ir.interpret import interpret
from rlx.ops.control_flow import While
from rlx.types import TensorType

_TOLERANCE = {
    DType.F64: 1e-9, DType.F32: 1e-4, DType.F16: 2e-2, DType.BF16: 6e-2, DType.C64: 1e-4,
    DType.C128: 1e-9,
}  # fmt: skip
"""Largest difference, relative to the largest element, that re-association may cause."""


@final
class Validator:
    """Holds drawn inputs and what the source graph gives for them.

    The graph is run twice: on ordinary numbers, and with NaN, Inf and −0 among them (not where a
    loop's end may hang on a number). −0 and +0 count as equal.
    """

    def __init__(self, graph: Graph, seed: int = 0) -> None:
        """Draw inputs and params, with sizes for symbolic dims, and interpret the graph.

        Raises:
            PassError: the graph holds a node that has no meaning in NumPy.
        """
        rng = np.random.default_rng(seed)
        sizes = {name: 2 + i for i, name in enumerate(graph.symbols)}
        self._params = {v.name: draw(rng, v.type.bind(sizes)) for v in graph.params}
        plain = {v.name: draw(rng, v.type.bind(sizes)) for v in graph.inputs}
        self._feeds = [plain]
        loops = (n.op for inner in graph.all_graphs() for n in inner.nodes())
        if not any(isinstance(op, While) for op in loops):
            self._feeds.append({name: _with_specials(array) for name, array in plain.items()})
        try:
            self._wanted = self._results(graph)
        except TraceError as error:
            raise PassError(
                "validate: every node is required to have a meaning in NumPy; "
                f"{error} Compile with validate=False.",
                pass_name="validate",
            ) from error

    def check(self, graph: Graph, name: str, earlier: Sequence[str]) -> None:
        """Interpret the graph again.

        Raises:
            PassError: an output differs; the pass and the output are named.
        """
        for found, wanted in zip(self._results(graph), self._wanted, strict=True):
            for index, (got, want) in enumerate(zip(found, wanted, strict=True)):
                problem = difference(got, want, graph.outputs[index])
                if problem:
                    raise PassError(
                        f"validate: pass {name!r} is required to keep what the graph computes; "
                        f"output {index} {problem}.",
                        pass_name=name,
                        earlier=earlier,
                    )

    def _results(self, graph: Graph) -> list[list[Any]]:
        params = {v.name: self._params[v.name] for v in graph.params}
        return [interpret(graph, feed, params) for feed in self._feeds]


def _with_specials(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array with NaN, Inf, −Inf and −0 as its first elements, as far as the dtype has them."""
    if not as_dtype(array.dtype).is_float:
        return array
    changed: np.ndarray[Any, Any] = array.reshape(-1).copy()
    with np.errstate(all="ignore"):
        changed[:4] = np.array([np.nan, np.inf, -np.inf, -0.0]).astype(array.dtype)[: changed.size]
    shaped: np.ndarray[Any, Any] = changed.reshape(array.shape)
    return shaped


def draw(rng: np.random.Generator, type_: TensorType) -> np.ndarray[Any, Any]:
    """An array of a static type: normal floats; integers and bools that are 0 or 1."""
    shape = tuple(int(d) for d in type_.shape if isinstance(d, int))
    dtype = type_.dtype
    if dtype.kind is Kind.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        return rng.integers(0, 2, shape).astype(dtype.numpy)
    values = rng.standard_normal(shape)
    if dtype.is_complex:
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype.numpy)


def difference(got: Any, want: Any, output: Value) -> str:
    """How an output differs beyond what re-association may cause, or an empty text."""
    dtype = output.type.dtype
    if dtype.kind not in (Kind.FLOAT, Kind.COMPLEX):
        return "" if np.array_equal(got, want) else "differs"
    wide = np.complex128 if dtype.is_complex else np.float64
    left, right = got.astype(wide), want.astype(wide)
    if not np.array_equal(np.isnan(left), np.isnan(right)):
        return "has NaN in other places"
    finite = np.isfinite(left) & np.isfinite(right)
    with np.errstate(all="ignore"):
        if not np.array_equal(left[~finite & ~np.isnan(left)], right[~finite & ~np.isnan(right)]):
            return "has infinities in other places"
    scale = float(np.max(np.abs(right[finite]), initial=1.0))
    worst = float(np.max(np.abs(left[finite] - right[finite]), initial=0.0))
    limit = _TOLERANCE.get(dtype, 0.3) * scale
    return f"differs by {worst:.3g} (limit {limit:.3g})" if worst > limit else ""
