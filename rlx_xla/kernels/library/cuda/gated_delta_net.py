"""The gated delta rule on NVIDIA GPUs (``cuda/gated_delta_net.cu``).

XLA runs one token after another, each as several kernels that read and write the whole state;
here a block of threads keeps its columns of the state in registers from the first token to the
last.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.sequence import GatedDeltaNet
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.ptx import Launch, PtxKernel
from rlx_xla.kernels.select import register_kernel

_KINDS = {DType.F32: (0, 4), DType.BF16: (1, 2), DType.F16: (2, 2)}
"""Dtype → KIND of the source, bytes of an element."""

_GROUPS = {16: 4, 32: 8, 64: 8, 128: 8, 256: 16}
"""State size → threads that share a column of the state."""

_PER = 1
"""Columns of a thread."""

_MULTIPROCESSORS = 132
_MOST_BLOCKS = 65_535


def _check(op: GatedDeltaNet, types: Sequence[TensorType]) -> Supported | Refused:
    q = types[0]
    if q.dtype not in _KINDS:
        return Refused(f"q is {q.dtype} and none of {', '.join(map(str, _KINDS))}")
    if op.state_size not in _GROUPS:
        return Refused(f"state_size {op.state_size} is none of {', '.join(map(str, _GROUPS))}")
    sizes = [size for size in q.shape if isinstance(size, int)]
    if len(sizes) != q.rank:
        return Refused(f"{q} is not static")
    batch, length, heads, _ = sizes
    if not length or not 1 <= batch <= _MOST_BLOCKS or not 1 <= heads <= _MOST_BLOCKS:
        return Refused(f"{q} is empty, or its batch or heads are above {_MOST_BLOCKS}")
    return Supported()


def launch(op: GatedDeltaNet, types: Sequence[TensorType], results: Sequence[TensorType]) -> Launch:
    """How it is started."""
    del results
    batch, length, heads, size = (dims.evaluate(d, {}) for d in types[0].shape)
    kind, width = _KINDS[types[0].dtype]
    columns = min(32, size)
    # Fewer columns a block as long as each has a multiprocessor of its own.
    while columns > 8 and 2 * batch * heads * size // columns <= _MULTIPROCESSORS:
        columns //= 2
    tile = 32 if size < 256 else 16
    stage = tile * (2 * size + columns + (size if op.gate_per_channel else 0)) * width
    gates = tile * size if op.gate_per_channel else 2 * tile
    return Launch(
        entry="gated_delta_net",
        grid=(size // columns, heads, batch),
        block=(columns // _PER * _GROUPS[size],),
        shared_bytes=2 * stage + 4 * (3 * tile + gates),
        defines={
            "L": length,
            "H": heads,
            "N": size,
            "COLUMNS": columns,
            "GROUP": _GROUPS[size],
            "PER": _PER,
            "TILE": tile,
            "GATES": int(op.gate_per_channel),
            "CARRY": int(op.carry_state),
            "KIND": kind,
        },
    )


register_kernel(
    PtxKernel(
        name="gated_delta_net.cuda.ptx",
        op=GatedDeltaNet,
        platforms=("cuda",),
        source="gated_delta_net.cu",
        check=_check,
        configure=launch,
    )
)
