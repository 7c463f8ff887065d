"""Calls of a program that was compiled for padded sizes: pad on the host, run, cut."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx import dims
from rlx.backend import AbstractBackend, AbstractExecutable
from rlx.ir.graph import Graph, Value
from rlx.param_values import input_value
from rlx.signature import Signature, flat_signature
from rlx.types import Dim, Shape, TensorType

if TYPE_CHECKING:
    from rlx.passes.pad_dims import PaddedGraph


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
    ) -> None:
        """Prepare calls.

        Args:
            backend: where it runs.
            graph: the symbolic graph.
            signature: of the caller.
            padded: the graph that was compiled.
            sizes: symbol → padded size.
            executable: the program.
        """
        self._backend = backend
        self._inputs: list[tuple[Value, tuple[int, ...]] | None] = [
            None if v.type.is_static else (v, tuple(dims.evaluate(d, sizes) for d in v.type.shape))
            for v in graph.inputs
        ]
        self._outputs = [
            None if v.type.is_static else (v.type.shape, factors, v.type.dtype)
            for v, factors in zip(graph.outputs, padded.outputs, strict=True)
        ]
        self._symbols = padded.symbols
        self._sizes = dict(sizes)
        self._graph, self._signature = padded.graph, signature
        self._call = _flat_caller(executable, padded.graph, signature)

    def on(self, executable: AbstractExecutable) -> PaddedCall:
        """The same for a twin of the program."""
        twin = copy.copy(self)
        twin._call = _flat_caller(executable, self._graph, self._signature)
        return twin

    def __call__(self, arrays: Sequence[Any], binding: Mapping[str, int]) -> list[Any]:
        """Run with actual sizes.

        Args:
            arrays: one value per input of the symbolic graph.
            binding: symbol → actual size.
        """
        values = [
            x if pair is None else self._padded(x, *pair)
            for x, pair in zip(arrays, self._inputs, strict=True)
        ]
        extents = [np.asarray(binding[name], np.int32) for name in self._symbols]
        results = self._call(*values, *extents)
        return [
            y if cut is None else self._cut(y, *cut, binding)
            for y, cut in zip(results, self._outputs, strict=True)
        ]

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
        else:
            host = self._backend.from_device(value)
        made = np.zeros(sizes, host.dtype)
        made[tuple(slice(0, n) for n in host.shape)] = host
        return made

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
        host: Any = self._backend.from_device(value)
        flat = [f for axis in factors for f in axis]
        split = [dims.evaluate(f, self._sizes) for f in flat]
        kept = tuple(slice(0, dims.evaluate(f, binding)) for f in flat)
        part = np.ascontiguousarray(host.reshape(split)[kept]).reshape(actual)
        part.flags.writeable = False
        return self._backend.to_device(part, TensorType(dtype, actual))


def _flat_caller(
    executable: AbstractExecutable, graph: Graph, signature: Signature
) -> Callable[..., list[Any]]:
    """The program as a function of one value per input that returns a list, keys as keys."""
    flat = dataclasses.replace(
        flat_signature(graph),
        single=False,
        key_inputs=signature.key_inputs,
        key_outputs=signature.key_outputs,
    )
    return executable.caller(flat)
