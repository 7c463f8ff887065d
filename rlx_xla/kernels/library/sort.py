"""Stable sort of any operands by any number of keys, on the CPU (``cc/sort.h``).

XLA calls its comparator, a compiled function of scalars, once per comparison; the handler sorts
integers that are ordered as the keys are, in vector lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.sorting import Sort
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.select import register_kernel

KEYS = (
    DType.F32, DType.F64, DType.F16, DType.BF16, DType.I8, DType.I16, DType.I32, DType.I64,
    DType.U8, DType.U16, DType.U32, DType.U64, DType.BOOL,
)  # fmt: skip
"""Dtypes that a key may have; every one gains, from rows of two elements on."""

COMPANIONS = (*KEYS, DType.C64, DType.C128)
"""Dtypes that an operand which is no key may have."""

_MAX_SIZE = 2**31 - 1


def _check(op: Sort, types: Sequence[TensorType]) -> Supported | Refused:
    for index, type_ in enumerate(types):
        if index < op.num_keys and type_.dtype not in KEYS:
            return Refused(f"key {index} is {type_.dtype}, whose bits are not sorted by digits")
        if type_.dtype not in COMPANIONS:
            return Refused(f"operand {index} is {type_.dtype}, which is not stored in whole bytes")
        if not type_.is_static:
            return Refused(f"{type_} is not static")
    size = types[0].shape[op.axis]
    if not isinstance(size, int) or not 2 <= size <= _MAX_SIZE:
        return Refused(f"rows of {size} elements are outside 2 to {_MAX_SIZE}")
    return Supported()


def _symbol(op: Sort, types: Sequence[TensorType]) -> str:
    return "rlx_sort_cpu"


def _attributes(op: Sort, types: Sequence[TensorType]) -> dict[str, int]:
    return {"axis": op.axis, "num_keys": op.num_keys}


register_kernel(
    FfiKernel(
        name="sort.cpu.ffi",
        op=Sort,
        platforms=("cpu",),
        symbol=_symbol,
        check=_check,
        attributes=_attributes,
    )
)
