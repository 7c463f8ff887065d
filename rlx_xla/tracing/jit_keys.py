"""What ``rlx_xla.jit`` compiles for: what a program depends on in a call, and in words."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import jax
import numpy as np

from rlx.deferred import STORM
from rlx.dims.buckets import proposal
from rlx.dtypes import as_dtype
from rlx.errors import CompileStormWarning
from rlx.ir.graph import Graph, Value
from rlx_xla._jax_compat import jaxpr as jx

LeafKey: TypeAlias = tuple[Any, tuple[int, ...], bool]
"""dtype, shape, whether the type is weak."""

_SCALARS: dict[type, str] = {bool: "bool", int: "int", float: "float", complex: "complex"}
_NARROW = {
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}
"""What JAX makes of 64-bit host arrays while 64-bit types are off."""


@final
@dataclass(frozen=True)
class CallKey:
    """One call's dependencies; programs are kept by it.

    Attributes:
        tree: structure of the dynamic arguments.
        leaves: type of each leaf.
        static: static arguments, with their types.
        device: the device to run on; None for the default one.
        context: JAX's settings.
        paths: names of the leaves; they follow from the tree.
    """

    tree: Any
    leaves: tuple[LeafKey, ...]
    static: tuple[Any, ...]
    device: Any
    context: Any
    paths: Callable[[], tuple[str, ...]] = field(compare=False, repr=False)

    def difference(self, other: CallKey | None) -> str:
        """Say in words why this call needs another program than an earlier one."""
        if other is None:
            return "first call"
        found: list[str] = []
        if self.tree != other.tree:
            found.append(f"structure: {other.tree} → {self.tree}")
        else:
            names = self.paths()
            for name, new, old in zip(names, self.leaves, other.leaves, strict=True):
                found += _leaf_difference(name, new, old)
        if self.static != other.static:
            before = {name: repr(value) for name, _, value in other.static}
            after = {name: repr(value) for name, _, value in self.static}
            for name in sorted({*before, *after}, key=str):
                old, new = before.get(name, "not given"), after.get(name, "not given")
                if old != new:
                    found.append(f"static {name}: {old} → {new}")
        if self.device != other.device:
            found.append(f"device: {other.device or 'default'} → {self.device or 'default'}")
        if self.context != other.context:
            found.append("JAX settings changed")
        return "; ".join(found) or "the kept programs were cleared"


def _leaf_difference(name: str, new: LeafKey, old: LeafKey) -> list[str]:
    found: list[str] = []
    if new[0] != old[0]:
        found.append(f"dtype of {name}: {_label(old[0])} → {_label(new[0])}")
    if len(new[1]) != len(old[1]):
        found.append(f"rank of {name}: {len(old[1])} → {len(new[1])}")
    else:
        sizes = enumerate(zip(old[1], new[1], strict=True))
        found += [f"{name} axis {i}: {a} → {b}" for i, (a, b) in sizes if a != b]
    if new[2] != old[2]:
        found.append(f"{name}: {'weak' if old[2] else 'strong'} → {'weak' if new[2] else 'strong'}")
    return found


def _label(dtype: Any) -> str:
    return as_dtype(dtype).label if isinstance(dtype, np.dtype) else str(dtype)


@final
@dataclass
class JitSpecialization:
    """One compiled program of a jitted function.

    Attributes:
        reason: why it was compiled, in words.
        seconds: wall time of the trace and the compile, by phase.
        types: type of each leaf of the arguments, as text.
        device: where it runs.
        report: what the compile decided and cost.
        hits: calls that used it after the one that compiled it.
    """

    reason: str
    seconds: dict[str, float]
    types: tuple[str, ...]
    device: str
    report: Any = field(repr=False)
    hits: int = 0


@final
class Storm:
    """Counts compiles, and warns once when most calls need one because a size keeps changing."""

    def __init__(self, name: str) -> None:
        """Count for a function."""
        self._name = name
        self._sizes: dict[tuple[str, int], set[int]] = {}
        self._compiles = 0
        self._warned = False

    def compiled(self, key: CallKey, reason: str, hits: int) -> None:
        """Note a compile.

        Args:
            key: of the call.
            reason: why it was compiled.
            hits: calls that found a program, so far.
        """
        self._compiles += 1
        for name, (_, shape, _) in zip(key.paths(), key.leaves, strict=True):
            for axis, size in enumerate(shape):
                self._sizes.setdefault((name, axis), set()).add(size)
        if self._warned or self._compiles < STORM or hits >= self._compiles or not self._sizes:
            return
        name, axis = max(self._sizes, key=lambda place: len(self._sizes[place]))
        sizes = self._sizes[name, axis]
        if 2 * len(sizes) < self._compiles:
            return
        self._warned = True
        warnings.warn(
            f"jit of {self._name!r}: few compiles for many calls are expected; {self._compiles} "
            f"programs were compiled and {hits} calls found theirs. {name} axis {axis} had "
            f"{len(sizes)} sizes, {min(sizes)} to {max(sizes)}. Name that dim and round it up: "
            f"dims={{{name!r}: {_spec(key, name, axis)!r}}}, buckets={{'n': {proposal(sizes)}}}.",
            CompileStormWarning,
            stacklevel=4,
        )


def leaf_text(leaf: LeafKey) -> str:
    """The type of a leaf, for people."""
    return f"{_label(leaf[0])}[{', '.join(map(str, leaf[1]))}]"


def warn_unusable(graph: Graph, donated: Collection[str]) -> None:
    """Warn, as ``jax.jit`` does, of donated inputs whose memory no result can take over.

    Args:
        graph: what is compiled.
        donated: names of its donated inputs.
    """
    free = [v.type for v in graph.outputs]
    useless: list[Value] = []
    for value in graph.inputs:
        if value.name not in donated:
            continue
        if value.type in free:
            free.remove(value.type)
        else:
            useless.append(value)
    if useless:
        listed = ", ".join(f"{v.name}: {v.type}" for v in useless)
        results = ", ".join(map(str, (v.type for v in graph.outputs)))
        warnings.warn(
            f"Some donated buffers were not usable: {listed}. jit of {graph.name!r}: each is "
            f"required to have the type of a result of its own; the results are {results}. Leave "
            "out donate_argnums for them.",
            UserWarning,
            stacklevel=5,
        )


def _spec(key: CallKey, name: str, axis: int) -> str:
    """The type of a leaf with one size named ``n``."""
    dtype, shape, _ = key.leaves[key.paths().index(name)]
    sizes = ", ".join("n" if i == axis else str(size) for i, size in enumerate(shape))
    return f"{_label(dtype)}[{sizes}]"


def leaf_key(leaf: Any, wide: bool) -> LeafKey | None:
    """The type of a concrete leaf; None where JAX must say what is wrong with it, or trace it.

    Args:
        leaf: anything.
        wide: whether 64-bit types are on.
    """
    if isinstance(leaf, jax.Array):
        if isinstance(leaf, jx.Tracer):
            return None
        return leaf.dtype, leaf.shape, bool(getattr(leaf, "weak_type", False))
    if isinstance(leaf, np.ndarray | np.generic):
        dtype = leaf.dtype
        if dtype.hasobject or dtype.names or not dtype.isnative:
            return None
        return dtype if wide else _NARROW.get(dtype, dtype), leaf.shape, False
    kind = type(leaf)
    if kind in _SCALARS:
        return jax.dtypes.canonicalize_dtype(kind), (), True
    return None


def host_leaf(leaf: Any, key: LeafKey) -> Any:
    """A leaf as the program takes it: host arrays in the dtype that JAX would give them."""
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype != key[0]:
        return np.asarray(leaf).astype(key[0])
    return leaf


def device_of(leaves: Sequence[Any]) -> tuple[bool, Any]:
    """(Whether all arrays are whole on one device or free to move, the device they are tied to)."""
    found: Any = None
    for leaf in leaves:
        if not isinstance(leaf, jax.Array) or not leaf.committed:
            continue
        sharding = leaf.sharding
        if not isinstance(sharding, jax.sharding.SingleDeviceSharding):
            return False, None  # results lie over the same mesh, if only of one device
        (device,) = sharding.device_set
        if sharding.memory_kind not in (None, default_memory(device)):
            return False, None
        if found is not None and device != found:
            return False, None
        found = device
    return True, found


@functools.lru_cache(maxsize=1024)
def default_memory(device: Any) -> str:
    """The kind of memory that arrays on a device lie in if nothing else is said."""
    return device.default_memory().kind
