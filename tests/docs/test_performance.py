"""The generator of the performance table: what it makes of measurements, and of missing engines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.benchmarks import kernel_rows, onnx_rivals
from tests.benchmarks.onnx_rivals import OnnxNode
from tests.benchmarks.timing import Comparison, Interval, compare, limited
from tests.docs import performance


def _against(ratio: float) -> Comparison:
    interval = Interval(ratio * 0.9, ratio, ratio * 1.1)
    return Comparison("x", interval, Interval(0.9, 1.0, 1.1), 10.0, 10.0 / ratio)


def test_a_row_names_the_strongest_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_rows, "bytes_per_second", lambda nbytes: 1e9)
    monkeypatch.setattr(kernel_rows, "flops_per_second", lambda: 1e12)
    found = {"jit": 0.1, "best form": 0.5, "torch": 0.8, "onnxruntime": 1.25}
    row = kernel_rows.Row("sort", {k: _against(v) for k, v in found.items()}, 5000, 0)
    assert kernel_rows.cells(row) == [
        "sort",
        "10.0",
        "100.0",
        "0.100 [0.090, 0.110]",
        "0.50 (best form)",
        "1.25 (onnxruntime)",
        "1.25",
        "5.0 (bytes)",
        "2.0",
    ]
    alone = kernel_rows.Row("lstm", {"lax.scan": _against(0.5)}, 10, 2e6)
    assert kernel_rows.cells(alone)[4:] == ["0.50 (lax.scan)", "-", "-", "2.0 (flops)", "5.0"]
    read = kernel_rows.Row("int8", {"rule": _against(0.1), "read": _against(1.25)}, 10, 2e6)
    assert kernel_rows.cells(read)[4:] == ["0.10 (rule)", "-", "-", "8.0 (read)", "1.2"]


def test_the_table_of_kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(rounds: int) -> Iterator[kernel_rows.Row]:
        yield kernel_rows.Row("sort", {"jit": _against(0.1)}, 1 << 16, 1e6)

    monkeypatch.setattr(kernel_rows, "rows", rows)
    text = performance.kernels(2)
    assert text.splitlines()[-1].startswith("| sort | 10.0 | 100.0 | 0.100 [0.090, 0.110] | ")
    assert "sort: " in capsys.readouterr().err


def test_the_machine_itself_is_measured() -> None:
    assert kernel_rows.bytes_per_second(1 << 16) > 1e8
    assert kernel_rows.flops_per_second() > 1e8


def test_an_engine_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_rivals, "installed", lambda: False)
    assert onnx_rivals.runner(OnnxNode(kind="Softmax", inputs=[np.ones(3, np.float32)])) is None


@pytest.mark.skipif(not onnx_rivals.installed(), reason="onnxruntime is not installed")
def test_a_node_runs_in_onnxruntime(rng: np.random.Generator) -> None:
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((3, 8), (8, 5)))
    node = OnnxNode(kind="MatMul", inputs=[x], constants={1: w})
    run = onnx_rivals.runner(node)
    assert run is not None
    onnx_rivals.check(node, run, 0, (x @ w).T)
    with pytest.raises(AssertionError):
        onnx_rivals.check(node, run, 0, x @ w + 1)
    unknown = OnnxNode(kind="NoSuchKind", inputs=[x])
    assert onnx_rivals.runner(unknown) is None


def test_a_comparison_has_fewer_rounds_where_its_time_is_limited() -> None:
    calls: list[int] = []

    def run(count: int) -> None:
        calls.append(count)
        sum(range(20_000 * count))

    with limited(0.0):
        compare("x", run, run, run, rounds=30, round_seconds=0.001)
    few = len(calls)
    compare("x", run, run, run, rounds=30, round_seconds=0.001)
    assert few < 3 * 12 < len(calls) - few
