"""Kernels of our own, plugged into XLA as custom calls, and what kernels of others are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlx_xla.on_demand import found_in

if TYPE_CHECKING:
    from rlx.tolerances import Tolerance as Tolerance
    from rlx_xla.kernels.base import AbstractKernel as AbstractKernel
    from rlx_xla.kernels.base import FfiKernel as FfiKernel
    from rlx_xla.kernels.base import Refused as Refused
    from rlx_xla.kernels.base import Supported as Supported
    from rlx_xla.kernels.pallas import PallasKernel as PallasKernel
    from rlx_xla.kernels.ptx import PtxKernel as PtxKernel
    from rlx_xla.kernels.select import register_kernel as register_kernel

_LAZY = {
    "AbstractKernel": "rlx_xla.kernels.base",
    "FfiKernel": "rlx_xla.kernels.base",
    "PallasKernel": "rlx_xla.kernels.pallas",
    "PtxKernel": "rlx_xla.kernels.ptx",
    "Refused": "rlx_xla.kernels.base",
    "Supported": "rlx_xla.kernels.base",
    "Tolerance": "rlx.tolerances",
    "register_kernel": "rlx_xla.kernels.select",
}


def __getattr__(name: str) -> Any:
    return found_in(__name__, name, _LAZY)  # one of these, or a submodule


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
