"""Samples of ops with some of their sizes made symbols: what the analysis of padding is tried on.

Every axis of one size in a sample may be called ``n``: all of them, those at one position, or one
alone. What infers, and binds back to the sample's own types, is an op over a dynamic axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx
from rlx import dims
from rlx.dtypes import as_dtype
from rlx.errors import RlxError
from rlx.ir.graph import Graph, Value, make_node
from rlx.ir.op import Op
from rlx.ops.io import Input
from rlx.passes.bind_dims import bind
from rlx.passes.pad_dims import PaddedGraph
from tests.samples.base import Sample

N = dims.symbol("n")
LARGEST = 65
"""Largest size that becomes a symbol."""

Places = tuple[tuple[int, int], ...]
"""(input, axis) of every axis that is n."""


@dataclass(frozen=True)
class Symbolised:
    """An op over a dynamic axis n.

    Attributes:
        graph: the op alone.
        sample: what it was made of.
        size: n in the sample.
        places: where n is among the inputs.
    """

    graph: Graph
    sample: Sample
    size: int
    places: Places

    def inputs(self, n: int) -> dict[str, np.ndarray[Any, Any]]:
        """The sample's arrays at another size: cut, or begun again."""
        found: dict[str, np.ndarray[Any, Any]] = {}
        for i, array in enumerate(self.sample.inputs):
            for place, axis in self.places:
                if place == i:
                    array = np.take(array, np.arange(n) % self.size, axis=axis)
            found[f"x{i}"] = array
        return found


def symbolised(sample: Sample) -> Iterator[Symbolised]:
    """Every op over a dynamic axis that a sample gives."""
    shapes = [a.shape for a in sample.inputs]
    sizes = sorted({d for shape in shapes for d in shape if 2 <= d <= LARGEST})
    for size in sizes:
        everywhere = tuple(
            (i, axis) for i, shape in enumerate(shapes) for axis, d in enumerate(shape) if d == size
        )
        seen: set[Places] = set()
        for places in _choices(everywhere):
            if places not in seen:
                seen.add(places)
                yield from _graphs(sample, size, places)


def _choices(everywhere: Places) -> Iterator[Places]:
    yield everywhere
    for axis in sorted({axis for _, axis in everywhere}):
        yield tuple(place for place in everywhere if place[1] == axis)
    for place in everywhere:
        yield (place,)
    if len(everywhere) <= 4:
        for count in (2, 3):
            yield from itertools.combinations(everywhere, count)


def _graphs(sample: Sample, size: int, places: Places) -> Iterator[Symbolised]:
    leaves: list[Value] = []
    for i, array in enumerate(sample.inputs):
        shape = tuple(N if (i, axis) in places else d for axis, d in enumerate(array.shape))
        leaves.append(Input(name=f"x{i}", dtype=as_dtype(array.dtype), shape=shape)())
    plain = [
        Input(name=f"x{i}", dtype=as_dtype(a.dtype), shape=tuple(a.shape))()
        for i, a in enumerate(sample.inputs)
    ]
    wanted = make_node(sample.op, plain).types
    for op in _with_symbols(sample.op, size):
        try:
            graph = Graph(leaves, (), make_node(op, leaves).results)
            types = tuple(v.type for v in bind(graph, {"n": size}).outputs)
        except (RlxError, TypeError):
            continue
        assert types == tuple(v.type.bind({"n": size}) for v in graph.outputs), op
        if types == wanted and not graph.effects:
            yield Symbolised(graph, sample, size, places)
            return


def _with_symbols(op: Op, size: int) -> Iterator[Op]:
    """The op, and the op with its attributes of this size made symbols."""
    yield op
    for name, value in op.attributes().items():
        if type(value) is int and value == size:
            changed: Any = N
        elif isinstance(value, tuple) and size in value and all(type(d) is int for d in value):
            changed = tuple(N if d == size else d for d in value)
        else:
            continue
        try:
            made = op.replace(**{name: changed})
        except (RlxError, TypeError):
            continue
        yield made


def compare(one: Symbolised, padded: PaddedGraph, bucket: int, poisons: Sequence[float]) -> int:
    """Assert that a padded op gives what the unpadded one gives.

    Args:
        one: the op.
        padded: the same at size ``bucket``.
        bucket: the padded size.
        poisons: what padding of floats holds, in turn; that of others holds their largest number.

    Returns:
        At how many sizes the op can be run.
    """
    done = 0
    counts = range(1, bucket + 1)
    for n in counts if bucket <= 12 else (1, 2, bucket // 2, bucket - 2, bucket):
        inputs = one.inputs(n)
        try:
            bound = bind(one.graph, {"n": n})
        except RlxError:  # the op has no such size
            continue
        with np.errstate(all="ignore"):
            wanted = rlx.interpret(bound, inputs)
            for poison in poisons:
                wide: dict[str, Any] = {
                    v.name: poisoned(inputs[v.name], padded_shape(v, bucket), poison)
                    for v in one.graph.inputs
                }
                found = rlx.interpret(padded.graph, {**wide, "__rlx_extent_n": np.int32(n)})
                for y, factors, right in zip(found, padded.outputs, wanted, strict=True):
                    _same(
                        cut(y, factors, {"n": n}, {"n": bucket}, right.shape),
                        right,
                        f"n = {n} of {bucket}",
                    )
        done += 1
    return done


def padded_shape(value: Value, bucket: int) -> tuple[int, ...]:
    """Sizes of a value where n is the bucket."""
    return tuple(dims.evaluate(d, {"n": bucket}) for d in value.type.shape)


def poisoned(
    x: np.ndarray[Any, Any], sizes: tuple[int, ...], poison: float
) -> np.ndarray[Any, Any]:
    """An array in one of other sizes; beside it stands what no result may depend on."""
    dtype = as_dtype(x.dtype)
    made = np.zeros(sizes, x.dtype)
    if dtype.is_integer:
        made[...] = np.iinfo(x.dtype).max if x.dtype.kind in "iu" else 1
    elif dtype.is_float or dtype.is_complex:
        with np.errstate(all="ignore"):
            made[...] = np.asarray(poison).astype(x.dtype)
    else:
        made[...] = True
    made[tuple(slice(0, n) for n in x.shape)] = x
    return made


def cut(
    y: np.ndarray[Any, Any],
    factors: Any,
    sizes: Mapping[str, int],
    largest: Mapping[str, int],
    shape: tuple[int, ...],
) -> np.ndarray[Any, Any]:
    """The elements of a padded result; ``factors`` are its axes as ``PaddedGraph.outputs`` says."""
    flat = [f for axis in factors for f in axis]
    split = y.reshape([dims.evaluate(f, largest) for f in flat])
    return split[tuple(slice(0, dims.evaluate(f, sizes)) for f in flat)].reshape(shape)


def _same(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], where: str) -> None:
    assert got.dtype == want.dtype, where
    dtype = as_dtype(want.dtype)
    if not (dtype.is_float or dtype.is_complex):
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    wide = np.complex128 if dtype.is_complex else np.float64
    bound = 1e-6 if dtype.itemsize >= 4 else 1e-2
    with np.errstate(all="ignore"):
        scale = float(
            np.nanmax(np.abs(np.where(np.isfinite(want), want, 0)).astype(np.float64), initial=1)
        )
    np.testing.assert_allclose(
        got.astype(wide), want.astype(wide), rtol=bound, atol=bound * scale, err_msg=where
    )
