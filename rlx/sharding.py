"""Meshes of devices, and how the arrays of a graph are spread over them.

A sharding stands on inputs, params and ``sharding_constraint`` nodes, never in a type: what a
graph computes does not depend on it. It names, for each axis of an array, the axes of a mesh over
which that axis is divided::

    mesh = Mesh({"data": 4, "model": 2})
    graph = graph.with_shardings({"x": P("data"), "w": P(None, "model")}, mesh=mesh)
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast, final

from rlx.errors import ShapeError, did_you_mean

if TYPE_CHECKING:
    from rlx.ir.graph import Graph, Value

MeshAxes: TypeAlias = "tuple[tuple[str, int], ...]"
"""Names and sizes of a mesh's axes, as attributes hold them."""

Placement: TypeAlias = "tuple[tuple[str, ...], ...]"
"""For each axis of an array the mesh axes that divide it, as attributes hold them."""

OPEN = "?"
"""Stands last among the mesh axes of a dim that the compiler may divide further."""


@final
class Mesh:
    """Devices in a grid whose axes have names.

    Attributes:
        axes: (name, size) of each axis, the slowest first.
    """

    __slots__ = ("axes",)

    axes: MeshAxes

    def __init__(self, axes: Mapping[str, int] | Iterable[tuple[str, int]]) -> None:
        """Name the axes: ``Mesh({"data": 4, "model": 2})``.

        Raises:
            ShapeError: there is no axis, a name comes twice or is no name, or a size is no whole
                number ≥ 1.
        """
        found = _axes(axes)
        fault = mesh_fault(found)
        if fault:
            raise ShapeError(f"Mesh: {fault}")
        object.__setattr__(self, "axes", found)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a mesh never changes; {name!r} cannot be set.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(name for name, _ in self.axes)

    @property
    def shape(self) -> dict[str, int]:
        """Size of each axis by name."""
        return dict(self.axes)

    @property
    def size(self) -> int:
        """How many devices there are."""
        return axes_size(self.axes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self.axes == other.axes

    def __hash__(self) -> int:
        return hash(self.axes)

    def __reduce__(self) -> tuple[object, ...]:
        return Mesh, (self.axes,)

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self.axes)})"


@final
class PartitionSpec:
    """For each axis of an array the mesh axes that divide it; axes left out at the end are whole.

    ``P("data", None, ("x", "y"))`` divides axis 0 over ``data`` and axis 2 over ``x`` and then
    ``y``. ``P.UNCONSTRAINED`` leaves an axis to the compiler (in constraints only).
    """

    __slots__ = ("entries",)

    UNCONSTRAINED = OPEN

    entries: tuple[Any, ...]

    def __init__(self, *entries: str | Sequence[str] | None) -> None:
        """Give one entry for each axis: None, a name, or several names."""
        object.__setattr__(self, "entries", entries)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a spec never changes; {name!r} cannot be set.")

    def __iter__(self) -> Any:
        return iter(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSpec) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self.entries))})"


P = PartitionSpec


