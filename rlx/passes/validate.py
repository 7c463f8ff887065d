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

    The graph is run on ordinary numbers, then, where no loop's end may hang on a number, with NaN,
    Inf and −0 among them, with rows of −Inf and of masks that hide everything, with numbers around
    10,000 in size and with means of 300. On those of the last two kinds only the places of NaN and
    Inf are compared: a pass may keep digits there that the source loses. −0 and +0 count as equal.
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
        self._feeds: list[dict[str, Any]] = [plain]
        self._loose = 0
        loops = (n.op for inner in graph.all_graphs() for n in inner.nodes())
        if not any(isinstance(op, While) for op in loops):
            extreme = (_with_specials, _with_masked_rows, _large, _far_from_zero)
            self._feeds += [{name: of(array) for name, array in plain.items()} for of in extreme]
            self._loose = 2
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
        first_loose = len(self._feeds) - self._loose
        for run, (found, wanted) in enumerate(zip(self._results(graph), self._wanted, strict=True)):
            for index, (got, want) in enumerate(zip(found, wanted, strict=True)):
                output = graph.outputs[index]
                compare = difference if run < first_loose else difference_in_kind
                problem = compare(got, want, output)
                if problem:
                    raise PassError(
                        f"validate: pass {name!r} is required to keep what the graph computes; "
                        f"output {index} {problem}.",
                        pass_name=name,
                        earlier=earlier,
                    )

    def _results(self, graph: Graph) -> list[list[Any]]:
        params = {v.name: self._params[v.name] for v in graph.params}
        graph = graph.with_questions((), ())  # passes change graphs, whatever was asked of sizes
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


def _with_masked_rows(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array with a first row along the last axis that is −Inf, or False everywhere."""
    dtype = as_dtype(array.dtype)
    if not array.size or not array.ndim or not (dtype.is_float or dtype.kind is Kind.BOOL):
        return array
    changed: np.ndarray[Any, Any] = array.reshape(-1, array.shape[-1]).copy()
    with np.errstate(all="ignore"):
        changed[0] = np.asarray(-np.inf if dtype.is_float else False).astype(array.dtype)
    shaped: np.ndarray[Any, Any] = changed.reshape(array.shape)
    return shaped


def _large(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array times 10,000, as far as the dtype goes; integers and bools as they are."""
    if not as_dtype(array.dtype).is_float:
        return array
    with np.errstate(all="ignore"):
        made: np.ndarray[Any, Any] = (array.astype(np.float64) * 1e4).astype(array.dtype)
    return made


def _far_from_zero(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array plus 300; integers and bools as they are."""
    if not as_dtype(array.dtype).is_float:
        return array
    with np.errstate(all="ignore"):
        made: np.ndarray[Any, Any] = (array.astype(np.float64) + 300).astype(array.dtype)
    return made


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


def difference_in_kind(got: Any, want: Any, output: Value) -> str:
    """Where one result is NaN, Inf or −Inf and the other is not, or an empty text."""
    dtype = output.type.dtype
    if not dtype.is_float:
        return ""
    left, right = got.astype(np.float64), want.astype(np.float64)
    if not np.array_equal(np.isnan(left), np.isnan(right)):
        return "has NaN in other places, on large numbers"
    first, second = (np.where(np.isinf(a), np.sign(a), 0.0) for a in (left, right))
    same = np.array_equal(first, second)
    return "" if same else "has infinities in other places, on large numbers"
