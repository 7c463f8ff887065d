"""Runs a graph through the lowering rules on XLA's CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rlx.ir.graph import Graph
from rlx_xla.lowering.module import lower_to_module
from rlx_xla.runtime.executable import compile_module


def execute(graph: Graph, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Outputs of a static graph for arrays of its inputs in order."""
    executable = compile_module(lower_to_module(graph, "cpu"))
    with jax.enable_x64(True):
        return [np.asarray(a) for a in executable.call(*arrays)]
