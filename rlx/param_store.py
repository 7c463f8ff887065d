"""The params of one compiled graph: their values on the device, checked and converted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast, final

import numpy as np

from rlx import dims
from rlx.backend import AbstractBackend
from rlx.deferred import Specialization
from rlx.dtypes import DType
from rlx.errors import RunError, did_you_mean
from rlx.ir.graph import Graph, Value
from rlx.param_values import from_bytes, listing, param_value, with_bytes
from rlx.sharding import mesh_of, replicated, sharding_of
from rlx.types import Dim, TensorType


@final
class ParamStore:
    """Values by name; whoever runs programs hears of every change.

    Attributes:
        values: device arrays by name; replaced, never changed.
        fixed: names whose values the compile fixed.
    """

    def __init__(
        self,
        backend: AbstractBackend,
        graph: Graph,
        fixed: Mapping[str, Any],
        publish: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """Start with the fixed values alone.

        Args:
            backend: where arrays go.
            graph: what declares the params.
            fixed: values that cannot be set again.
            publish: called with the device arrays that are new, under the store's lock.
        """
        self.values: dict[str, Any] = {}
        self.fixed = frozenset(fixed)
        self._backend = backend
        self._graph = graph
        self._params = graph.params
        self._declared = {v.name: v.type for v in graph.params}
        mesh = mesh_of(graph)
        self._spread = (
            {}
            if mesh is None
            else {v.name: sharding_of(v) or replicated(mesh, v.type.rank) for v in graph.params}
        )
        self._publish = publish
        self._lock = threading.Lock()
        self.upload(fixed)

    def set(self, values: Mapping[str, Any]) -> None:
        """Set some values, all at once.

        Raises:
            RunError: names, types or shapes are wrong; all problems, and nothing is changed.
        """
        problems: list[str] = []
        placed: dict[str, Any] = {}
        for name, value in values.items():
            problem = self._problem(name)
            if problem:
                problems.append(problem)
                continue
            try:
                what = f"set_param: param {name!r}"
                declared = self._declared[name]
                placed[name] = param_value(what, value, declared, lambda name=name: self._how(name))
            except RunError as error:
                problems.append(str(error))
        if problems:
            raise RunError("\n".join(problems))
        self.upload(placed)

    def set_typed(self, name: str, data: bytes, dtype: DType | str) -> None:
        """Set one value from raw bytes.

        Raises:
            RunError: the number of bytes does not fit, or as ``set``.
        """
        problem = self._problem(name)
        if problem:
            raise RunError(problem)
        where = f"set_param_typed: param {name!r}"
        try:
            value = from_bytes(where, data, dtype, self._declared[name])
        except RunError as error:
            how = self._how(name)
            raise RunError(f"{error} {how}") if how else error from None
        self.set({name: value})

    def set_range(self, name: str, offset: int, data: bytes) -> None:
        """Replace some bytes of a value.

        Raises:
            RunError: there is no value, or the range is not inside it.
        """
        problem = self._problem(name)
        if not problem and name not in self.values:
            problem = (
                f"set_param_range: param {name!r} is required to have a value that is changed; "
                "it has none. Set it first, to zeros if need be."
            )
        if problem:
            raise RunError(problem)
        with self._lock:
            old = np.asarray(self._backend.from_device(self.values[name]))
            self._put({name: with_bytes(name, old, offset, data)})

    def upload(self, values: Mapping[str, Any]) -> None:
        """Put checked values on the device and publish them."""
        if values:
            with self._lock:  # of two callers the later one wins everywhere
                self._put(values)

    def missing(self, needed: Collection[str] | None) -> list[Value]:
        """Params without a value, among those that are needed; None needs all."""
        return [
            v
            for v in self._params
            if v.name not in self.values and (needed is None or v.name in needed)
        ]

    def bind_to(self, program: Specialization, values: Mapping[str, Any]) -> None:
        """Bind values to the params that a program takes.

        One whose sizes belong to another program is left out: the sizes of the params' values
        choose the program of a call.
        """
        taken: dict[str, Any] = {}
        for name, value in values.items():
            if name not in program.params:
                continue
            declared = self._declared[name]
            if declared.is_static:
                taken[name] = value
                continue
            wanted = declared.bind(program.binding)
            if tuple(value.shape) == wanted.shape:
                taken[name] = value
            elif program.is_padded and _is_within(value.shape, wanted.shape):
                taken[name] = self._widened(value, wanted)
        if taken:
            program.executable.bind(taken)

    def _widened(self, value: Any, type_: TensorType) -> Any:
        """A value with zeros behind it."""
        host: Any = self._backend.from_device(value)
        made = np.zeros([dims.evaluate(d, {}) for d in type_.shape], host.dtype)
        made[tuple(slice(0, n) for n in host.shape)] = host
        return self._backend.to_device(made, type_)

    def share(self, other: ParamStore) -> None:
        """Take over the device arrays of another store of the same graph."""
        self.values = dict(other.values)

    def _put(self, values: Mapping[str, Any]) -> None:
        on_device = {n: self._placed(n, v) for n, v in values.items()}
        self.values = {**self.values, **on_device}
        self._publish(on_device)

    def _placed(self, name: str, value: Any) -> Any:
        """A value on the device, or spread over the devices of the graph's mesh."""
        type_, sharding = self._declared[name], self._spread.get(name)
        if sharding is None or not type_.is_static:
            return self._backend.to_device(value, type_)
        return self._backend.spread(value, type_, sharding)

    def _how(self, name: str) -> str:
        """How a packed weight's value is given; empty for other params."""
        from rlx.packed_params import packed_params  # loads op families

        found = packed_params(self._graph).get(name)
        return "" if found is None else found.advice()

    def _how_whole(self, name: str) -> str:
        """The same for a weight whose parts are params."""
        parts = [param for param in self._declared if param.rpartition("/")[0] == name]
        how = self._how(parts[0]) if parts else ""
        return f" {name!r} became {', '.join(map(repr, parts))}. {how}" if how else ""

    def _problem(self, name: str) -> str:
        """Why a param cannot be set, if so."""
        if not isinstance(cast("object", name), str):
            return f"set_param: the name of a param is required; got {name!r}."
        if name not in self._declared:
            return (
                f"set_param: unknown param {name!r}; params are {listing(self._params)}."
                f"{self._how_whole(name) or did_you_mean(name, self._declared)}"
            )
        if name in self.fixed:
            return (
                f"set_param: param {name!r} is required to be free; "
                "CompileOptions.param_bindings fixed its value. Compile without it."
            )
        return ""


def _is_within(sizes: Sequence[int], limits: Sequence[Dim]) -> bool:
    return all(isinstance(m, int) and n <= m for n, m in zip(sizes, limits, strict=True))
