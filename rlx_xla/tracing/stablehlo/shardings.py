"""Shardings of a module, as Shardy and as HLO write them, become those of RLX.

Shardy names the axes of a mesh. HLO numbers devices: ``{devices=[4,1,2]<=[8]
last_tile_dim_replicate}`` says how many parts each axis of an array has, and in which order devices
take them. The coarsest mesh in which all such orders of a module are made of whole axes is its
mesh, with axes named ``axis_0`` and so on.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from rlx import dims
from rlx.errors import ShapeError
from rlx.ir.graph import Value
from rlx.ops.collective import ShardingConstraint
from rlx.sharding import (
    OPEN,
    Mesh,
    MeshAxes,
    Placement,
    Sharding,
    axes_size,
    mesh_fault,
    sharding_of,
)
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import ir
from rlx_xla.tracing.stablehlo.calls import name_of

SHARDY, HLO = "sdy.sharding", "mhlo.sharding"
_MESH = re.compile(r"^#sdy\.mesh<\[(?P<axes>[^\]]*)\]>$")
_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_SHARDING = re.compile(
    r"^#sdy\.sharding<@(?P<mesh>[^,]+), \[(?P<dims>.*?)\](, replicated=\{[^}:]*\})?>$"
)
_DIM = re.compile(r'^(?:(?:"[^"]+"|\?)(?:, )?)*$')
_TILED = re.compile(
    r"^\{devices=\[(?P<tiles>[\d,]+)\]<=\[(?P<grid>[\d,]+)\](T\((?P<order>[\d,]+)\))?"
    r"(?P<last> last_tile_dim_replicate)?\}$"
)


@final
@dataclass(frozen=True)
class _Tiles:
    """A sharding of HLO.

    Attributes:
        tiles: parts of each axis of the array; where ``last``, then over how many devices each
            part is repeated.
        grid: devices in row-major order have this shape.
        order: its axes in the order in which they are taken.
        last: see tiles.
    """

    tiles: tuple[int, ...]
    grid: tuple[int, ...]
    order: tuple[int, ...]
    last: bool


@final
@dataclass
class Shardings:
    """What a module says about where values live.

    Attributes:
        wanted: whether it is kept.
        left_out: how many annotations have no form here, or were not wanted.
        kept: how many became RLX's.
    """

    module: ir.Module
    wanted: bool = True
    left_out: int = 0
    kept: int = 0
    _meshes: dict[str, MeshAxes | None] = field(default_factory=dict[str, "MeshAxes | None"])
    _numbered: MeshAxes | None = None

    def __post_init__(self) -> None:
        """Read the meshes."""
        if not self.wanted:
            return
        tiled: list[_Tiles] = []
        for view in self.module.body.operations:
            op = view.operation
            if op.name == "sdy.mesh":
                name = name_of(op.attributes["sym_name"])
                self._meshes[name] = _mesh(str(op.attributes["mesh"]))
            op.walk(lambda inner: _collect(inner, tiled))
        self._numbered = _mesh_of(tiled)

    def of(self, attributes: Mapping[str, str], rank: int) -> tuple[MeshAxes, Placement] | None:
        """The sharding among the attributes of a value; None for none, or for one of no form here.

        Args:
            attributes: texts by name.
            rank: axes of the value.
        """
        if SHARDY not in attributes and HLO not in attributes:
            return None
        found = None
        if self.wanted:
            shardy = attributes.get(SHARDY)
            if shardy is not None:
                found = self._named(shardy, rank)
            else:
                found = self._by_number(attributes[HLO], rank)
        if found is None:
            self.left_out += 1
        return found

    def constrained(self, value: Value, attributes: Mapping[str, str]) -> Value:
        """A value laid out as the attributes say; the value itself where they say nothing."""
        found = self.of(attributes, value.type.rank)
        if found is None or axes_size(found[0]) == 1 or _is_free(found[1]):
            return value
        axes, placement = found
        if sharding_of(value) == Sharding(Mesh(axes), placement):
            self.kept += 1
            return value
        try:
            made: Value = ShardingConstraint(mesh=axes, sharding=placement)(value)
        except ShapeError:  # a dim that its parts do not divide: XLA pads it
            self.left_out += 1
            return value
        self.kept += 1
        return made

    def leaf(self, attributes: Mapping[str, str], type_: TensorType) -> dict[str, object]:
        """The mesh and the sharding of an argument; empty where nothing is said."""
        shape = [dims.evaluate(dim, {}) for dim in type_.shape]
        found = self.of(attributes, len(shape))
        if found is None or axes_size(found[0]) == 1 or _is_free(found[1]):
            return {}
        axes, placement = found
        sizes = dict(axes)
        closed = tuple(tuple(name for name in names if name != OPEN) for names in placement)
        parts = [math.prod(sizes[name] for name in names) for names in closed]
        if any(size % part for size, part in zip(shape, parts, strict=True)):
            self.left_out += 1
            return {}
        self.kept += 1
        return {"mesh": axes, "sharding": closed}

    def _named(self, text: str, rank: int) -> tuple[MeshAxes, Placement] | None:
        match = _SHARDING.match(text)
        axes = None if match is None else self._meshes.get(name_of(match["mesh"]))
        if match is None or axes is None:
            return None
        dims = re.findall(r"\{([^}]*)\}(\w*)", match["dims"])
        known = dict(axes)
        placement: list[tuple[str, ...]] = []
        for inner, priority in dims:
            if priority or not _DIM.match(inner):
                return None
            names = tuple(OPEN if n == "?" else n.strip('"') for n in inner.split(", ") if n)
            if any(name != OPEN and name not in known for name in names):
                return None
            placement.append(names)
        return (axes, tuple(placement)) if len(placement) == rank else None

    def _by_number(self, text: str, rank: int) -> tuple[MeshAxes, Placement] | None:
        axes = self._numbered
        if axes is None:
            shardy = [found for found in self._meshes.values() if found]
            return (shardy[0], ((),) * rank) if shardy and text == "{replicated}" else None
        if text == "{replicated}":
            return axes, ((),) * rank
        tiles = _tiles(text)
        placement = None if tiles is None else _placement(tiles, axes)
        return None if placement is None or len(placement) != rank else (axes, placement)


def texts_of(attributes: Iterable[tuple[str, ir.Attribute]]) -> dict[str, str]:
    """Texts and shardings among attributes, by name."""
    return {
        name: name_of(value) if isinstance(value, ir.StringAttr) else str(value)
        for name, value in attributes
        if isinstance(value, ir.StringAttr) or name == SHARDY
    }


def _is_free(placement: Placement) -> bool:
    """Whether the compiler may divide every axis as it likes."""
    return bool(placement) and all(names == (OPEN,) for names in placement)


def _mesh(text: str) -> MeshAxes | None:
    """Axes of ``#sdy.mesh<["x"=4]>``; None where devices have an order of their own."""
    match = _MESH.match(text)
    if match is None:
        return None
    axes = tuple((name, int(size)) for name, size in _AXIS.findall(match["axes"]))
    return axes if axes and not mesh_fault(axes) else None


