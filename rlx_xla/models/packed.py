"""Packed weights in JAX functions: leaves of a params tree that keep their quantised bytes.

A product with a ``PackedWeight`` traces to one ``dequant_matmul`` node (``dequant_matmul_int8``
where inputs are rounded), one with a ``PickedWeight`` to one ``dequant_matmul_pick`` for each kind
of weights, and a lookup to one ``dequant_gather``. Under ``jax.jit`` alone they are what those ops
are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlx.dtypes import as_dtype
from rlx.errors import ShapeError
from rlx.quant.packed import decode, unpack
from rlx.quant.schemes import QuantScheme
from rlx.types import TensorType

INPUTS = ("exact", "int8")


@final
@dataclass(frozen=True)
class PackedWeight:
    """A quantised matrix of N outputs and K inputs, stored by rows of blocks.

    Attributes:
        codes: u8[N, bytes of a row].
        scheme: the display name of a GGUF ``QuantScheme``, such as ``gguf_q4k``.
        inputs: what a product takes in: ``"exact"``, or ``"int8"`` for inputs rounded to signed
            bytes with a scale for each 32 (256 for K-quants), as llama.cpp rounds them; a scheme
            with blocks of another size takes exact ones.
    """

    codes: Any
    scheme: str
    inputs: str = "exact"

    @property
    def shape(self) -> tuple[int, int]:
        """N and K."""
        scheme = QuantScheme.parse(self.scheme)
        rows, width = self.codes.shape
        return rows, width // scheme.block_bytes * scheme.block_size

    def numbers(self) -> np.ndarray[Any, Any]:
        """The numbers, f32[N, K]."""
        return decode(QuantScheme.parse(self.scheme), np.asarray(self.codes))


jax.tree_util.register_dataclass(
    PackedWeight, data_fields=["codes"], meta_fields=["scheme", "inputs"]
)


@final
@dataclass(frozen=True)
class MlxWeight:
    """A matrix of N outputs and K inputs as MLX quantises it; products take exact inputs.

    Attributes:
        codes: u32[N, K · bits / 32].
        scales: float[N, K / group], or u8 (powers of two) of MX formats.
        biases: float[N, K / group], or None.
        scheme: the display name of an MLX ``QuantScheme``, such as ``mlx_affine/4/64``.
    """

    codes: Any
    scales: Any
    biases: Any
    scheme: str

    @property
    def shape(self) -> tuple[int, int]:
        """N and K."""
        rows, groups = self.scales.shape
        return rows, groups * QuantScheme.parse(self.scheme).block

    def arrays(self) -> tuple[Any, ...]:
        """Codes, scales, and biases where there are any."""
        parts = (self.codes, self.scales, self.biases)
        return tuple(part for part in parts if part is not None)

    def numbers(self) -> np.ndarray[Any, Any]:
        """The numbers, f32[N, K]."""
        return unpack(QuantScheme.parse(self.scheme), *map(np.asarray, self.arrays()))


jax.tree_util.register_dataclass(
    MlxWeight, data_fields=["codes", "scales", "biases"], meta_fields=["scheme"]
)


@final
@dataclass(frozen=True)
class PickedWeight:
    """One of several packed weights of one shape, named by a number; no leaf of a params tree.

    Attributes:
        weights: those to choose from; they may have different schemes.
        index: i32[], which one; a number outside means the first or the last.
    """

    weights: Sequence[PackedWeight]
    index: jax.Array

    @property
    def shape(self) -> tuple[int, int]:
        """N and K."""
        return self.weights[0].shape


PACKED = (PackedWeight, MlxWeight)
"""Leaves of a params tree that hold packed numbers."""

Weight: TypeAlias = "PackedWeight | MlxWeight | PickedWeight | jax.Array | np.ndarray[Any, Any]"
"""A matrix [N, K]: packed, or an array of any floating dtype."""


def product(x: jax.Array, weight: Weight) -> jax.Array:
    """Return x times a weight: y[..., n] = Σ_k x[..., k] · w[n, k].

    Args:
        x: float[..., K].
        weight: [N, K].

    Returns:
        Dtype of x, [..., N]; sums are f32.

    Raises:
        ShapeError: the sizes K differ.
    """
    from rlx_xla.models.packed_graphs import mlx_product, packed_product  # loads op families

    _require_inner("product", x.shape[-1], weight)
    if isinstance(weight, PickedWeight):
        return _picked_product(x, weight)
    if isinstance(weight, MlxWeight):
        types = _types(weight.arrays())
        mlx = mlx_product(weight.scheme, as_dtype(np.dtype(x.dtype)), weight.shape[1], types)
        made = mlx(x.reshape(-1, x.shape[-1]), *weight.arrays())
        return made.reshape(*x.shape[:-1], weight.shape[0])
    if not isinstance(weight, PackedWeight):
        wide = jnp.asarray(weight).astype(jnp.float32)
        return jnp.einsum("...k,nk->...n", x.astype(jnp.float32), wide).astype(x.dtype)
    dtype = as_dtype(np.dtype(x.dtype))
    call = packed_product(weight.scheme, weight.inputs, dtype, tuple(weight.codes.shape))
    flat = x.reshape(-1, x.shape[-1])
    return call(flat, weight.codes).reshape(*x.shape[:-1], weight.codes.shape[0])


def _picked_product(x: jax.Array, picked: PickedWeight) -> jax.Array:
    """The product with the weight that is meant: one branch for each kind of weights."""
    from rlx_xla.models.packed_graphs import picked_product

    kinds: dict[tuple[str, str, tuple[int, int]], list[int]] = {}
    for number, weight in enumerate(picked.weights):
        key = (weight.scheme, weight.inputs, tuple(weight.codes.shape))
        kinds.setdefault(key, []).append(number)
    dtype = as_dtype(np.dtype(x.dtype))
    flat = x.reshape(-1, x.shape[-1])
    which, place = np.zeros((2, len(picked.weights)), np.int32)
    branches: list[Callable[[jax.Array, jax.Array], jax.Array]] = []
    for kind, ((scheme, inputs, codes), numbers) in enumerate(kinds.items()):
        which[numbers], place[numbers] = kind, np.arange(len(numbers))
        call = picked_product(scheme, inputs, dtype, codes, len(numbers))
        held = [picked.weights[number].codes for number in numbers]
        branches.append(lambda x, at, call=call, held=held: call(x, at, *held))
    if len(branches) == 1:
        found = branches[0](flat, picked.index)
    else:
        # Clipped, as within one kind: an index into an array would count from the end.
        kind, at = (jnp.take(table, picked.index, mode="clip") for table in (which, place))
        found = lax.switch(kind, branches, flat, at)
    return found.reshape(*x.shape[:-1], picked.shape[0])


def rows_of(
    weight: PackedWeight | MlxWeight | jax.Array | np.ndarray[Any, Any], indices: jax.Array
) -> jax.Array:
    """Return rows of a weight, f32[indices.dims ++ [K]]; indices outside are clipped.

    Args:
        weight: [N, K].
        indices: i32[...].
    """
    from rlx_xla.models.packed_graphs import mlx_rows, packed_rows  # loads op families

    if isinstance(weight, MlxWeight):
        flat = indices.reshape(-1)
        taken = [jnp.take(jnp.asarray(a), flat, axis=0, mode="clip") for a in weight.arrays()]
        rows = mlx_rows(weight.scheme, _types(taken))(*taken)
        return rows.reshape(*indices.shape, weight.shape[1])
    if not isinstance(weight, PackedWeight):
        return jnp.take(jnp.asarray(weight), indices, axis=0, mode="clip").astype(jnp.float32)
    call = packed_rows(weight.scheme, tuple(weight.codes.shape))
    return call(weight.codes, indices.reshape(-1)).reshape(*indices.shape, weight.shape[1])


def unpacked(params: Any, dtype: Any = np.float32) -> Any:
    """Return a params tree with every packed weight as an array of numbers.

    Args:
        params: any tree.
        dtype: of the arrays that packed weights become.
    """
    return jax.tree_util.tree_map(
        lambda leaf: leaf.numbers().astype(dtype) if isinstance(leaf, PACKED) else leaf,
        params,
        is_leaf=lambda leaf: isinstance(leaf, PACKED),
    )


def _require_inner(where: str, inner: Any, weight: Weight) -> None:
    if weight.shape[-1] != inner:
        raise ShapeError(
            f"{where}: the last axis of x is required to be K of the weight {list(weight.shape)}; "
            f"got {inner}. Check which weight is which."
        )


def _types(arrays: Sequence[Any]) -> tuple[TensorType, ...]:
    return tuple(TensorType(as_dtype(np.dtype(a.dtype)), tuple(a.shape)) for a in arrays)
