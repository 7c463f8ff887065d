"""onnxruntime as a rival: single nodes, run on bound buffers, where the package is installed.

Install it with ``pip install rlx-xla[bench]``. A node whose kind or dtype onnxruntime's CPU refuses
is left out, as all are without the package.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Run = Callable[[], Any]
CONTRIBUTED = "com.microsoft"


@dataclass(frozen=True, kw_only=True)
class OnnxNode:
    """One node of ONNX with what it is given.

    Attributes:
        kind: the operator.
        inputs: arrays that come anew with each call, in order; None is left out.
        constants: position → weights, which the runtime may pack beforehand.
        results: how many.
        domain: the operator's.
        attributes: its attributes.
    """

    kind: str
    inputs: Sequence[np.ndarray | None]
    constants: Mapping[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])
    results: int = 1
    domain: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def installed() -> bool:
    """Whether onnxruntime, and onnx to write its models, are there."""
    return all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))


def runner(node: OnnxNode) -> Run | None:
    """A run of the node that returns its results; None where onnxruntime has none."""
    if not installed():
        return None
    ort: Any = importlib.import_module("onnxruntime")
    refused: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    options = ort.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # Threads that wait in a loop would slow down whoever is timed next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = ort.InferenceSession(_model(node), options, ["CPUExecutionProvider"])
    except (refused.NotImplemented, refused.InvalidGraph, refused.Fail):
        return None
    binding = session.io_binding()
    for given in session.get_inputs():
        array = np.ascontiguousarray(node.inputs[int(given.name[1:])])
        binding.bind_ortvalue_input(given.name, ort.OrtValue.ortvalue_from_numpy(array))
    for result in session.get_outputs():
        binding.bind_output(result.name, "cpu")

    def run() -> Any:
        session.run_with_iobinding(binding)
        return binding

    return run


def four_bits(x: np.ndarray, columns: int) -> OnnxNode:
    """A product of x with a matrix of four bits in blocks of 32; what its numbers are is drawn."""
    rng = np.random.default_rng(0)
    blocks = x.shape[1] // 32
    return OnnxNode(
        kind="MatMulNBits",
        domain=CONTRIBUTED,
        inputs=[x],
        constants={
            1: rng.integers(0, 256, (columns, blocks, 16), dtype=np.uint8),
            2: rng.normal(size=columns * blocks).astype(np.float32),
        },
        attributes={
            "K": x.shape[1],
            "N": columns,
            "bits": 4,
            "block_size": 32,
            "accuracy_level": 4,
        },
    )


def check(node: OnnxNode, run: Run, number: int, wanted: Any) -> None:
    """Assert that a result holds the wanted numbers, in whatever order of axes."""
    found = np.sort(run().copy_outputs_to_cpu()[number].astype(np.float64), axis=None)
    numbers = np.sort(np.asarray(wanted).astype(np.float64), axis=None)
    near = 0.02 if np.asarray(wanted).dtype.itemsize == 2 else 1e-3
    most = float(np.abs(numbers).max(initial=0))
    np.testing.assert_allclose(found, numbers, rtol=near, atol=near * most, err_msg=node.kind)


def _model(node: OnnxNode) -> bytes:
    """A model of the one node; inputs are named x0, x1, … by position."""
    onnx: Any = importlib.import_module("onnx")
    helper = onnx.helper
    count = max([len(node.inputs) - 1, *node.constants]) + 1
    given = dict(enumerate(node.inputs))
    names = [
        f"x{i}" if given.get(i) is not None or i in node.constants else "" for i in range(count)
    ]
    outputs = [f"y{i}" for i in range(node.results)]
    made = helper.make_node(node.kind, names, outputs, domain=node.domain, **node.attributes)
    inputs = [
        helper.make_tensor_value_info(
            f"x{i}", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for i, array in given.items()
        if array is not None
    ]
    graph = helper.make_graph(
        [made],
        node.kind,
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [
            onnx.numpy_helper.from_array(np.ascontiguousarray(array), f"x{i}")
            for i, array in node.constants.items()
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIBUTED, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
