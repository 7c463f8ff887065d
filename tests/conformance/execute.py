"""Runs a graph through the lowering rules on XLA's CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.ir.graph import Graph
from rlx.passes.legalize import decompose_unsupported
from rlx_xla.lowering.module import lower_to_module
from rlx_xla.lowering.registry import rule_for
from rlx_xla.runtime.executable import LoadedExecutable


def execute(graph: Graph, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Outputs of a static graph for arrays of its inputs in order."""
    ready = decompose_unsupported(graph, lambda op: rule_for(type(op), "cpu") is not None)
    lowered = lower_to_module(ready, "cpu")
    executable = LoadedExecutable(
        lowered.module,
        host_callbacks=lowered.host_callbacks,
        keepalive=lowered.keepalive,
    )
    return [np.asarray(a) for a in executable.call(*arrays)]
