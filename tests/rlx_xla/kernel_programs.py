"""A small program for each CPU kernel; ``python -m tests.rlx_xla.kernel_programs FOLDER`` runs all.

The folder holds a compile cache, the graph of all programs (``graph.rlx``) and its inputs
(``inputs.npz``). Results go to ``results.npz``; how many programs were compiled is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.dtypes import DType
from rlx.ir.attributes import Literal
from rlx.ir.graph import Graph, make_node
from rlx.ir.op import Op
from rlx.ops.activation_kinds import Activation
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.backward import AttentionBackward, AttentionBackwardAll, AttentionBackwardWrt
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.dot import DotGeneral
from rlx.ops.fused import FusedMatmulBiasAct, FusedResidualLn
from rlx.ops.io import Input
from rlx.ops.pooling import ReduceWindow, SelectAndScatterAdd, WindowKind, WindowSelect
from rlx.ops.quantized import DequantMatmul, DequantMatmulInt8, DequantMatmulPick
from rlx.ops.reduction import Argmax, Argmin, CumLogSumExp, CumMax, CumMin, CumProd, CumSum
from rlx.ops.sequence import GatedDeltaNet, Gru, Lstm, Rnn, SelectiveScan
from rlx.ops.sorting import Sort, TopK
from rlx.quant import QuantScheme
from tests.samples import quantized_blocks
from tests.samples.base import draw

Array = np.ndarray[Any, Any]
ROWS = 8
"""Size of the first axis of what is computed row by row: one for each of eight devices."""


@dataclass(frozen=True)
class Program:
    """One op that a kernel carries out.

    Attributes:
        op: the op.
        draw: draws its inputs; those that are weights come last.
        weights: how many of them are weights, which no ``vmap`` maps over.
        smooth: whether ``jax.grad`` by the other inputs is tried.
    """

    op: Op
    draw: Callable[[np.random.Generator], tuple[Array, ...]]
    weights: int = 0
    smooth: bool = True

    def graph(self, arrays: tuple[Array, ...]) -> Graph:
        """The op alone."""
        return graph_of([(self, arrays)])


def graph_of(programs: list[tuple[Program, tuple[Array, ...]]]) -> Graph:
    """Programs side by side; inputs x0, x1, … in order."""
    leaves: list[Any] = []
    outputs: list[Any] = []
    for program, arrays in programs:
        types = [Literal(array).type for array in arrays]
        names = [f"x{len(leaves) + i}" for i in range(len(arrays))]
        mine = [
            Input(name=n, dtype=t.dtype, shape=t.shape)() for n, t in zip(names, types, strict=True)
        ]
        leaves += mine
        outputs += make_node(program.op, mine).results
    return Graph(leaves, (), outputs, name="kernels")


def _floats(*shapes: tuple[int, ...], low: float = -1, high: float = 1) -> Any:
    def drawn(rng: np.random.Generator) -> tuple[Array, ...]:
        return tuple(draw(rng, DType.F32, shape, low=low, high=high) for shape in shapes)

    return drawn


def _packed(scheme: str, *, index: bool = False) -> Any:
    def drawn(rng: np.random.Generator) -> tuple[Array, ...]:
        weight = quantized_blocks.weight(rng, QuantScheme.parse(scheme), 256, 6)
        where = (np.asarray(rng.integers(1), np.int32),) if index else ()
        return (draw(rng, DType.F32, (ROWS, 256)), *where, *weight)

    return drawn


def _attention(op: type[Any], inputs: int, **attributes: Any) -> Program:
    made = op(num_heads=2, head_dim=8, layout="bhsd", mask_kind=MaskKind.CAUSAL, **attributes)
    return Program(made, _floats(*((ROWS, 2, 16, 8),) * inputs), smooth=op is Attention)


def _window(op: type[Any], *shapes: tuple[int, ...], **attributes: Any) -> Program:
    made = op(
        window_dimensions=(1, 3, 3, 1),
        window_strides=(1, 2, 2, 1),
        padding=((0, 0), (1, 1), (1, 1), (0, 0)),
        **attributes,
    )
    return Program(made, _floats(*shapes), smooth=op is ReduceWindow)


def _recurrent(op: type[Any], gates: int) -> Program:
    biases = ((1, gates * 8),) * (2 if op is Gru else 1)
    weights = ((gates * 8 * 5,), (1, gates * 8, 8), *biases)
    return Program(op(hidden_size=8), _floats((ROWS, 6, 5), *weights), weights=len(weights))


def _scan(rng: np.random.Generator) -> tuple[Array, ...]:
    x, delta, b, c = _floats((ROWS, 7, 12), (ROWS, 7, 12), (ROWS, 7, 5), (ROWS, 7, 5))(rng)
    return x, abs(delta), -abs(_floats((12, 5))(rng)[0]), b, c


def _delta(rng: np.random.Generator) -> tuple[Array, ...]:
    q, k, v, g, beta = _floats(*((ROWS, 5, 2, 16),) * 3, *((ROWS, 5, 2),) * 2)(rng)
    return q, k / 4, v, -abs(g), abs(beta)


_IMAGE = (ROWS, 20, 20, 4)
_CONVOLUTION = ConvGeneralDilated(
    window_strides=(1, 1),
    padding=((1, 1), (1, 1)),
    lhs_dilation=(1, 1),
    rhs_dilation=(1, 1),
    lhs_spec=(0, 1, 2, 3),
    rhs_spec=(0, 1, 2, 3),
    out_spec=(0, 1, 2, 3),
)
_RUNNING = (CumLogSumExp, CumMax, CumMin, CumProd, CumSum)

PROGRAMS: dict[str, Program] = {
    **{
        f"{op.op_name}.cpu.ffi": Program(op(axis=1), _floats((ROWS, 64)), smooth=False)
        for op in (Argmax, Argmin)
    },
    "attention.cpu.ffi": _attention(Attention, 3),
    "attention_backward.cpu.ffi": _attention(AttentionBackward, 4, wrt=AttentionBackwardWrt.KEY),
    "attention_backward_all.cpu.ffi": _attention(AttentionBackwardAll, 4),
    "conv_general_dilated.cpu.ffi": Program(
        _CONVOLUTION, _floats((ROWS, 3, 9, 9), (4, 3, 3, 3)), weights=1
    ),
    **{
        f"{op.op_name}.cpu.ffi": Program(op(axis=1), _floats((ROWS, 40), low=0.5))
        for op in _RUNNING
    },
    "dequant_matmul.cpu.ffi": Program(DequantMatmul(scheme="gguf_q4k"), _packed("gguf_q4k"), 1),
    "dequant_matmul_int8.cpu.ffi": Program(
        DequantMatmulInt8(scheme="gguf_q8_0"), _packed("gguf_q8_0"), 1, smooth=False
    ),
    "dequant_matmul_pick.cpu.ffi": Program(
        DequantMatmulPick(scheme="gguf_q4k"), _packed("gguf_q4k", index=True), 2, smooth=False
    ),
    "dot_general.cpu.ffi": Program(
        DotGeneral(lhs_contracting=(1,), rhs_contracting=(0,)), _floats((ROWS, 300), (300, 129)), 1
    ),
    "fused_matmul_bias_act.cpu.ffi": Program(
        FusedMatmulBiasAct(activation=Activation.GELU),
        _floats((ROWS, 300), (300, 129), (129,)),
        weights=2,
    ),
    "fused_residual_ln.cpu.ffi": Program(
        FusedResidualLn(), _floats((ROWS, 80), (ROWS, 80), (80,), (80,)), weights=2
    ),
    "gated_delta_net.cpu.ffi": Program(GatedDeltaNet(state_size=16), _delta),
    "gru.cpu.ffi": _recurrent(Gru, 3),
    "lstm.cpu.ffi": _recurrent(Lstm, 4),
    "rnn.cpu.ffi": _recurrent(Rnn, 1),
    "reduce_window.cpu.ffi": _window(
        ReduceWindow,
        _IMAGE,
        kind=WindowKind.MAX,
        base_dilation=(1,) * 4,
        window_dilation=(1,) * 4,
    ),
    "select_and_scatter_add.cpu.ffi": _window(
        SelectAndScatterAdd, (ROWS, 10, 10, 4), _IMAGE, select=WindowSelect.GE
    ),
    "selective_scan.cpu.ffi": Program(SelectiveScan(state_size=5), _scan),
    "sort.cpu.ffi": Program(Sort(axis=1), _floats((ROWS, 100))),
    "top_k.cpu.ffi": Program(TopK(k=5), _floats((ROWS, 200))),
}
"""Kernel's name → a program that it carries out."""


def everything(rng: np.random.Generator) -> tuple[Graph, dict[str, Array]]:
    """All programs in one graph, and its inputs by name."""
    programs = [(program, program.draw(rng)) for program in PROGRAMS.values()]
    arrays: Iterator[Array] = (array for _, drawn in programs for array in drawn)
    graph = graph_of(programs)
    return graph, {leaf.name: array for leaf, array in zip(graph.inputs, arrays, strict=True)}


def main(folder: Path) -> None:
    """Compile what the folder holds, or find it in its cache, and run it."""
    import jax

    from rlx_xla.runtime.cache import enable_cache

    compiles: list[str] = []

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiles.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    enable_cache(folder / "cache")
    compiled = rlx.Session("cpu").compile(rlx.load(folder / "graph.rlx"))
    with np.load(folder / "inputs.npz") as inputs:
        results = compiled.run(dict(inputs))
    np.savez(folder / "results.npz", *results)
    print(len(compiles))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