@final
class Sharding:
    """A mesh, and for each axis of an array the axes of the mesh that divide it.

    Attributes:
        mesh: the devices.
        placement: one tuple of mesh axes for each axis of the array.
    """

    __slots__ = ("mesh", "placement")

    mesh: Mesh
    placement: Placement

    def __init__(self, mesh: Mesh, placement: Placement) -> None:
        """Hold both as they are; ops check them against their arrays."""
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "placement", placement)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a sharding never changes; {name!r} cannot be set.")

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        sizes = self.mesh.shape
        return all(sizes.get(name, 1) == 1 for names in self.placement for name in names)

    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of what one device holds of an array; the shape is divisible."""
        sizes = self.mesh.shape
        return tuple(
            size // axes_size((name, sizes[name]) for name in names if name != OPEN)
            for size, names in zip(shape, self.placement, strict=True)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sharding):
            return False
        return self.mesh == other.mesh and self.placement == other.placement

    def __hash__(self) -> int:
        return hash((self.mesh, self.placement))

    def __repr__(self) -> str:
        return f"{placement_text(self.placement)} over {self.mesh}"


def replicated(mesh: Mesh, rank: int) -> Sharding:
    """The sharding of an array that every device holds whole."""
    return Sharding(mesh, ((),) * rank)


def placement_of(where: str, spec: object, rank: int) -> Placement:
    """A spec as attributes hold it, with an entry for each axis.

    Args:
        where: what the spec is for, for messages.
        spec: a ``PartitionSpec``, JAX's, or any sequence of None, names and tuples of names.
        rank: axes of the array.

    Raises:
        ShapeError: the spec has more entries than the array has axes, or an entry is none.
    """
    if isinstance(spec, str) or not isinstance(spec, Iterable):
        raise ShapeError(
            f"{where}: a spec such as P('data', None) is required; got {spec!r}. Write P({spec!r})."
        )
    entries = list(cast("Iterable[object]", spec))
    if len(entries) > rank:
        raise ShapeError(
            f"{where}: a spec has at most an entry for each axis, here {rank}; got "
            f"{len(entries)}: {spec!r}. Leave entries out."
        )
    made: list[tuple[str, ...]] = []
    for entry in entries:
        if entry is None:
            made.append(())
        elif isinstance(entry, str):
            made.append((entry,))
        elif isinstance(entry, Iterable):
            names = tuple(cast("Iterable[object]", entry))
            if not all(isinstance(name, str) for name in names):
                raise _bad_entry(where, names)
            made.append(cast("tuple[str, ...]", names))
        elif repr(entry) == "UNCONSTRAINED":  # JAX's own
            made.append((OPEN,))
        else:
            raise _bad_entry(where, entry)
    return (*made, *[()] * (rank - len(made)))


def _bad_entry(where: str, entry: object) -> ShapeError:
    return ShapeError(
        f"{where}: an entry of a spec is required to be None, a name or several names; got "
        f"{entry!r}. Name axes of the mesh."
    )


def _axes(axes: Mapping[str, int] | Iterable[tuple[str, int]]) -> MeshAxes:
    """The axes that somebody named, their sizes read as whole numbers."""
    try:
        pairs = cast("Mapping[str, int]", axes).items() if isinstance(axes, Mapping) else axes
        return tuple((name, operator.index(size)) for name, size in pairs)
    except (TypeError, ValueError) as error:
        given = cast("object", axes)
        shape: object = getattr(given, "shape", None)
        found, advice = repr(given), "Name the axes."
        if isinstance(shape, Mapping):  # a mesh of JAX
            sizes = dict(cast("Mapping[str, int]", shape))
            found, advice = type(given).__name__, f"Pass {sizes}."
        raise ShapeError(
            "Mesh: names and whole sizes of axes are required, such as {'data': 4, 'model': 2}; "
            f"got {found}. {advice}"
        ) from error


def mesh_fault(axes: MeshAxes) -> str:
    """What is wrong with the axes of a mesh, or nothing."""
    names = [name for name, _ in axes]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    wrong = [f"{name!r}={size}" for name, size in axes if size < 1]
    if axes and not twice and not wrong and all(_is_name(name) for name in names):
        return ""
    what = f"{twice[0]!r} twice" if twice else ", ".join(wrong) or ", ".join(map(repr, names))
    return (
        "axes with names of their own and sizes ≥ 1 are required; got "
        f"{what or 'none'}. Name each axis once, with letters, digits and _."
    )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name) and all(c.isalnum() or c in "_." for c in name)


def axes_size(axes: Iterable[tuple[str, int]]) -> int:
    """The product of the sizes of mesh axes."""
    size = 1
    for _, count in axes:
        size *= count
    return size


def placement_text(placement: Placement) -> str:
    """A placement as a spec is written: ``P('data', None)``."""
    shown = [
        "None" if not names else repr(names[0]) if len(names) == 1 else repr(names)
        for names in placement
    ]
    return f"P({', '.join(shown)})"


def sharding_of(value: Value) -> Sharding | None:
    """The sharding that an input, a param or a constraint states; None for any other value."""
    op = value.node.op
    if op.op_name not in ("input", "param", "sharding_constraint"):
        return None
    found = op.attributes()
    axes: MeshAxes = found["mesh"]
    return Sharding(Mesh(axes), found["sharding"]) if axes else None


def meshes(graph: Graph) -> tuple[Mesh, ...]:
    """The distinct meshes that a graph and those inside of it name, in order."""
    found: dict[MeshAxes, None] = {}
    for inner in graph.all_graphs():
        for node in inner.nodes():
            if "mesh" in node.op.attribute_names:
                axes = node.op.attributes()["mesh"]
                if axes:
                    found[axes] = None
    return tuple(Mesh(axes) for axes in found)


def mesh_of(graph: Graph) -> Mesh | None:
    """The mesh that a graph runs on, or None for one device.

    Raises:
        ShapeError: the graph names meshes of different sizes, which no devices fit.
    """
    found = meshes(graph)
    if not found:
        return None
    other = next((mesh for mesh in found if mesh.size != found[0].size), None)
    if other is not None:
        raise ShapeError(
            f"graph {graph.name!r}: meshes of one number of devices are required; got {found[0]} "
            f"and {other}. Use one mesh."
        )
    return found[0]


def shardings(graph: Graph) -> dict[str, Sharding]:
    """The shardings of a graph's inputs and params by name; those without one are left out."""
    stated = {v.name: sharding_of(v) for v in (*graph.inputs, *graph.params)}
    return {name: sharding for name, sharding in stated.items() if sharding is not None}


def constrain(value: Value, spec: object, mesh: Mesh) -> Value:
    """The value, laid out over a mesh as a spec says.

    Raises:
        ShapeError: the spec does not fit the mesh or the value.
    """
    from rlx.ops.collective import ShardingConstraint

    placement = placement_of("constrain", spec, value.type.rank)
    made: Value = ShardingConstraint(mesh=mesh.axes, sharding=placement)(value)
    return made


