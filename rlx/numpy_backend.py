"""The device ``interpret``: runs every op's NumPy meaning; slow and exact."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from rlx.backend import AbstractBackend, AbstractExecutable
from rlx.dtypes import as_dtype
from rlx.errors import DeviceError, RunError
from rlx.host_values import cast_array, python_array, refuse_masked
from rlx.ir.graph import Node
from rlx.ir.interpret import run
from rlx.ir.op import Op
from rlx.ir.plan import Implementation, Lir, Refusal, Refusals
from rlx.ops.external import External
from rlx.options.compile import CompileOptions
from rlx.signature import Signature
from rlx.types import TensorType


def create(device: str) -> AbstractBackend:
    """The backend for ``interpret``.

    Raises:
        DeviceError: the name has an index; there is one such device.
    """
    if device not in ("interpret", "interpret:0"):
        raise DeviceError(
            f"device {device!r}: index must be below 1, the number of interpret devices; got "
            f"{device.partition(':')[2]}. Use 'interpret'."
        )
    return NumpyBackend()


@final
class NumpyBackend(AbstractBackend):
    """Carries out every op by its meaning."""

    device = "interpret"
    platform = "numpy"

    def claims(self, op: type[Op]) -> bool:
        return True

    def has_kernels(self, op: type[Op]) -> bool:
        return False

    def choose(self, node: Node, options: CompileOptions) -> Implementation | Refusals:
        op = node.op
        if isinstance(op, External) and (op.live is None or op.live.evaluate is None):
            reason = f"the opaque node {op.name!r} has no NumPy meaning: only its text is left"
            return Refusals((Refusal("interpret", reason),))
        return Implementation("rule", op.op_name, op.evaluate)

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

    def is_ready(self, value: Any) -> bool:
        return True


@final
class NumpyExecutable(AbstractExecutable):
    """A graph, its bound params and its resident inputs."""

    def __init__(self, lir: Lir, options: CompileOptions) -> None:
        """Hold the graph."""
        self._lir = lir
        self._cast = options.cast_inputs
        names = {v.name for v in lir.graph.inputs}
        self._fed = {name: n for name, n in options.resident.items() if name in names}
        self._inputs = [v for v in lir.graph.inputs if v.name not in self._fed]
        self.phases = {}
        self._start()

    def _start(self) -> None:
        self._params: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        self._busy = threading.Lock()
        self.fast_call = self._run_resident if self._fed else self._run

    def caller(self, signature: Signature) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return signature.rebuild(self.fast_call(*signature.leaves(args, kwargs)))

        return call

    def bind(self, params: Mapping[str, Any]) -> None:
        kept = {name: value for name, value in params.items() if name in self._fed}
        if kept:
            if not self._busy.acquire(blocking=False):
                raise self._in_use()
            try:
                self._kept = {**self._kept, **kept}
            finally:
                self._busy.release()
        self._params = {**self._params, **{n: v for n, v in params.items() if n not in kept}}

    def resident(self) -> dict[str, Any]:
        return dict(self._kept)

    def clone(self) -> AbstractExecutable:
        twin = copy.copy(self)
        twin._start()
        return twin

    def stablehlo(self, *, kernels: bool = False) -> str:
        raise RunError(
            "stablehlo: the device 'interpret' compiles nothing. Use rlx_xla.stablehlo(graph)."
        )

    def cost(self) -> dict[str, float]:
        return {}

    def memory(self) -> dict[str, int]:
        return {}

    def _run(self, *inputs: Any) -> list[Any]:
        graph = self._lir.graph
        if len(inputs) != len(self._inputs):
            raise RunError(f"run: required {len(self._inputs)} inputs; got {len(inputs)}.")
        bound = self._params  # one binding for the whole call
        missing = [v for v in graph.params if v.name not in bound]
        if missing:
            listing = ", ".join(f"{v.name!r}: {v.type}" for v in missing)
            raise RunError(f"run: params are not set: {listing}. Use set_param or set_params.")
        arrays = [
            checked(v.name, x, v.type, cast=self._cast)
            for v, x in zip(self._inputs, inputs, strict=True)
        ]
        fed = iter(arrays)
        leaves = [self._kept[v.name] if v.name in self._fed else next(fed) for v in graph.inputs]
        return run(graph, [*leaves, *(bound[v.name] for v in graph.params)])

    def _run_resident(self, *inputs: Any) -> list[Any]:
        if not self._busy.acquire(blocking=False):
            raise self._in_use()
        try:
            missing = [name for name in self._fed if name not in self._kept]
            if missing:
                raise RunError(
                    f"run: resident inputs have no value yet: {', '.join(map(repr, missing))}. "
                    "Use set_kept, or pass them to the first run."
                )
            outputs = self._run(*inputs)
            self._kept = {name: outputs[index] for name, index in self._fed.items()}
            return outputs
        finally:
            self._busy.release()

    def _in_use(self) -> RunError:
        names = ", ".join(map(repr, self._fed))
        return RunError(
            f"call of {self._lir.graph.name}: a resident input belongs to one call at a time; "
            f"{names} is in use by a concurrent call. Give each thread its own clone."
        )


def checked(name: str, value: Any, type_: TensorType, *, cast: bool = False) -> Any:
    """An input as a NumPy array of a declared type; scalars adopt the dtype.

    Raises:
        RunError: another dtype (unless ``cast``) or shape.
    """
    wanted = type_.dtype.numpy
    refuse_masked(f"run: input {name!r}", value)
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
