"""Finds the samples of every op, and compares NumPy's meaning with XLA's results."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

import tests.samples
from rlx.dtypes import as_dtype
from rlx.ir.graph import Graph, Value, make_node
from rlx.ops.io import Input
from rlx.tolerances import Tolerance, tolerance
from tests.samples.base import ErrorSample, Sample, SymbolicSample


def families() -> Iterator[ModuleType]:
    """Every sample module."""
    for info in pkgutil.iter_modules(tests.samples.__path__):
        if info.name != "base":
            yield importlib.import_module(f"tests.samples.{info.name}")


def all_samples(rng: np.random.Generator) -> dict[str, list[Sample]]:
    """Samples by op name."""
    table: dict[str, list[Sample]] = {}
    for family in families():
        for sample in family.samples(rng):
            table.setdefault(sample.op.op_name, []).append(sample)
    return table


def all_error_samples() -> list[ErrorSample]:
    """Error samples of every family."""
    return [s for family in families() for s in family.error_samples()]


def all_symbolic_samples() -> list[SymbolicSample]:
    """Symbolic samples of every family."""
    return [s for family in families() for s in family.symbolic_samples()]


def graph_of(samples: Sequence[Sample]) -> tuple[Graph, list[np.ndarray[Any, Any]]]:
    """One graph that holds every sample, and the arrays for its inputs."""
    leaves: list[Value] = []
    arrays: list[np.ndarray[Any, Any]] = []
    outputs: list[Value] = []
    for sample in samples:
        mine: list[Value] = []
        for array in sample.inputs:
            leaf = Input(
                name=f"x{len(leaves)}", dtype=as_dtype(array.dtype), shape=tuple(array.shape)
            )()
            leaves.append(leaf)
            mine.append(leaf)
            arrays.append(array)
        outputs.extend(make_node(sample.op, mine).results)
    return Graph(leaves, (), outputs, name="samples"), arrays


def compare(sample: Sample, found: Sequence[Any], wanted: Sequence[np.ndarray[Any, Any]]) -> None:
    """Assert that results agree within the sample's bound.

    A subnormal operand may be read as zero: a sample that fails is compared again with the
    operands (and results) flushed.
    """
    if sample.check is not None:
        sample.check(found, wanted, sample.inputs)
        return
    for index, (got, want) in enumerate(zip(found, wanted, strict=True)):
        message = mismatch(np.asarray(got), want, sample)
        if message:
            flushed = _flushed_reference(sample)[index]
            message = mismatch(np.asarray(got), flushed, sample) and message
        assert not message, f"{sample.op!r} {sample.label} result {index}: {message}"


def mismatch(
    got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], sample: Sample | None = None
) -> str:
    """Say how two arrays differ, or return an empty string."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if not got.size:
        return ""
    dtype = as_dtype(want.dtype)
    if dtype.is_complex:
        got = _settled(got, want, sample)
        return mismatch(got.real, want.real, sample) or mismatch(got.imag, want.imag, sample)
    if not dtype.is_float:
        bad = got != want
        return _first(bad, got, want)
    bound = tolerance(dtype) if sample is None or sample.tolerance is None else sample.tolerance
    g, w = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        if sample is not None and sample.max_ulp is not None:
            limit = sample.max_ulp * _ulp(want, w)
        else:
            limit = _limit(bound, w)
        good = (g == w) | (np.isnan(g) & np.isnan(w)) | (np.abs(g - w) <= limit)
    return _first(~good, got, want)


def _settled(
    got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], sample: Sample | None
) -> np.ndarray[Any, Any]:
    """Complex results with those that are near enough by modulus replaced by what is wanted.

    As in np.isclose: a part that is small beside the other carries the rounding of the larger one.
    """
    if sample is not None and sample.max_ulp is not None:
        return got
    dtype = as_dtype(want.dtype)
    bound = tolerance(dtype) if sample is None or sample.tolerance is None else sample.tolerance
    wide = want.astype(np.complex128)
    with np.errstate(all="ignore"):
        near = np.abs(got.astype(np.complex128) - wide) <= _limit(bound, np.abs(wide))
    return np.where(near & np.isfinite(wide), want, got)


def _limit(bound: Tolerance, wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return bound.atol + bound.rtol * np.abs(wanted)


def _ulp(want: np.ndarray[Any, Any], wide: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import ml_dtypes

    info = ml_dtypes.finfo(want.dtype)
    size = np.maximum(np.abs(np.nan_to_num(wide, posinf=0, neginf=0)), float(info.smallest_normal))
    return np.exp2(np.floor(np.log2(size))) * float(info.eps)


def _first(bad: np.ndarray[Any, Any], got: Any, want: Any) -> str:
    if not bad.any():
        return ""
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    return (
        f"{int(bad.sum())} of {bad.size} differ; at {where}: {got[where]} instead of {want[where]}"
    )


def _flushed_reference(sample: Sample) -> list[np.ndarray[Any, Any]]:
    flushed = [_flush(a) for a in sample.inputs]
    result = sample.op.evaluate(*flushed)
    results = result if type(result) is tuple else (result,)
    return [_flush(np.asarray(r)) for r in results]


def _flush(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import ml_dtypes

    dtype = as_dtype(array.dtype)
    if dtype.is_complex:
        return (_flush(array.real) + 1j * _flush(array.imag)).astype(array.dtype)
    if not dtype.is_float:
        return array
    tiny = float(ml_dtypes.finfo(array.dtype).smallest_normal)
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        small = np.abs(wide) < tiny
    return np.where(small, np.copysign(np.zeros_like(array), array), array)
