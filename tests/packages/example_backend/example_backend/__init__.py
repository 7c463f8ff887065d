"""A backend of a package of its own: found as device ``example``, it runs on NumPy.

It claims every op but complex numbers, and sorts along the last axis only: a claim is a predicate
on nodes.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from rlx.backend import AbstractBackend, AbstractExecutable
from rlx.errors import DeviceError
from rlx.ir.graph import Node
from rlx.ir.op import Op
from rlx.ir.plan import Implementation, Lir, Refusal, Refusals
from rlx.numpy_backend import NumpyExecutable
from rlx.options.compile import CompileOptions
from rlx.signature import Signature
from rlx.types import TensorType

DEVICES = 2


def create(device: str) -> AbstractBackend:
    """The backend of ``example``, ``example:0`` or ``example:1``."""
    index = int(device.partition(":")[2] or 0)
    if index >= DEVICES:
        raise DeviceError(f"device {device!r}: index must be below {DEVICES}; got {index}.")
    return ExampleBackend(device)


@final
class ExampleBackend(AbstractBackend):
    """One of two devices."""

    platform = "example"

    def __init__(self, device: str) -> None:
        self.device = device

    def claims(self, op: type[Op]) -> bool:
        return op.op_name != "complex"

    def choose(self, node: Node, options: CompileOptions) -> Implementation | Refusals:
        if any(t.dtype.is_complex for t in node.types):
            return Refusals((Refusal("example", "it has no complex numbers"),))
        if node.op.op_name == "sort" and node.op.attributes()["axis"] != node.types[0].rank - 1:
            return Refusals((Refusal("example", "only the last axis is sorted"),))
        return Implementation("rule", node.op.op_name, node.op.evaluate)

    def compile(
        self, lir: Lir, signature: Signature, options: CompileOptions
    ) -> AbstractExecutable:
        return NumpyExecutable(lir, options)

    def to_device(self, value: Any, type_: TensorType) -> Any:
        return np.array(value, copy=True)

    def from_device(self, value: Any) -> Any:
        return np.asarray(value)

    def is_ready(self, value: Any) -> bool:
        return True
