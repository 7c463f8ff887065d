"""What a language model's report says against what there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

from rlx.quant import open_gguf  # noqa: E402  (after importorskip)
from rlx_xla.generation.memory import resident  # noqa: E402
from rlx_xla.generation.model import LanguageModel  # noqa: E402
from rlx_xla.generation.report import KernelUse, ModelReport, weights_by_kind  # noqa: E402
from tests.rlx_xla import tiny_gguf  # noqa: E402

LAYERS = 5


def test_every_byte_and_kernel_is_told(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng, layers=LAYERS, downs=("Q4_0", "Q8_0"))
    model = LanguageModel(path)
    empty = model.report()
    assert (empty.programs, empty.state_bytes) == ((), 0)
    model.generate("the sea", max_tokens=2)
    report = model.report()
    assert report.weight_bytes == model.packed_bytes
    tensors = open_gguf(path).tensors.values()
    quantised = [t for t in tensors if t.scheme is not None]
    for name in ("gguf_q8_0", "gguf_q4_0"):
        sizes = [t.type.nbytes for t in quantised if str(t.scheme) == name]
        assert report.weights[name] == (len(sizes), sum(sizes))
    assert report.tied
    assert [(p.batch, p.tokens, p.capacity) for p in report.programs] == [*model.programs()]
    for use in report.programs:
        # Keys and values of f16: layers, heads, positions, features.
        assert use.caches == 2 * LAYERS * 2 * use.capacity * 16 * 2
        assert 0 < use.temps < 1 << 20
        calls = {k.op: k.calls for k in use.kernels if k.kernel.endswith("cpu.ffi")}
        # The last matrix of a layer is of two kinds: a branch counts as if it were taken.
        assert calls["dequant_matmul_pick"] == 8 * LAYERS
        assert calls["dequant_matmul"] == 1
    used = report.programs[0].caches + report.programs[0].temps + report.programs[0].outputs
    assert report.state_bytes >= used
    pieces = sum(map(len, model.tokenizer.pieces))
    assert pieces < report.tokenizer < 1 << 20
    lines = str(report).splitlines()
    assert lines[0].split()[:2] == ["weights", "gguf_q8_0"]
    assert "the head is the embedding: it is held once" in lines
    assert any(f"dequant_matmul_pick.cpu.ffi × {8 * LAYERS}" in line for line in lines)


def test_what_is_not_accounted_for_has_a_line() -> None:
    report = ModelReport({"f32": (1, 5 << 20)}, True, 1 << 20, (), 4 << 20, 9 << 20)
    assert report.rest == 3 << 20  # of the file's pages some are not in memory
    assert "modules, traces, what XLA keeps      3.00 MiB" in str(report).splitlines()
    unknown = ModelReport({"f32": (1, 5 << 20)}, True, 1 << 20, (), None, None)
    assert unknown.rest is None
    assert "modules" not in str(unknown)


def test_a_refusal_is_told_with_its_reason() -> None:
    use = KernelUse("dot_general", "", 3, ("dot_general.cpu.ffi: lhs is f64",))
    assert str(use) == "dot_general → XLA × 3; refused: dot_general.cpu.ffi: lhs is f64"


def test_what_two_uses_share_counts_once() -> None:
    array = np.zeros((3, 4), np.float32)
    assert weights_by_kind({"a": array, "b": [array, np.zeros(2, np.float16)]}) == {
        "float32": (1, 48),
        "float16": (1, 4),
    }


@pytest.mark.skipif(resident() is None, reason="needs /proc")
def test_memory_of_the_process_and_of_a_file(tmp_path: Path) -> None:
    import mmap

    path = (tmp_path / "pages").resolve()
    path.write_bytes(bytes(1 << 20))
    names = frozenset([str(path)])
    assert resident(names) == 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == 0
        assert resident(names) == 1 << 20
    assert (resident() or 0) > 1 << 20
