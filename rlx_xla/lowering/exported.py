"""One file of a graph for several platforms, and its portable StableHLO.

The file is one of ``jax.export``: JAX's own ``jax.export.deserialize(data).call`` runs it with the
inputs and then the params as flat arguments, and ``load_export`` reads it without trusting it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

from rlx.dtypes import DType
from rlx.errors import FormatError, LoweringError, RunError, did_you_mean
from rlx.ir.container import map_file, written_whole
from rlx.ir.graph import Graph, Value, inner_graphs
from rlx.ir.rewrite import splice
from rlx.ops.io import Param
from rlx.sharding import meshes
from rlx.types import TensorType
from rlx_xla._jax_compat import export as jax_export
from rlx_xla._jax_compat import mlir, placement, portable
from rlx_xla.lowering.registry import PLATFORMS, is_platform
from rlx_xla.lowering.text import stablehlo

if TYPE_CHECKING:
    from rlx.compiled import CompiledGraph

_VERSIONS = ("12 weeks", "4 weeks", "minimum", "current")


@final
@dataclass(frozen=True, kw_only=True)
class Export:
    """A graph for several platforms.

    Attributes:
        name: the graph's.
        platforms: where it runs.
        inputs, params: names and types of its arguments, inputs first.
        outputs: types of its results.
        serialized: the bytes of a ``jax.export`` file.
        version: of StableHLO that it is written in; every reader since then can read it.
        shared: whether all platforms have one program.
    """

    name: str
    platforms: tuple[str, ...]
    inputs: tuple[tuple[str, TensorType], ...]
    params: tuple[tuple[str, TensorType], ...]
    outputs: tuple[TensorType, ...]
    serialized: bytes = field(repr=False)
    version: str
    shared: bool

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all, with a checksum behind what JAX reads.

        Raises:
            FormatError: the system refuses.
        """
        with written_whole(path) as file:
            file.write(jax_export.sealed(self.serialized))


def portable_artifact(
    graph: Any, platform: str = "cpu", *, version: str | None = "12 weeks"
) -> bytes:
    """Return a graph as a portable StableHLO artifact, with the names of its arguments.

    Args:
        graph: a static Graph, or anything with a ``graph`` (a Traced).
        platform: ``cpu``, ``cuda``, ``rocm`` or ``tpu``.
        version: of StableHLO that it is written in: a number such as ``"0.9.0"``, ``"12 weeks"``
            or ``"4 weeks"`` for what readers of that age take, ``"minimum"``, or ``"current"``.

    Raises:
        LoweringError: a dim is symbolic, or an op has no lowering that is portable.
        CompileError: the graph has an op or a type that the version lacks.
    """
    module = mlir.parse_module(stablehlo(graph, platform, portable=True, locations=True))
    return mlir.to_portable(module, _number(version))


def export(
    graph: Any,
    platforms: Sequence[str] = ("cpu", "cuda", "rocm", "tpu"),
    *,
    version: str | None = "12 weeks",
) -> Export:
    """Return a graph as one file for several platforms.

    Only portable StableHLO goes into it: no kernels and no calls of libraries.

    Args:
        graph: a static Graph, or anything with a ``graph`` (a Traced); values of params are not
            in the file.
        platforms: some of ``cpu``, ``cuda``, ``rocm`` and ``tpu``, or one of them.
        version: of StableHLO, as in ``portable_artifact``.

    Raises:
        LoweringError: this is no graph, a platform is unknown, a dim is symbolic, or an op has
            no portable lowering.
        FormatError: the package ``flatbuffers`` is missing.
        CompileError: the graph has an op or a type that the version lacks.
    """
    inner: Graph = getattr(graph, "graph", graph)
    if not isinstance(inner, Graph):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LoweringError(
            f"export: a Graph or a traced function is required; got {type(graph).__name__}. "
            "Trace a JAX function with rlx_xla.trace(fn, ...)."
        )
    platforms = (platforms,) if isinstance(platforms, str) else platforms
    wanted = tuple(dict.fromkeys(platforms))
    known = [p for p in wanted if p in PLATFORMS and is_platform(p)]
    if not wanted or len(known) != len(wanted):
        raise LoweringError(
            f"export {inner.name}: platforms are some of {', '.join(PLATFORMS)}; got "
            f"{', '.join(map(repr, platforms)) or 'none'}."
        )
    if inner.effects:
        raise LoweringError(
            f"export {inner.name}: a graph without effects is required; it has "
            f"{', '.join(_effects(inner))}. Remove prints and callbacks."
        )
    leaves = (*inner.inputs, *inner.params)
    texts = {p: stablehlo(inner, p, portable=True) for p in wanted}
    shared = len(set(texts.values())) == 1
    located = [stablehlo(inner, p, portable=True, locations=True) for p in wanted]
    module = _joined(inner, located[:1] if shared else located, len(wanted) > 1)
    number = _number(version)
    exported = portable.exported_from(
        mlir.to_portable(module, number),
        inner.name,
        [_array_type(v.type) for v in leaves],
        [_array_type(v.type) for v in inner.outputs],
        wanted,
    )
    return Export(
        name=inner.name,
        platforms=wanted,
        inputs=tuple((v.name, v.type) for v in inner.inputs),
        params=tuple((v.name, v.type) for v in inner.params),
        outputs=tuple(v.type for v in inner.outputs),
        serialized=jax_export.serialize_exported(exported),
        version=number or mlir.stablehlo_version(),
        shared=shared,
    )


