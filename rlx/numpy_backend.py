"""The device ``interpret``: runs every op's NumPy meaning; slow and exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from rlx.backend import AbstractBackend, AbstractExecutable
from rlx.dtypes import as_dtype
from rlx.errors import RunError
from rlx.host_values import cast_array, python_array
from rlx.ir.graph import Node
from rlx.ir.interpret import run
from rlx.ir.plan import Implementation, Lir, Refusals
from rlx.options.compile import CompileOptions
from rlx.signature import Signature
from rlx.types import TensorType


def create(device: str) -> AbstractBackend:
    """The backend for ``interpret``."""
    del device
    return NumpyBackend()


@final
class NumpyBackend(AbstractBackend):
    """Carries out every op by its meaning."""

    device = "interpret"
    platform = "numpy"

    def choose(self, node: Node, options: CompileOptions) -> Implementation | Refusals:
        return Implementation("rule", node.op.op_name, node.op.evaluate)

    def compile(
        self, lir: Lir, signature: Signature, options: CompileOptions
    ) -> AbstractExecutable:
        return NumpyExecutable(lir, options)

    def to_device(self, value: Any, type_: TensorType) -> Any:
        copied = np.array(value, copy=True)
        copied.flags.writeable = False  # a result may be a view of it
        return copied

    def from_device(self, value: Any) -> Any:
        return np.asarray(value)


@final
class NumpyExecutable(AbstractExecutable):
    """A graph and its bound params."""

    def __init__(self, lir: Lir, options: CompileOptions) -> None:
        """Hold the graph."""
        self._lir = lir
        self._cast = options.cast_inputs
        self._params: dict[str, Any] = {}
        self.phases = {}
        self.fast_call = self._run

    def caller(self, signature: Signature) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return signature.rebuild(self._run(*signature.leaves(args, kwargs)))

        return call

    def bind(self, params: Mapping[str, Any]) -> None:
        self._params = {**self._params, **params}

    def stablehlo(self) -> str:
        raise RunError(
            "stablehlo: the device 'interpret' compiles nothing. Use rlx_xla.stablehlo(graph)."
        )

    def cost(self) -> dict[str, float]:
        return {}

    def memory(self) -> dict[str, int]:
        return {}

    def _run(self, *inputs: Any) -> list[Any]:
        graph = self._lir.graph
        if len(inputs) != len(graph.inputs):
            raise RunError(f"run: required {len(graph.inputs)} inputs; got {len(inputs)}.")
        bound = self._params  # one binding for the whole call
        missing = [v for v in graph.params if v.name not in bound]
        if missing:
            listing = ", ".join(f"{v.name!r}: {v.type}" for v in missing)
            raise RunError(f"run: params are not set: {listing}. Use set_param or set_params.")
        arrays = [
            checked(v.name, x, v.type, cast=self._cast)
            for v, x in zip(graph.inputs, inputs, strict=True)
        ]
        return run(graph, [*arrays, *(bound[v.name] for v in graph.params)])


def checked(name: str, value: Any, type_: TensorType, *, cast: bool = False) -> Any:
    """An input as a NumPy array of a declared type; scalars adopt the dtype.

    Raises:
        RunError: another dtype (unless ``cast``) or shape.
    """
    wanted = type_.dtype.numpy
    if isinstance(value, bool | int | float | complex):
        value = python_array(f"run: input {name!r}", value, type_.dtype)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise RunError(
            f"run: input {name!r} is required to be {type_}; got lists of different lengths."
        ) from error
    if array.dtype != wanted and cast:
        array = cast_array(array, type_.dtype)
    if array.dtype != wanted or tuple(array.shape) != type_.shape:
        found = f"{array.dtype}{list(array.shape)}"
        if array.dtype.isnative and array.dtype.kind in "biufcV" and array.dtype.names is None:
            found = TensorType(as_dtype(array.dtype), tuple(int(n) for n in array.shape))
        raise RunError(
            f"run: input {name!r} is required to be {type_}; got {found}. Convert or reshape it; "
            "CompileOptions(cast_inputs=True) converts dtypes."
        )
    return array
