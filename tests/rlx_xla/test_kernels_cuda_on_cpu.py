"""Kernels that no GPU has run yet: their sources, translated for the CPU, against their ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import quant
from rlx.dtypes import DType, as_dtype
from rlx.ops.quantized import DequantMatmul
from rlx.ops.sequence import Gru, Lstm, Rnn
from rlx.quant.schemes import QuantScheme
from rlx.types import TensorType
from rlx_xla.kernels.library.cuda import dequant_columns, dequant_matmul, recurrent
from tests.rlx_xla import cuda_on_cpu
from tests.rlx_xla.drawn_weights import quantized

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs a C++ compiler")

slow = pytest.mark.slow
ERRORS = {DType.F32: 1e-6, DType.F16: 5e-4, DType.BF16: 4e-3}


@pytest.mark.parametrize(
    ("scheme", "dtype", "rows", "inner"),
    [
        ("q4_0", DType.F32, 1, 2048),
        ("q6k", DType.F16, 3, 768),
        pytest.param("q6k", DType.BF16, 6, 2048, marks=slow),
        ("q4k", DType.BF16, 1, 512),
        ("q5_0", DType.BF16, 9, 256),
        pytest.param("q5k", DType.F16, 2, 1024, marks=slow),
        pytest.param("q4k", DType.BF16, 6, 1024, marks=slow),
        pytest.param("q4k", DType.F32, 5, 2048, marks=slow),
        pytest.param("q5_1", DType.F16, 8, 512, marks=slow),
        pytest.param("q8_0", DType.BF16, 2, 1024, marks=slow),
    ],
)
def test_a_product_that_splits_inside(
    scheme: str,
    dtype: DType,
    rows: int,
    inner: int,
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outer, name = 53, f"gguf_{scheme}"
    monkeypatch.setattr(dequant_matmul, "_MULTIPROCESSORS", 1)  # where 32 rows are many
    packed = quant.encode(
        QuantScheme.parse(name), rng.standard_normal((outer, inner)).astype(np.float32)
    )
    x = rng.standard_normal((rows, inner)).astype(dtype.numpy)
    y = np.zeros((rows, outer), dtype.numpy)
    op = DequantMatmul(scheme=name)
    types = [TensorType(dtype, x.shape), TensorType(DType.U8, packed.shape)]
    launch = dequant_matmul.launch(op, types, [TensorType(dtype, y.shape)])
    splits = dtype is not DType.BF16 or rows <= 4
    assert launch.defines["SPLIT"] == splits
    columns = rows * launch.defines["PARTS"]
    assert launch.defines["ROWS"] == (32 if columns > 8 or not splits else 16)
    read = x if splits else parts_of(x, launch.defines["PARTS"])  # the parts that XLA makes
    cuda_on_cpu.run("dequant_matmul.cu", launch, [read, packed, y], tmp_path)
    b = rlx.GraphBuilder()
    graph = b.build(op(b.input("x", types[0]), b.input("w", types[1])))
    wanted = rlx.interpret(graph, {"x": x, "w": packed})[0].astype(np.float64)
    assert np.linalg.norm(y - wanted) <= ERRORS[dtype] * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("scheme", "dtype", "rows", "inner", "outer", "clusters"),
    [
        ("int8/32", DType.F32, 2, 352, 144, True),
        ("int4/64", DType.BF16, 3, 1024, 160, True),
        ("fp8e5m2", DType.F16, 1, 80, 48, False),
        ("nvfp4/16", DType.F32, 1, 208, 128, False),
        pytest.param("fp8e4m3", DType.BF16, 16, 272, 272, True, marks=slow),
        pytest.param("int8/512", DType.F32, 5, 512, 32, False, marks=slow),
        pytest.param("int8a/128", DType.F16, 8, 160, 16, True, marks=slow),
        pytest.param("int8a/999", DType.BF16, 1, 16, 144, True, marks=slow),
        pytest.param("int4/16", DType.F32, 1, 48, 16, True, marks=slow),
        pytest.param("int4/999", DType.F32, 2, 80, 144, True, marks=slow),
        pytest.param("nvfp4/16", DType.F16, 6, 1040, 144, True, marks=slow),
    ],
)
def test_a_product_with_columns_of_codes(
    scheme: str,
    dtype: DType,
    rows: int,
    inner: int,
    outer: int,
    clusters: bool,
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    made = QuantScheme.parse(scheme)
    tensors = dict(zip("wsz", quantized(made, (inner, outer), rng), strict=False))
    x = rng.standard_normal((rows, inner)).astype(dtype.numpy)
    y = np.zeros((rows, outer), dtype.numpy)
    op = DequantMatmul(scheme=scheme)
    arrays = {"x": x, **tensors}
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays.values()]
    launch = dequant_columns.launch(op, types, [TensorType(dtype, y.shape)], clusters=clusters)
    found = launch.defines
    cuda_on_cpu.run(
        "dequant_columns.cu",
        launch,
        [*arrays.values(), y],
        tmp_path,
        cluster=found["CLUSTER"],
        fixed=512 * found["M"] * found["PARTS"],
    )
    b = rlx.GraphBuilder()
    leaves = [b.input(n, t) for n, t in zip(arrays, types, strict=True)]
    wanted = rlx.interpret(b.build(op(*leaves)), arrays)[0].astype(np.float64)
    assert np.linalg.norm(y - wanted) <= ERRORS[dtype] * np.linalg.norm(wanted)


def parts_of(x: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Each row as neighbouring rows of bf16 that add up to it."""
    left, parts = x.astype(np.float32), []
    for _ in range(count):
        parts.append(left.astype(DType.BF16.numpy))
        left = left - parts[-1].astype(np.float32)
    return np.stack(parts, 1).reshape(-1, x.shape[-1])


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
