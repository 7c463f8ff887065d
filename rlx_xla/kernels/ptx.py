"""Kernels that ship as CUDA C++ text and travel inside the module as PTX.

NVRTC turns the text into PTX for the sizes at hand; XLA's PTX custom call carries it, so that no
shared library, no registration and no compiler at install is needed, and a saved executable holds
its kernels. The call is an internal name of XLA without a promise of stability: where a GPU is
attached, a tiny kernel is compiled once to see whether it is understood, and refusals say when not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any, final

from rlx.ir.op import Op
from rlx.types import TensorType
from rlx_xla._jax_compat import gpu
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.kernels import nvrtc
from rlx_xla.kernels.base import AbstractKernel, Check, Refused, Supported, row_major

if TYPE_CHECKING:
    from rlx_xla.lowering.context import LoweringContext

TARGET = "__gpu$xla.gpu.ptx"
OLDEST = "compute_80"
"""PTX for it runs on every later GPU; taken where no GPU says which it is."""


@final
@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a kernel is specialised and started.

    Attributes:
        entry: name of the ``extern "C" __global__`` function.
        grid: blocks along x, y, z.
        block: threads along x, y, z.
        shared_bytes: dynamic shared memory of a block, in bytes.
        defines: macros that hold the sizes.
    """

    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int = 0
    defines: Mapping[str, int] = field(default_factory=dict[str, int])


Configure = Callable[[Any, Sequence[TensorType], Sequence[TensorType]], Launch]
Prepare = Callable[..., "Sequence[ir.Value]"]


@final
@dataclass(frozen=True, kw_only=True)
class PtxKernel(AbstractKernel):
    """A kernel in ``rlx_xla/kernels/cuda``.

    It gets a pointer for each operand, then one for each result, all row-major.

    Attributes:
        source: name of its file.
        check: whether op and types fit.
        configure: op, input types and output types to the launch.
        prepare: emits what the kernel reads, given the context, op and operands, where it is not
            the operands.
    """

    source: str
    check: Check
    configure: Configure
    prepare: Prepare | None = None

    def supports(self, op: Op, types: Sequence[TensorType], platform: str) -> Supported | Refused:
        verdict = self.check(op, types)
        if isinstance(verdict, Refused):
            return verdict
        return available()

    def lower(self, ctx: LoweringContext, op: Any, *operands: ir.Value) -> Any:
        launch = self.configure(op, ctx.input_types, ctx.output_types)
        if self.prepare is not None:
            operands = tuple(self.prepare(ctx, op, *operands))
        return call(ctx, self.name, self.source, launch, operands, ctx.output_types)


def available() -> Supported | Refused:
    """Whether there is a compiler for the text, and an XLA that takes what it makes."""
    compiler = nvrtc.load()
    if isinstance(compiler, nvrtc.Unavailable):
        return Refused(compiler.reason)
    problem = _probe()
    return Supported() if problem is None else Refused(problem)


def call(
    ctx: LoweringContext,
    kernel: str,
    source: str,
    launch: Launch,
    operands: Sequence[ir.Value],
    results: Sequence[TensorType],
) -> list[ir.Value]:
    """Emit one launch of a file of ``rlx_xla/kernels/cuda``; returns its results."""
    compiler = nvrtc.load()
    if isinstance(compiler, nvrtc.Unavailable):
        raise ctx.refuse(f"kernel {kernel!r} needs NVRTC; {compiler.reason}.")
    text = compiler.ptx(
        source_text(source), name=source, architecture=architecture(), defines=launch.defines
    )
    ranks = [len(ir.RankedTensorType(value.type).shape) for value in operands]
    made = stablehlo.CustomCallOp(
        [ctx.mlir_type(type_) for type_ in results],
        list(operands),
        call_target_name=ir.StringAttr.get(TARGET),
        has_side_effect=ir.BoolAttr.get(False),
        backend_config=ir.StringAttr.get(configuration(launch, text)),
        api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
        operand_layouts=row_major(ranks),
        result_layouts=row_major([type_.rank for type_ in results]),
    )
    return list(made.results)


def source_text(name: str) -> str:
    """A file of ``rlx_xla/kernels/cuda`` with what it includes of that folder, each once."""
    return _joined(name, set())


def _joined(name: str, known: set[str]) -> str:
    text = files("rlx_xla.kernels").joinpath("cuda", name).read_text(encoding="utf-8")
    known.add(name)

    def included(line: re.Match[str]) -> str:
        return "" if line[1] in known else _joined(line[1], known)

    return re.sub(r'^#include "([^"]+)"\n', included, text, flags=re.MULTILINE)


def architecture() -> str:
    """Virtual architecture of the attached GPU, or the oldest that we write for."""
    capability = gpu.compute_capability()
    return OLDEST if capability is None else f"compute_{capability.replace('.', '')}"


def configuration(launch: Launch, ptx: str) -> str:
    """The call's configuration: the text of an MLIR dictionary."""

    def number(value: int) -> ir.Attribute:
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)

    attributes: dict[str, ir.Attribute] = {
        "name": ir.StringAttr.get(launch.entry),
        "kernel_type": ir.StringAttr.get("ptx"),
        "kernel_data": ir.StringAttr.get(ptx),
        "shared_mem_bytes": number(launch.shared_bytes),
    }
    for what, sizes in (("grid", launch.grid), ("block", launch.block)):
        for axis, size in zip("xyz", (*sizes, 1, 1), strict=False):
            attributes[f"{what}_{axis}"] = number(size)
    return str(ir.DictAttr.get(attributes))


@functools.cache
def _probe() -> str | None:
    """Why the attached GPU's XLA does not take the call, or None; None too without a GPU."""
    if gpu.compute_capability() is None:
        return None
    compiler = nvrtc.load()
    assert isinstance(compiler, nvrtc.Compiler)
    text = compiler.ptx(
        'extern "C" __global__ void probe(const float* x, float* y) { *y = *x + 1.0f; }',
        name="probe.cu",
        architecture=architecture(),
        defines={},
    )
    return gpu.run_probe(
        TARGET, lambda: configuration(Launch(entry="probe", grid=(1,), block=(1,)), text)
    )
