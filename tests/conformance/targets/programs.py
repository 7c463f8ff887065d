"""Programs of the samples of every op, as a target's compiler gets them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from rlx.errors import LoweringError
from rlx.ir.graph import Graph
from rlx.options.compile import CompileOptions
from rlx_xla.aot.lowering import lower_for
from rlx_xla.aot.targets import Target
from tests.conformance import runner

TARGETS = ("tpu:v5e:1x1", "tpu:v6e:1x1", "tpu:tpu7x:1x1x1", "cuda:h100")

NOT_COMPILED = {
    "custom": "the sample holds functions of this process",
    "external": "the sample holds functions of this process",
    "platform_index": "the sample has a branch for the CPU alone",
}
"""Ops whose samples are for the process that draws them."""

CHOSEN = (
    "add", "argmax", "attention", "cholesky", "conv_general_dilated", "cumsum", "dequant_matmul",
    "dot_general", "eigh", "erf_inv", "fft", "gather_general", "gelu", "layer_norm", "lstm", "lu",
    "reduce_window", "rng_bit_generator", "rope", "scan", "scatter_general", "select", "softmax",
    "sort", "svd", "top_k", "triangular_solve", "while",
)  # fmt: skip
"""Ops of every family that has rules or kernels of its own, and some that are made of others."""


@final
@dataclass(frozen=True)
class Program:
    """Samples of one op in one graph.

    Attributes:
        op: the op's name.
        dtypes: of the first operands, one for each sample; empty where there is none.
        graph: the samples.
    """

    op: str
    dtypes: tuple[str, ...]
    graph: Graph

    def __str__(self) -> str:
        return f"{self.op} {', '.join(self.dtypes)}".strip()


@functools.cache
def samples() -> dict[str, dict[str, runner.Sample]]:
    """Op → dtype → its first sample that is not empty; the same in every call."""
    found: dict[str, dict[str, runner.Sample]] = {}
    drawn = runner.all_samples(np.random.default_rng(0))
    for name in sorted(drawn.keys() - NOT_COMPILED.keys()):
        for sample in sorted(drawn[name], key=lambda s: any(x.size == 0 for x in s.inputs)):
            dtype = str(sample.inputs[0].dtype) if sample.inputs else ""
            found.setdefault(name, {}).setdefault(dtype, sample)
    return found


def joined(op: str, without: Collection[str] = ()) -> Program:
    """All dtypes of an op in one program, but those of ``op dtype`` in a list."""
    found = {d: s for d, s in samples()[op].items() if f"{op} {d}".strip() not in without}
    return _program(op, found)


def apart(program: Program) -> list[Program]:
    """Each dtype of a program alone."""
    found = samples()[program.op]
    return [_program(program.op, {dtype: found[dtype]}) for dtype in program.dtypes]


def chosen() -> list[Program]:
    """What a test compiles: one dtype of each of the chosen ops, f32 where there is one."""
    made: list[Program] = []
    for op in CHOSEN:
        found = samples()[op]
        dtype = "float32" if "float32" in found else next(iter(found))
        made.append(_program(op, {dtype: found[dtype]}))
    return made


def _program(op: str, found: Mapping[str, runner.Sample]) -> Program:
    return Program(op, tuple(found), runner.graph_of(list(found.values()))[0])


def text_for(program: Program, target: Target) -> str:
    """StableHLO of a program for a target, after the passes and with the kernels of a compile.

    Raises:
        LoweringError: something in it has no lowering there.
    """
    lowered = lower_for(program.graph, target, CompileOptions())
    if lowered.unsupported:
        reasons = [str(reason) for found in lowered.unsupported for reason in found.refused]
        ops = ", ".join(found.node.op.op_name for found in lowered.unsupported)
        raise LoweringError("; ".join(reasons) or f"no lowering for {ops}")
    if not lowered.text:
        raise LoweringError(lowered.refused)
    return lowered.text
