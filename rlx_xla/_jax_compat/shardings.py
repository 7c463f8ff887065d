"""Shardings, ``shard_map`` and named axes as JAX 0.7.2 to 0.12 say them in jaxprs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
from jax._src import core as _core

from rlx_xla._jax_compat.jaxpr import open_jaxpr

Axes = tuple[tuple[str, int], ...]


@final
@dataclass(frozen=True, slots=True)
class NamedPlacement:
    """A ``NamedSharding`` without its devices.

    Attributes:
        axes: names and sizes of the mesh's axes.
        entries: the spec's, as they are: None, a name, names, or JAX's UNCONSTRAINED.
        automatic: whether the compiler divides over every axis of the mesh that is not named.
    """

    axes: Axes
    entries: tuple[Any, ...]
    automatic: bool


@final
@dataclass(frozen=True, slots=True)
class ShardMapParams:
    """Parameters of ``shard_map`` by one set of names.

    Attributes:
        jaxpr: what each shard computes.
        axes: names and sizes of the mesh's axes.
        manual: the axes over which operands are divided, in the order of the mesh.
        in_specs: one spec for each operand.
        out_specs: one for each result.
        checked: whether JAX follows which values differ between shards.
    """

    jaxpr: Any
    axes: Axes
    manual: tuple[str, ...]
    in_specs: tuple[tuple[Any, ...], ...]
    out_specs: tuple[tuple[Any, ...], ...]
    checked: bool


def asks_nothing(sharding: Any) -> bool:
    """Tell whether this is None, or JAX's mark of a sharding that nobody gave."""
    return sharding is None or type(sharding).__name__ == "UnspecifiedValue"


def named_placement(sharding: Any) -> NamedPlacement | None:
    """Read a ``NamedSharding`` over several devices; None for anything else."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return None
    axes, spec = _axes(sharding.mesh), sharding.spec
    if axes is None or _partial_sums(spec):
        return None
    kinds = getattr(sharding.mesh, "axis_types", ()) or ()
    automatic = all(getattr(kind, "name", "") in ("Auto", "Manual") for kind in kinds)
    return NamedPlacement(axes, tuple(spec), automatic)


def names_devices(jaxpr: Any) -> bool:
    """Whether a jaxpr says on which device something lies, in itself or inside of it.

    That is a sharding of one device given to ``jit`` or as a constraint, and one of several to
    ``device_put``, whose single devices JAX leaves out of account in a program too.
    """
    seen: set[int] = set()
    left = [open_jaxpr(jaxpr)]
    while left:
        current = left.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for equation in current.eqns:
            params = equation.params
            asked = [params.get(key) for key in ("in_shardings", "out_shardings", "sharding")]
            if any(_device_count(s) == 1 for given in asked for s in _several(given)):
                return True
            put = equation.primitive.name == "device_put"
            if put and any(_device_count(s) > 1 for s in _several(params.get("devices"))):
                return True
            left += map(open_jaxpr, _core.jaxprs_in_params(params))
    return False


def _several(given: Any) -> Sequence[Any]:
    return given if isinstance(given, (tuple, list)) else (given,)


def _device_count(sharding: Any) -> int:
    """How many devices a sharding names; 0 for what names none."""
    if not isinstance(sharding, jax.sharding.Sharding):
        return 0
    if isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
        return 0
    return len(sharding.device_set)


def shard_map_params(params: Mapping[str, Any]) -> ShardMapParams | None:
    """Read the parameters of ``shard_map``; None where they say more than is modelled."""
    axes = _axes(params["mesh"])
    manual = params.get("newly_manual_axes", params.get("manual_axes"))
    specs = (*params["in_specs"], *params["out_specs"])
    if axes is None or manual is None or any(map(_partial_sums, specs)):
        return None
    return ShardMapParams(
        params["jaxpr"],
        axes,
        tuple(name for name, _ in axes if name in manual),
        tuple(tuple(spec) for spec in params["in_specs"]),
        tuple(tuple(spec) for spec in params["out_specs"]),
        bool(params["check_vma"]),
    )


def collectives_of(jaxpr: Any) -> Iterator[Any]:
    """Every equation that names mesh axes, in a jaxpr and in those inside of it."""
    for equation in open_jaxpr(jaxpr).eqns:
        if any(isinstance(effect, _core.NamedAxisEffect) for effect in equation.effects):
            inner = list(_core.jaxprs_in_params(equation.params))
            if not inner:
                yield equation
        for inner in _core.jaxprs_in_params(equation.params):
            yield from collectives_of(inner)


def axis_names(given: Any) -> tuple[str, ...] | None:
    """Names of mesh axes from one or several; None where one is no name (a vmapped position)."""
    names = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    return names if all(isinstance(name, str) for name in names) else None


def named_and_vmapped(given: Any) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Names among the axes of a reduction, and the positions that ``vmap`` put for its own."""
    axes = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    positions = tuple(sorted(axis for axis in axes if isinstance(axis, int)))
    return tuple(axis for axis in axes if not isinstance(axis, int)), positions


def _axes(mesh: Any) -> Axes | None:
    found = tuple((name, int(size)) for name, size in mesh.shape.items())
    return found if found and all(isinstance(name, str) for name, _ in found) else None


def _partial_sums(spec: Any) -> bool:
    """Tell whether a spec speaks of sums that are not finished."""
    return bool(getattr(spec, "unreduced", None)) or bool(getattr(spec, "reduced", None))
