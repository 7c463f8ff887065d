"""Shardings of a trace: those of arguments, and those that equations ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.ir.graph import Value
from rlx.ops.collective import ShardingConstraint
from rlx.sharding import axes_size, placement_of
from rlx_xla._jax_compat import placement, shardings


def leaf_attributes(where: str, value: Any, rank: int) -> dict[str, Any]:
    """The mesh and the sharding of an input or param from the array that was given for it.

    Args:
        where: the argument's name, for messages.
        value: an array or a ``jax.ShapeDtypeStruct``.
        rank: axes of the input.
    """
    found = shardings.named_placement(getattr(value, "sharding", None))
    if found is None or axes_size(found.axes) == 1:
        return {}
    return {"mesh": found.axes, "sharding": placement_of(where, found.entries, rank)}


def constrained(value: Value, sharding: Any) -> Value | None:
    """A value laid out as JAX's sharding says; None where that has no form here."""
    if shardings.asks_nothing(sharding) or placement.is_open(sharding):
        return value
    found = shardings.named_placement(sharding)
    if found is None:
        return None
    if axes_size(found.axes) == 1:
        return value
    entries = placement_of("sharding", found.entries, value.type.rank)
    made: Value = ShardingConstraint(mesh=found.axes, sharding=entries)(value)
    return made


def all_constrained(values: Sequence[Value], wanted: Sequence[Any]) -> tuple[Value, ...] | None:
    """Values laid out as JAX's shardings say; None where one has no form here."""
    if all(map(shardings.asks_nothing, wanted)):
        return tuple(values)
    if len(values) != len(wanted):
        return None
    made = [constrained(v, s) for v, s in zip(values, wanted, strict=True)]
    found = tuple(v for v in made if v is not None)
    return found if len(found) == len(made) else None


_OF_RESULTS = ("out_sharding", "sharding")
_OWN = frozenset({"sharding_constraint", "device_put"})
"""Primitives whose rules read the sharding themselves."""


def split(primitive: str, params: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """Take the sharding that an equation asks for its result from its parameters.

    Args:
        primitive: the equation's primitive.
        params: its parameters.

    Returns:
        The parameters without it, and the sharding; None where the compiler may divide the result
        as it likes, or where it is none over a mesh.
    """
    if primitive in _OWN:
        return params, None
    for key in _OF_RESULTS:
        asked = params.get(key)
        found = None if asked is None else shardings.named_placement(asked)
        if found is not None:
            return {**params, key: None}, None if found.automatic else params[key]
    return params, None


def placed_operands(
    primitive: str, params: Mapping[str, Any], operands: Sequence[Value]
) -> Sequence[Value]:
    """The operands of an equation that stays opaque, laid out as it wants them.

    So the graph says over which devices an opaque ``shard_map`` runs.
    """
    found = shardings.shard_map_params(params) if primitive == "shard_map" else None
    if found is None or axes_size(found.axes) == 1:
        return operands
    return [
        ShardingConstraint(
            mesh=found.axes, sharding=placement_of("in_specs", spec, value.type.rank)
        )(value)
        for spec, value in zip(found.in_specs, operands, strict=True)
    ]
