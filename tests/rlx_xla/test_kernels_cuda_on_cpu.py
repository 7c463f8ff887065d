"""Kernels that no GPU has run yet: their sources, translated for the CPU, against their ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import quant
from rlx.dtypes import DType
from rlx.ops.quantized import DequantMatmul
from rlx.ops.sequence import Gru, Lstm, Rnn
from rlx.quant.schemes import QuantScheme
from rlx.types import TensorType
from rlx_xla.kernels.library.cuda import dequant_matmul, recurrent
from tests.rlx_xla import cuda_on_cpu

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs a C++ compiler")

slow = pytest.mark.slow
ERRORS = {DType.F32: 1e-6, DType.F16: 5e-4, DType.BF16: 4e-3}


@pytest.mark.parametrize(
    ("scheme", "dtype", "rows", "inner"),
    [
        ("q4_0", DType.F32, 1, 2048),
        ("q6k", DType.F16, 3, 1024),
        pytest.param("q4k", DType.F32, 5, 2048, marks=slow),
        pytest.param("q5_1", DType.F16, 8, 512, marks=slow),
        pytest.param("q8_0", DType.BF16, 2, 1024, marks=slow),
    ],
)
def test_a_product_that_splits_inside(
    scheme: str, dtype: DType, rows: int, inner: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    outer, name = 37, f"gguf_{scheme}"
    packed = quant.encode(
        QuantScheme.parse(name), rng.standard_normal((outer, inner)).astype(np.float32)
    )
    x = rng.standard_normal((rows, inner)).astype(dtype.numpy)
    y = np.zeros((rows, outer), dtype.numpy)
    op = DequantMatmul(scheme=name)
    types = [TensorType(dtype, x.shape), TensorType(DType.U8, packed.shape)]
    launch = dequant_matmul.launch(op, types, [TensorType(dtype, y.shape)], split=True)
    cuda_on_cpu.run("dequant_matmul.cu", launch, [x, packed, y], tmp_path)
    b = rlx.GraphBuilder()
    graph = b.build(op(b.input("x", types[0]), b.input("w", types[1])))
    wanted = rlx.interpret(graph, {"x": x, "w": packed})[0].astype(np.float64)
    assert np.linalg.norm(y - wanted) <= ERRORS[dtype] * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("kind", "hidden", "batch"),
    [
        (Lstm, 300, 2),
        (Gru, 264, 1),
        pytest.param(Lstm, 384, 20, marks=slow),
        pytest.param(Gru, 448, 2, marks=slow),
        pytest.param(Rnn, 512, 60, marks=slow),
    ],
)
def test_weights_in_shared_memory(
    kind: Any, hidden: int, batch: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    length, op = 3, kind(hidden_size=hidden)
    launch = recurrent.launch(op, batch, length)
    gates, rows = launch.defines["G"], launch.defines["ROWS"]

    def drawn(*shape: int) -> np.ndarray[Any, Any]:
        return (rng.standard_normal(shape) * hidden**-0.5).astype(np.float32)

    arrays = {
        "x": drawn(batch, length, 5) * 20,
        "w_ih": drawn(gates * hidden, 5),
        "w_hh": drawn(1, gates * hidden, hidden),
        "b": drawn(1, gates * hidden),
    }
    entering = arrays["x"] @ arrays["w_ih"].T + arrays["b"]
    taken = [entering.astype(np.float32), arrays["w_hh"]]
    arrays["w_ih"] = arrays["w_ih"].reshape(-1)
    if kind is Gru:
        arrays["b_hh"] = drawn(1, gates * hidden)
        taken.append(arrays["b_hh"])
    y = np.zeros((batch, length, hidden), np.float32)
    states = [np.zeros((batch, hidden), np.float32) for _ in range(2 if kind is Lstm else 1)]
    width = -(-hidden // 64) * 64
    cuda_on_cpu.run(
        "recurrent.cu", launch, [*taken, y, *states], tmp_path, cluster=8, fixed=8 * rows * width
    )
    b = rlx.GraphBuilder()
    leaves = [b.input(n, TensorType(DType.F32, a.shape)) for n, a in arrays.items()]
    (wanted,) = rlx.interpret(b.build(op(*leaves)), arrays)
    np.testing.assert_allclose(y, wanted, atol=2e-6)
    np.testing.assert_allclose(states[0], wanted[:, -1], atol=2e-6)
