"""XLA flags that a program itself asks for, each with its reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import final

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Op
from rlx.ops.arithmetic import Mul
from rlx.ops.compare import Select
from rlx.ops.convert import Convert
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.dot import DotGeneral
from rlx.ops.shape import Concatenate, Pad, Slice
from rlx.ops.transcendental import Rsqrt, Sqrt
from rlx.options.compile import CompileOptions
from rlx.passes.specialize.scaled import asks_for_f32_sums, has_product_of_one_row
from rlx_xla._jax_compat import flags as known

_NO_TRITON = "xla_gpu_enable_triton_gemm"
_EMITTERS = "xla_cpu_use_fusion_emitters"
_LEVEL = "xla_backend_optimization_level"

_PLACES = 4
"""Slices of one value from which on they are the places of a convolution's kernel."""

_CONVOLUTIONS = 6
"""Convolutions from which on a program is a network of them."""

_FAMILIES = frozenset(
    f"rlx.ops.{family}"
    for family in (
        "activation", "arithmetic", "bitwise", "compare", "convert", "convolution", "dot", "io",
        "normalization", "pooling", "reduction", "shape", "special", "transcendental",
    )
)  # fmt: skip
"""What a network of convolutions is made of."""

_REDUCTION = "rlx.ops.reduction"

_IMAGES = 4
"""Axes of a batch of images."""

_LONG = frozenset(
    f"rlx.ops.{family}" for family in ("activation", "normalization", "special", "transcendental")
)
"""Families whose ops may be many instructions for each element."""


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
    if platform == "cpu":
        return _of_convolutions(graph, options)
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


def _of_convolutions(graph: Graph, options: CompileOptions) -> tuple[Flag, ...]:
    """Flags of a network of convolutions on CPUs, which compiles slowly for what it is.

    Measured in one process with ``jax.jit``, whose compile of a MobileNet takes 256 ms of CPU
    time: 523 by XLA's own flags, 310 with the plain emitters, 267 with the lower level too, and
    the same speed. Where 16-bit numbers are padded, or exponentials are, the lower level doubles
    the run: it leaves the question what is padding inside the loops. The gradient of a MobileNet
    keeps XLA's newer emitters: by the plain ones a sum that ends where one of its operands lay, as
    behind a clamp, is not in vector lanes and runs three times as long.
    """
    nodes = graph.nodes()
    kinds = {type(node.op) for node in nodes}
    families = {_family(kind) for kind in kinds.difference((Rsqrt, Sqrt))}
    if options.strict or len(graph.all_graphs()) > 1 or not families <= _FAMILIES:
        return ()
    slices = Counter(node.inputs[0] for node in nodes if isinstance(node.op, Slice))
    # A sum slices what the places meet, and their weights.
    sums = sum(count >= _PLACES for count in slices.values()) // 2
    convolutions = sums + sum(isinstance(node.op, ConvGeneralDilated) for node in nodes)
    if convolutions < _CONVOLUTIONS:
        return ()
    found: list[Flag] = []
    ranks = [node.inputs[0].rank for node in nodes if _family(type(node.op)) == _REDUCTION]
    # A weight gradient sums what is laid out by the places of two axes, or once for each place;
    # that of an input chooses by what was clamped.
    forward = len(ranks) <= sums and max(ranks, default=0) <= _IMAGES and Select not in kinds
    if sums > 1 and forward and known.HAS_PLAIN_EMITTERS:
        reason = "sums over the places of a kernel compile in a fifth of the time"
        found.append(Flag(_EMITTERS, False, reason))
    narrow = any(v.dtype.is_float and v.dtype.bits < 32 for node in nodes for v in node.results)
    branches = (Concatenate, Pad) if narrow else (Concatenate,)
    plain = families.isdisjoint(_LONG) and kinds.isdisjoint(branches)
    if plain and known.optimization_level() == known.USUAL_LEVEL:
        found.append(Flag(_LEVEL, known.USUAL_LEVEL - 1, "such loops are as fast, compiled sooner"))
    return tuple(flag for flag in found if flag.name not in options.compiler_options)


def _family(op: type[Op]) -> str:
    """The package or module of an op's family, or what stands in its place."""
    return ".".join(op.__module__.split(".")[:3])


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
