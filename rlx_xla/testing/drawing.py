"""Draws arguments for specs such as ``"f32[b, 4]"``: several sizes and dtypes, one seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import ml_dtypes
import numpy as np

from rlx import dims
from rlx.dtypes import DType, as_dtype
from rlx.errors import DimError
from rlx.types import TensorType, as_type
from rlx_xla.tracing.evaluation import Evaluator

SIZES = (3, 1, 0, 8)
"""What the symbols of specs are drawn from: an odd size, one, none, a power of two."""

_WIDE = ("float64", "int64", "uint64", "complex128")

Sizes = Sequence[int] | Mapping[str, Sequence[int]]


@final
@dataclass(frozen=True)
class Case:
    """One drawing.

    Attributes:
        label: the sizes and the dtype, for messages.
        sizes: those of the symbols.
        args: positional arguments without specs.
        kwargs: keyword arguments without specs.
        wide: whether an array was drawn with 64-bit elements.
    """

    label: str
    sizes: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    wide: bool


def cases(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    sizes: Sizes = SIZES,
    dtypes: Sequence[str | DType] = (),
    special: bool = False,
    seed: int = 0,
) -> Iterator[Case]:
    """Yield drawings of arguments.

    Args:
        args: trees of arrays, numbers and specs.
        kwargs: the same.
        sizes: sizes of every symbol, or of each by its name; one case takes them apart.
        dtypes: each replaces the dtype of every floating spec in turn; none keeps them.
        special: put NaN, infinities, zeros of both signs, the least and the largest values in.
        seed: of the values.

    Raises:
        DimError: a symbol has no sizes.
    """
    tree = (tuple(args), dict(kwargs))
    leaves, structure = jax.tree_util.tree_flatten(tree, is_leaf=_is_spec)
    specs = [_spec(leaf) for leaf in leaves]
    symbols = sorted({s for t in specs if t is not None for s in dims.symbols(t.shape)})
    kinds = [as_dtype(d) for d in dtypes] or [None]
    for kind in kinds:
        for binding in _bindings(symbols, sizes):
            rng = np.random.default_rng(seed)
            drawn = [
                leaf if spec is None else _draw(_bound(spec, binding, kind), rng, special=special)
                for leaf, spec in zip(leaves, specs, strict=True)
            ]
            made_args, made_kwargs = jax.tree_util.tree_unflatten(structure, drawn)
            shown = [f"{name}={size}" for name, size in binding.items()]
            label = ", ".join([*shown, *([] if kind is None else [str(kind)])])
            wide = any(
                array.dtype.name in _WIDE
                for array, spec in zip(drawn, specs, strict=True)
                if spec is not None
            )
            yield Case(label, tuple(binding.values()), made_args, made_kwargs, wide)


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, str | TensorType | jax.ShapeDtypeStruct)


def _spec(leaf: Any) -> TensorType | None:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return TensorType(as_dtype(leaf.dtype), tuple(leaf.shape))
    return as_type(leaf) if isinstance(leaf, str | TensorType) else None


def _bindings(symbols: Sequence[str], sizes: Sizes) -> Iterator[dict[str, int]]:
    """Every size for all symbols at once, then one binding in which they differ."""
    if not symbols:
        yield {}
        return
    table = {name: _sizes_of(name, sizes) for name in symbols}
    longest = max(map(len, table.values()))
    for turn in range(longest):
        yield {name: known[min(turn, len(known) - 1)] for name, known in table.items()}
    if len(symbols) > 1 and longest > 1:
        yield {name: known[i % len(known)] for i, (name, known) in enumerate(table.items())}


def _sizes_of(name: str, sizes: Sizes) -> Sequence[int]:
    known = sizes.get(name, SIZES) if isinstance(sizes, Mapping) else sizes
    if not known or any(n < 0 for n in known):
        raise DimError(
            f"sizes: at least one size ≥ 0 is required for the symbol {name!r}; got {tuple(known)}."
        )
    return known


def _bound(spec: TensorType, binding: Mapping[str, int], kind: DType | None) -> TensorType:
    sizes = Evaluator(binding)  # unlike dims.evaluate, it takes 0 for a symbol
    shape = tuple(sizes.size(d) for d in spec.shape)
    dtype = kind if kind is not None and spec.dtype.is_float else spec.dtype
    return TensorType(dtype, shape)


def _draw(type_: TensorType, rng: np.random.Generator, *, special: bool) -> Any:
    shape = tuple(int(str(d)) for d in type_.shape)
    dtype = type_.dtype
    if dtype is DType.BOOL:
        return rng.random(shape) < 0.5
    if dtype.is_complex:
        parts = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        values: Any = parts
    elif dtype.is_float:
        values = rng.standard_normal(shape)
    else:
        info = ml_dtypes.iinfo(dtype.numpy)
        low, high = max(int(info.min), -8), min(int(info.max), 8)
        values = rng.integers(low, high, shape, endpoint=True)
    array = np.asarray(values).astype(dtype.numpy)
    if special and array.size:
        chosen = rng.random(shape) < 0.25
        known = _special(dtype)
        array = np.where(chosen, known[rng.integers(0, len(known), shape)], array)
    return array.astype(dtype.numpy)


def _special(dtype: DType) -> np.ndarray[Any, Any]:
    if not (dtype.is_float or dtype.is_complex):
        info = ml_dtypes.iinfo(dtype.numpy)
        return np.array([int(info.min), int(info.max), 0, 1]).astype(dtype.numpy)
    parts = {DType.C64: DType.F32, DType.C128: DType.F64}
    info = ml_dtypes.finfo(parts.get(dtype, dtype).numpy)
    values = [np.nan, np.inf, -np.inf, 0.0, -0.0, float(info.max), float(info.min)]
    with np.errstate(all="ignore"):
        return np.array([*values, float(info.smallest_normal)]).astype(dtype.numpy)