def with_shardings(
    graph: Graph,
    specs: Mapping[str, object],
    *,
    mesh: Mesh | Mapping[str, int],
    outputs: Mapping[int, object] | Sequence[object] | None = None,
) -> Graph:
    """Return the graph with its inputs, params and outputs spread over a mesh.

    Args:
        graph: any graph.
        specs: name of an input or param → ``P("data", None)``; None takes a sharding away. Leaves
            that are not named stay as they are.
        mesh: the devices, or the sizes of the mesh's axes by name.
        outputs: number of an output → its spec, or one spec (or None) for each output.

    Raises:
        ShapeError: a name is no input or param, an output is not there, or a spec does not fit
            the mesh or the array.
    """
    from rlx.ir.graph import Graph as GraphClass
    from rlx.ir.graph import make_node
    from rlx.ir.questions import still_asking

    devices = mesh if isinstance(mesh, Mesh) else Mesh(mesh)
    leaves = {v.name: v for v in (*graph.inputs, *graph.params)}
    unknown = [name for name in specs if name not in leaves]
    if unknown:
        raise ShapeError(
            f"with_shardings: names of inputs and params are required "
            f"({', '.join(map(repr, leaves)) or 'none'}); got {unknown[0]!r}."
            f"{did_you_mean(unknown[0], leaves)}"
        )
    new: dict[Value, Value] = {}
    for name, spec in specs.items():
        leaf = leaves[name]
        changes: dict[str, object] = {"mesh": (), "sharding": ()}
        if spec is not None:
            placement = placement_of(f"with_shardings: {name!r}", spec, leaf.type.rank)
            changes = {"mesh": devices.axes, "sharding": placement}
        op = leaf.node.op.replace(**changes)
        if op != leaf.node.op:
            new[leaf] = make_node(op, (), leaf.node.location).results[0]
    changed = _with_leaves(graph, new)
    for index, spec in _by_index(graph, outputs).items():
        made = constrain(changed.outputs[index], spec, devices)
        results = (*changed.outputs[:index], made, *changed.outputs[index + 1 :])
        changed = GraphClass(
            changed.inputs, changed.params, results, changed.effects, name=changed.name
        )
    return still_asking(graph, changed)


def adopt(graph: Graph) -> Graph:
    """Give leaves without a sharding the one that every user of theirs asks for.

    A function whose caller said where its arguments lie (``jax.jit(in_shardings=…)``) has
    constraints right behind its inputs; on the inputs themselves they tell where to put them.
    """
    from rlx.ir.graph import make_node

    leaves = {v for v in (*graph.inputs, *graph.params) if sharding_of(v) is None}
    asked: dict[Value, set[Sharding | None]] = {}
    for node in graph.nodes():
        stated = sharding_of(node.results[0]) if node.inputs and node.results else None
        for value in node.inputs:
            if value in leaves:
                asked.setdefault(value, set()).add(stated)
    for value in graph.outputs:
        if value in leaves:
            asked.setdefault(value, set()).add(None)
    new: dict[Value, Value] = {}
    for leaf, wishes in asked.items():
        wish = next(iter(wishes)) if len(wishes) == 1 else None
        if wish is None or any(OPEN in names for names in wish.placement):
            continue
        op = leaf.node.op.replace(mesh=wish.mesh.axes, sharding=wish.placement)
        new[leaf] = make_node(op, (), leaf.node.location).results[0]
    return _with_leaves(graph, new)


def _with_leaves(graph: Graph, new: Mapping[Value, Value]) -> Graph:
    """The graph with some of its inputs and params replaced."""
    from rlx.ir.graph import Graph as GraphClass
    from rlx.ir.rewrite import splice

    if not new:
        return graph
    inputs, params = ([new.get(v, v) for v in vs] for vs in (graph.inputs, graph.params))
    made = splice(graph, [*inputs, *params])
    count = len(graph.outputs)
    return GraphClass(inputs, params, made[:count], made[count:], name=graph.name)


def _by_index(
    graph: Graph, outputs: Mapping[int, object] | Sequence[object] | None
) -> dict[int, object]:
    """The outputs that get a spec, by number."""
    count = len(graph.outputs)
    if outputs is None:
        return {}
    if isinstance(outputs, Mapping):
        found = dict(outputs)
    else:
        if isinstance(outputs, P | str) or not hasattr(outputs, "__len__"):
            raise ShapeError(
                "with_shardings: a spec or None is required for each output, in a list; got "
                f"{outputs!r}. Write outputs=[P('data')]."
            )
        if len(outputs) != count:
            raise ShapeError(
                f"with_shardings: a spec or None is required for each of {count} outputs; got "
                f"{len(outputs)}. Name some by number: outputs={{0: P(...)}}."
            )
        found = dict(enumerate(outputs))
    wrong = [index for index in found if index not in range(count)]
    if wrong:
        raise ShapeError(
            f"with_shardings: numbers of outputs below {count} are required; got {wrong[0]!r}."
        )
    return {index: spec for index, spec in found.items() if spec is not None}
