"""A decoder with its layers written out and few arguments, for GPUs.

A GPU spends most of a step on starting kernels, and the host on handing over arguments. So matrices
that take the same input are one, whose rows are those of all of them; vectors and caches are one
array for all layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from rlx_xla.models import decoder
from rlx_xla.models.decoder_config import DecoderConfig
from rlx_xla.models.decoder_loop import Stacks
from rlx_xla.models.packed import MlxWeight, PackedWeight

JOINED = (("query", "key", "value"), ("gate", "up"))
"""Matrices of one input, in the order of their rows."""

Join: TypeAlias = Callable[[Sequence[Any]], Any]


def flat_params(params: decoder.Params, join: Join) -> dict[str, Any] | None:
    """Return the params of `forward`, or None where layers have vectors of different sizes.

    Args:
        params: as `decoder_params.load_params` returns them. Matrices may be of any kind.
        join: makes one array of the rows of several; such as `rows_on`.

    Returns:
        The same tree, but for ``layers``, a dict: ``matrices``, of each layer those by name, where
        the name of one that is made of several has their names with a comma between; ``vectors``
        by name, those of all layers stacked.
    """
    layers: Sequence[Mapping[str, Any]] = params["layers"]
    vectors = [{n: w for n, w in layer.items() if not _is_matrix(w)} for layer in layers]
    sizes = [{name: w.shape for name, w in mine.items()} for mine in vectors]
    if any(mine != sizes[0] for mine in sizes):
        return None
    stacked = {name: np.stack([mine[name] for mine in vectors]) for name in vectors[0]}
    matrices = [
        _joined({n: w for n, w in layer.items() if _is_matrix(w)}, join) for layer in layers
    ]
    return {**params, "layers": {"matrices": matrices, "vectors": stacked}}


def rows_on(device: Any) -> Join:
    """Rows of several arrays as one on a device; the host holds one of them at a time."""

    def join(parts: Sequence[Any]) -> Any:
        return jax.device_put(np.concatenate([np.asarray(part) for part in parts]), device)

    return join


def rows_shape(parts: Sequence[Any]) -> Any:
    """The type of what `rows_on` makes."""
    rows = sum(part.shape[0] for part in parts)
    return jax.ShapeDtypeStruct((rows, *parts[0].shape[1:]), parts[0].dtype)


def forward(
    params: decoder.Params,
    config: DecoderConfig,
    ids: jax.Array,
    start: jax.Array,
    offset: jax.Array,
    stacks: Stacks,
) -> tuple[jax.Array, Stacks]:
    """Return what `decoder.forward` returns, with params of `flat_params`.

    Args:
        params: see there.
        config: sizes.
        ids: as of `decoder.forward`, and so are `start` and `offset`.
        start: see there.
        offset: see there.
        stacks: caches, as of `decoder_loop.empty_stacks`.
    """
    with jax.numpy_rank_promotion("allow"), decoder.x64(config.wide):
        x, places, angles = decoder.first_states(params, config, ids, start, offset)
        layers = params["layers"]
        for i, matrices in enumerate(layers["matrices"]):
            vectors = {name: rows[i] for name, rows in layers["vectors"].items()}
            layer = {**vectors, **matrices}
            windowed = config.has_window(i)
            x, stacks = _layer(
                config, windowed, layer, x, angles[windowed], places, start, stacks, jnp.int32(i)
            )
        x = decoder.rms_norm(x, params["norm"], config.eps, decoder.dtype_of(config))
        return x, stacks


@functools.partial(jax.jit, static_argnums=(0, 1))
def _layer(
    config: DecoderConfig,
    windowed: bool,
    layer: decoder.Params,
    x: jax.Array,
    angles: tuple[jax.Array, jax.Array],
    places: jax.Array,
    start: jax.Array,
    stacks: Stacks,
    number: jax.Array,
) -> tuple[jax.Array, Stacks]:
    """One block; traced once for all layers whose weights are alike."""
    window = config.window if windowed else 0
    return decoder.block(config, window, layer, x, angles, places, start, stacks, (number,))


def _joined(matrices: dict[str, Any], join: Join) -> dict[str, Any]:
    """Matrices of a layer, neighbours of one input and one kind made one."""
    made = dict(matrices)
    for names in JOINED:
        for run in _runs(matrices, names):
            if len(run) > 1:
                parts = [made.pop(name) for name in run]
                if isinstance(parts[0], PackedWeight):
                    codes = join([part.codes for part in parts])
                    whole = PackedWeight(codes, parts[0].scheme, parts[0].inputs)
                else:
                    whole = join(parts)
                made[",".join(run)] = whole
    return made


def _runs(matrices: Mapping[str, Any], names: Sequence[str]) -> list[list[str]]:
    """Names one after another whose matrices are of one kind."""
    runs: list[list[str]] = []
    for name in names:
        kind = _kind(matrices[name])
        if runs and kind is not None and kind == _kind(matrices[runs[-1][-1]]):
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def _kind(weight: Any) -> Any:
    """What matrices have in common whose rows can be those of one; None for those that stay."""
    if isinstance(weight, PackedWeight):
        return weight.scheme, weight.inputs
    return None if isinstance(weight, MlxWeight) else str(weight.dtype)


def _is_matrix(weight: Any) -> bool:
    return isinstance(weight, PackedWeight | MlxWeight) or len(weight.shape) > 1