def _collect(op: ir.Operation, found: list[_Tiles]) -> ir.WalkResult:
    texts: list[str] = []
    if HLO in op.attributes:
        texts.append(name_of(op.attributes[HLO]))
    for key in ("arg_attrs", "res_attrs"):
        if op.name == "func.func" and key in op.attributes:
            for entry in ir.ArrayAttr(op.attributes[key]):
                named = ir.DictAttr(entry)
                texts += [name_of(named[HLO])] if HLO in named else []
    found += [tiles for tiles in map(_tiles, texts) if tiles is not None]
    return ir.WalkResult.ADVANCE


def _tiles(text: str) -> _Tiles | None:
    match = _TILED.match(text)
    if match is None:
        return None
    tiles, grid = (tuple(map(int, match[key].split(","))) for key in ("tiles", "grid"))
    order = match["order"]
    taken = tuple(map(int, order.split(","))) if order else tuple(range(len(grid)))
    whole = 0 < math.prod(tiles) == math.prod(grid) and sorted(taken) == list(range(len(grid)))
    return _Tiles(tiles, grid, taken, match["last"] is not None) if whole else None


def _mesh_of(tiled: Sequence[_Tiles]) -> MeshAxes | None:
    """The coarsest mesh whose whole axes all shardings are made of; None where there is none."""
    counts = {math.prod(t.grid) for t in tiled}
    if len(counts) != 1:
        return None
    cuts = {1, *counts}
    for tiles in tiled:
        found = _cuts(tiles)
        if found is None:
            return None
        cuts |= found
    ordered = sorted(cuts)
    if any(b % a for a, b in itertools.pairwise(ordered)):
        return None
    sizes = [b // a for a, b in itertools.pairwise(ordered)]
    return tuple((f"axis_{i}", size) for i, size in enumerate(reversed(sizes)))


def _runs(tiles: _Tiles) -> list[list[tuple[int, int]]] | None:
    """For each tile axis the runs of device numbers that it takes, as (stride, count)."""
    strides = [math.prod(tiles.grid[i + 1 :]) for i in range(len(tiles.grid))]
    left = [(strides[i], tiles.grid[i]) for i in tiles.order]
    runs: list[list[tuple[int, int]]] = []
    for parts in tiles.tiles:
        mine: list[tuple[int, int]] = []
        while parts > 1:
            stride, count = left.pop(0)
            taken = math.gcd(parts, count)
            if count == 1:
                continue
            if taken == 1 or taken not in (parts, count):
                return None
            # The slow part of the axis goes first.
            mine.append((stride * (count // taken), taken))
            parts //= taken
            if count > taken:
                left.insert(0, (stride, count // taken))
        runs.append(mine)
    return runs


def _cuts(tiles: _Tiles) -> set[int] | None:
    """Strides at which axes of the mesh have to end."""
    runs = _runs(tiles)
    if runs is None:
        return None
    return {n for mine in runs for stride, count in mine for n in (stride, stride * count)}


def _placement(tiles: _Tiles, axes: MeshAxes) -> Placement | None:
    """The mesh axes that each axis of the array is divided over."""
    runs = _runs(tiles)
    if runs is None or axes_size(axes) != math.prod(tiles.grid):
        return None
    placed: list[tuple[str, ...]] = []
    for mine in runs[: len(runs) - 1 if tiles.last else len(runs)]:
        names: list[str] = []
        for stride, count in mine:
            inside = axes_size(axes)
            for name, size in axes:
                high, inside = inside, inside // size
                if inside >= stride and high <= stride * count:
                    names.append(name)
        placed.append(tuple(names))
    return tuple(placed)
