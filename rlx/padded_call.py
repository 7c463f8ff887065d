"""Calls of a program that was compiled for padded sizes: pad on the host, run, cut."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx import dims
from rlx.backend import AbstractBackend, AbstractExecutable
from rlx.dtypes import DType
from rlx.ir.graph import Graph, Value
from rlx.param_values import input_value
from rlx.signature import Signature, flat_signature
from rlx.types import Dim, Shape, TensorType

if TYPE_CHECKING:
    from rlx.passes.pad_dims import PaddedGraph


_EXTENT = TensorType(DType.I32, ())
_EXTENTS = 4096
"""Actual sizes that are kept on the device, four bytes each."""


@final
class PaddedCall:
    """Runs a padded program on inputs of smaller sizes; nothing is compiled for them.

    Inputs are copied into arrays of the padded sizes, and padding is cut off the outputs, on the
    host: on the CPU these are a copy and a view.
    """

    def __init__(
        self,
        backend: AbstractBackend,
        graph: Graph,
        signature: Signature,
        padded: PaddedGraph,
        sizes: Mapping[str, int],
        executable: AbstractExecutable,
        resident: Collection[str] = (),
    ) -> None:
        """Prepare calls.

        Args:
            backend: where it runs.
            graph: the symbolic graph.
            signature: of the caller.
            padded: the graph that was compiled.
            sizes: symbol → padded size.
            executable: the program.
            resident: names of inputs that stay on the device, and are not passed.
        """
        self._backend = backend
        pairs = {
            v.name: None
            if v.type.is_static
            else (v, tuple(dims.evaluate(d, sizes) for d in v.type.shape))
            for v in graph.inputs
        }
        self._resident = {n: pair for n, pair in pairs.items() if n in resident}
        self._inputs = [pair for name, pair in pairs.items() if name not in resident]
        self._outputs = [
            None if v.type.is_static else (v.type.shape, factors, v.type.dtype)
            for v, factors in zip(graph.outputs, padded.outputs, strict=True)
        ]
        self._symbols = padded.symbols
        self._extents: dict[int, Any] = {}
        self._sizes = dict(sizes)
        flat = dataclasses.replace(
            flat_signature(padded.graph),
            single=False,
            key_inputs=signature.key_inputs,
            key_outputs=signature.key_outputs,
        )
        self._signature = flat.without(resident)
        self._call = executable.caller(self._signature)

    def on(self, executable: AbstractExecutable) -> PaddedCall:
        """The same for a twin of the program."""
        twin = copy.copy(self)
        twin._call = executable.caller(self._signature)
        return twin

    def __call__(self, arrays: Sequence[Any], binding: Mapping[str, int]) -> list[Any]:
        """Run with actual sizes.

        Args:
            arrays: one value per input of the symbolic graph that is passed.
            binding: symbol → actual size.
        """
        values = [
            x if pair is None else self._padded(x, *pair)
            for x, pair in zip(arrays, self._inputs, strict=True)
        ]
        extents = [self._extent(binding[name]) for name in self._symbols]
        results = self._call(*values, *extents)
        return [
            y if cut is None else self._cut(y, *cut, binding)
            for y, cut in zip(results, self._outputs, strict=True)
        ]

    def widened(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of resident inputs with padding, by name."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            pair = self._resident[name]
            found[name] = value if pair is None else self._padded(value, *pair)
        return found

    def narrowed(self, name: str, value: Any, shape: Sequence[int]) -> Any:
        """The value of a resident input without its padding."""
        pair = self._resident[name]
        if pair is None or tuple(value.shape) == tuple(shape):
            return value
        host: Any = self._backend.from_device(value)
        part = np.array(host[tuple(slice(0, n) for n in shape)], copy=True)
        return self._backend.to_device(part, TensorType(pair[0].type.dtype, tuple(shape)))

    def counts(self, binding: Mapping[str, int]) -> tuple[int, int]:
        """Elements of the padded inputs: actual ones, and all."""
        pairs = [pair for pair in self._inputs if pair is not None]
        actual = [np.prod([dims.evaluate(d, binding) for d in v.type.shape]) for v, _ in pairs]
        return int(sum(actual)), int(sum(np.prod(sizes) for _, sizes in pairs))

    def _padded(self, value: Any, leaf: Value, sizes: tuple[int, ...]) -> Any:
        if isinstance(value, np.ndarray | list | tuple | int | float | complex):
            host: Any = input_value(leaf.name, value, leaf.type)
        elif tuple(value.shape) == sizes:
            return value
        elif self._backend.is_traced(value):
            return self._backend.resized(value, value.shape, sizes, sizes)
        else:
            host = self._backend.from_device(value)
        made = np.zeros(sizes, host.dtype)
        made[tuple(slice(0, n) for n in host.shape)] = host
        if isinstance(value, np.ndarray | list | tuple | int | float | complex):
            return made
        made.flags.writeable = False
        return self._backend.to_device(made, TensorType(leaf.type.dtype, sizes))

    def _extent(self, size: int) -> Any:
        """An actual size, on the device."""
        found = self._extents.get(size)
        if found is None:
            if len(self._extents) >= _EXTENTS:
                self._extents.clear()
            made = np.asarray(size, np.int32)
            found = self._extents[size] = self._backend.to_device(made, _EXTENT)
        return found

    def _cut(
        self,
        value: Any,
        shape: Shape,
        factors: Sequence[Sequence[Dim]],
        dtype: Any,
        binding: Mapping[str, int],
    ) -> Any:
        actual = tuple(dims.evaluate(d, binding) for d in shape)
        if tuple(value.shape) == actual:
            return value
        flat = [f for axis in factors for f in axis]
        split = [dims.evaluate(f, self._sizes) for f in flat]
        kept = [dims.evaluate(f, binding) for f in flat]
        if self._backend.is_traced(value):
            return self._backend.resized(value, split, kept, actual)
        host: Any = self._backend.from_device(value)
        places = tuple(slice(0, size) for size in kept)
        part = np.ascontiguousarray(host.reshape(split)[places]).reshape(actual)
        part.flags.writeable = False
        return self._backend.part_to_device(part, value, TensorType(dtype, actual))
