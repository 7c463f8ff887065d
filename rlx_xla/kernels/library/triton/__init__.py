"""Kernels for GPUs in Pallas through Triton: one module for each op.

Each is registered once for AMD's GPUs and once for NVIDIA's, from one source.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
