"""XLA flags that a program itself asks for, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rlx.ir.graph import Graph, Node, Value
from rlx.ops.arithmetic import Mul
from rlx.ops.convert import Convert
from rlx.ops.dot import DotGeneral
from rlx.options.compile import CompileOptions
from rlx.passes.specialize.scaled import asks_for_f32_sums, has_product_of_one_row

_NO_TRITON = "xla_gpu_enable_triton_gemm"


@final
@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        name: as XLA spells it.
        value: what it is set to.
        reason: why, as a clause.
    """

    name: str
    value: bool | int | str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}: {self.reason}"


def flags_for(graph: Graph, platform: str, options: CompileOptions) -> tuple[Flag, ...]:
    """The flags for a graph on a platform; what the user has chosen is left alone.

    Args:
        graph: after all passes, static.
        platform: ``cpu``, ``cuda``, ``rocm`` or ``tpu``.
        options: of the compile.
    """
    if platform != "cuda" or _NO_TRITON in options.compiler_options or asks_for_f32_sums(options):
        return ()
    products = [
        node
        for inner in graph.all_graphs()
        for node in inner.nodes()
        if isinstance(node.op, DotGeneral)
    ]
    if not any(_is_f8(node) for node in products) or has_product_of_one_row(graph):
        return ()
    # Measured on an H200 at 8192³ (gpu-facts 4): 0.13 s in place of 27 s, the same kernel.
    reason = "tuning of 8-bit products takes 27 s and ends at the library's kernel"
    return (Flag(_NO_TRITON, False, reason),)


def _is_f8(node: Node) -> bool:
    return all(_is_code(value) for value in node.inputs)


def _is_code(value: Value) -> bool:
    """Whether a value is of 8-bit floats, or of such that were widened and scaled."""
    node = value.node
    if node is not None and isinstance(node.op, Mul):
        value = node.inputs[0]
        node = value.node
    if node is not None and isinstance(node.op, Convert):
        value = node.inputs[0]
    return value.dtype.is_float and value.dtype.bits == 8