_WANTED = "a file of Export.save or of jax.export"


def _read(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        FormatError: it cannot be read, or is larger than any export.
    """
    from rlx_xla.tracing.stablehlo.source import MAX_SOURCE

    mapped = map_file("load_export", path)
    if len(mapped) > MAX_SOURCE:
        raise FormatError(
            f"load_export [file]: {_WANTED} of at most {MAX_SOURCE:,} bytes is required; "
            f"{path!r} has {len(mapped):,}. Name another file.",
            label="file",
        )
    return mapped[:]


def load_export(
    source: str | Path | bytes | Export,
    device: str = "cpu",
    *,
    params: Mapping[str, Any] | None = None,
) -> CompiledGraph:
    """Compile what ``export`` wrote for a device at hand; nothing of the file is trusted.

    A program for more devices than there are becomes one for a single device, with a warning.

    Args:
        source: the file's path, its bytes, or what ``export`` returned.
        device: name of the device.
        params: values of arguments that are bound once, by name; the others are inputs.

    Raises:
        FormatError: this is no path, the file is missing or damaged, or is not for the device's
            platform.
        TraceError: the file holds what has no form in RLX.
        DeviceError: there is no such device.
        RunError: there is no argument of a param's name.
    """
    from rlx.session import Session
    from rlx_xla.runtime.client import device_name, find_device
    from rlx_xla.tracing.stablehlo import from_stablehlo

    if not isinstance(cast("object", source), str | Path | bytes | Export):
        raise FormatError(f"load_export: a path is required; got {type(source).__name__}.")
    what = "what was given"
    if isinstance(source, Export):
        data = source.serialized
    elif isinstance(source, bytes):
        data = source
    else:
        what, data = repr(os.fspath(source)), _read(os.fspath(source))
    session = Session(device)
    first = find_device(device)
    kind = device_name(first).partition(":")[0]
    platform = {"gpu": "cuda"}.get(kind, kind)
    reading = jax_export.Reading("load_export", _WANTED, what)
    _, made_for = jax_export.read_artifact(data, reading)
    if platform not in made_for:
        raise FormatError(
            f"load_export: a file for {platform!r} is required; it is for {', '.join(made_for)}. "
            f"Export again with platforms=[…, {platform!r}]."
        )
    graph = from_stablehlo(data)
    wanted = max((mesh.size for mesh in meshes(graph)), default=1)
    if wanted > len(placement.platform_devices(first, wanted)):
        graph = from_stablehlo(data, shardings=False)
    graph = _with_params(graph, params or {})
    compiled = session.compile(graph)
    if params:
        compiled.set_params(dict(params))
    return compiled


def _effects(graph: Graph) -> list[str]:
    """What has an effect, in order, with its line; those inside of branches and loops too."""
    found: dict[str, None] = {}
    for inner in graph.all_graphs():
        for node in inner.nodes():
            takes = any(value.type.dtype is DType.TOKEN for value in node.inputs)
            if not takes or inner_graphs(node.op):
                continue
            name = str(node.op.attributes().get("name") or node.op.op_name)
            found[f"{name} at {node.location}" if node.location else name] = None
    return list(found)


def _with_params(graph: Graph, params: Mapping[str, Any]) -> Graph:
    names = [v.name for v in graph.inputs]
    for name in params:
        if name not in names:
            raise RunError(
                f"load_export: params are some of {', '.join(names) or 'nothing'}; got {name!r}."
                f"{did_you_mean(name, names)}"
            )
    if not params:
        return graph
    leaves: list[Value] = [
        Param(name=v.name, dtype=v.type.dtype, shape=v.type.shape)() if v.name in params else v
        for v in graph.inputs
    ]
    return Graph(
        [v for v in leaves if v.name not in params],
        [v for v in leaves if v.name in params],
        splice(graph, leaves),
        name=graph.name,
    )


def _array_type(type_: TensorType) -> tuple[Any, tuple[int, ...]]:
    assert type_.dtype is not DType.TOKEN
    return type_.dtype.numpy, tuple(int(str(d)) for d in type_.shape)


def _number(version: str | None) -> str | None:
    """The number of a version by its age; a number stays as it is."""
    if version is None or version == "current":
        return None
    if version == "minimum":
        return mlir.minimum_stablehlo_version()
    if version in _VERSIONS:
        return portable.version_of_age(int(version.split()[0]))
    if version.replace(".", "").isdecimal():
        return version
    raise LoweringError(
        f"stablehlo: version is a number such as '0.9.0', or one of {', '.join(_VERSIONS)}; got "
        f"{version!r}."
    )


def _joined(graph: Graph, texts: Sequence[str], indexed: bool) -> mlir.ir.Module:
    """One module; where it is indexed its first argument chooses among the texts' functions."""
    if not indexed:
        return mlir.parse_module(texts[0])
    context = mlir.new_context()
    modules = [mlir.parse_module(text, context) for text in texts]
    return portable.choose_by_index(
        modules, [v.name for v in (*graph.inputs, *graph.params)], f"rlx_{len(texts)}_programs"
    )
