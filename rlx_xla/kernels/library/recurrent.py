"""LSTM, GRU and plain recurrent networks, on the CPU (``cc/recurrent.h``).

XLA's loop calls a product of its own for each step, over weights as they lie; the handler turns
them into panels once and keeps states and gates in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.sequence import Gru, Lstm, Rnn
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.select import register_kernel

Recurrent = Lstm | Gru | Rnn

DTYPES = (DType.F32, DType.BF16, DType.F16)

MIN_STEPS = 4
"""Fewest steps that make up for turning the weights."""

MAX_WEIGHTS = 2**18
"""Most elements of a state's weights that gain: more do not stay in the second-level cache, and
XLA reads them as fast."""

_PLAIN, _RELU, _LSTM, _GRU, _GRU_RESET_FIRST = range(5)


def _check(op: Recurrent, types: Sequence[TensorType]) -> Supported | Refused:
    if isinstance(op, Lstm) and op.cells:
        return Refused("cells=True: it keeps the cell states of the last step alone")
    x = types[0]
    if x.dtype not in DTYPES:
        return Refused(f"x is {x.dtype}, and f32, bf16 and f16 are taken")
    if not x.is_static:
        return Refused(f"{x} is not static")
    steps = x.shape[1]
    if not isinstance(steps, int) or steps < MIN_STEPS:
        return Refused(f"{steps} steps are fewer than {MIN_STEPS}")
    weights = math.prod(d for d in types[2].shape[1:] if isinstance(d, int))
    if weights > MAX_WEIGHTS:
        return Refused(f"weights of {weights} elements are more than {MAX_WEIGHTS}")
    return Supported()


def _symbol(op: Recurrent, types: Sequence[TensorType]) -> str:
    del op
    return f"rlx_recurrent_{types[0].dtype}_cpu"


def _kind(op: Recurrent) -> int:
    """The network's number in ``rlx::RecurrentKind``."""
    if isinstance(op, Rnn):
        return _RELU if op.relu else _PLAIN
    if isinstance(op, Lstm):
        return _LSTM
    return _GRU if op.reset_after else _GRU_RESET_FIRST


def _attributes(op: Recurrent, types: Sequence[TensorType]) -> dict[str, int | bool]:
    del types
    return {
        "kind": _kind(op),
        "hidden_size": op.hidden_size,
        "num_layers": op.num_layers,
        "bidirectional": op.bidirectional,
        "carry": op.carry,
    }


for _op in (Lstm, Gru, Rnn):
    register_kernel(
        FfiKernel(
            name=f"{_op.op_name}.cpu.ffi",
            op=_op,
            platforms=("cpu",),
            symbol=_symbol,
            check=_check,
            attributes=_attributes,
        )
    )
