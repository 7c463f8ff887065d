"""The sources of kernels for NVIDIA GPUs, as far as they can be examined without one."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.dtypes import DType
from rlx.ops.quantized import DequantMatmul
from rlx.ops.reduction import CumSum
from rlx.ops.sequence import GatedDeltaNet, Gru, Lstm, Rnn, SelectiveScan
from rlx.types import TensorType
from rlx_xla.kernels import nvrtc, ptx
from rlx_xla.kernels.base import Refused
from rlx_xla.kernels.library.cuda import (
    cumsum,
    dequant_columns,
    dequant_matmul,
    gated_delta_net,
    recurrent,
    selective_scan,
)
from rlx_xla.kernels.ptx import Launch
from rlx_xla.kernels.select import kernels_for

SOURCES = sorted(
    file.name
    for file in files("rlx_xla.kernels").joinpath("cuda").iterdir()
    if file.name.endswith(".cu")
)
needs_nvrtc = pytest.mark.skipif(
    isinstance(nvrtc.load(), nvrtc.Unavailable), reason="NVRTC is not installed"
)


@pytest.mark.parametrize("name", SOURCES)
def test_what_a_source_includes_is_joined_once(name: str) -> None:
    text = ptx.source_text(name)
    assert "#include" not in text
    assert text.count("typedef unsigned int u32;") == 1
    for function in ("void copy16(", "float widen(stored x) { return x; }"):
        assert text.count(function) <= 1


def _type(text: str) -> TensorType:
    return rlx.GraphBuilder().input("x", text).type


def _dequant(scheme: str, x: str) -> Launch:
    types = [_type(x), TensorType(DType.U8, (1,))]
    results = [types[0].with_shape((types[0].shape[0], 4096))]
    return dequant_matmul.launch(DequantMatmul(scheme=scheme), types, results)


def _columns(scheme: str, x: str, *others: str) -> Launch:
    types = [_type(text) for text in (x, *others)]
    op = DequantMatmul(scheme=scheme)
    return dequant_columns.launch(op, types, [op.infer(*types)], clusters=False)


LAUNCHES: dict[str, tuple[str, Callable[[], Launch]]] = {
    **{
        f"dequant_matmul {scheme} {x}": (
            "dequant_matmul.cu",
            lambda scheme=scheme, x=x: _dequant(scheme, x),
        )
        for scheme, x in (
            ("gguf_q4_0", "f32[5, 2048]"),
            ("gguf_q4k", "bf16[8, 2048]"),
            ("gguf_q6k", "f16[8, 2048]"),
        )
    },
    **{
        f"dequant_matmul {scheme}": (
            "dequant_columns.cu",
            lambda scheme=scheme, types=types: _columns(scheme, *types),
        )
        for scheme, types in {
            "int8a/64": ("f32[5, 64]", "i8[64, 48]", "f32[1, 48]", "f32[1, 48]"),
            "int4/32": ("bf16[16, 96]", "u8[2304]", "f32[3, 48]", "f32[3, 48]"),
            "fp8e5m2": ("f16[1, 64]", "u8[64, 48]", "f32[48]"),
            "nvfp4/16": ("bf16[1, 64]", "u8[1536]", "u8[4, 48]", "f32[1]"),
        }.items()
    },
    "cumsum": (
        "cumsum.cu",
        lambda: cumsum.launch(CumSum(axis=1), [_type("bf16[131, 5001]")], []),
    ),
    "gated_delta_net": (
        "gated_delta_net.cu",
        lambda: gated_delta_net.launch(
            GatedDeltaNet(state_size=64, gate_per_channel=True), [_type("f16[2, 65, 3, 64]")], []
        ),
    ),
    "selective_scan": (
        "selective_scan.cu",
        lambda: selective_scan.launch(SelectiveScan(state_size=16), [_type("f32[2, 63, 20]")], []),
    ),
    "lstm": ("recurrent.cu", lambda: recurrent.launch(Lstm(hidden_size=256), 17, 33)),
    "gru": ("recurrent.cu", lambda: recurrent.launch(Gru(hidden_size=200, carry=True), 17, 33)),
    "rnn": ("recurrent.cu", lambda: recurrent.launch(Rnn(hidden_size=64), 3, 33)),
    "a wide lstm": ("recurrent.cu", lambda: recurrent.launch(Lstm(hidden_size=384), 28, 33)),
    "a wide gru": ("recurrent.cu", lambda: recurrent.launch(Gru(hidden_size=300), 65, 33)),
}


@needs_nvrtc
@pytest.mark.parametrize("name", LAUNCHES)
def test_sources_compile(name: str) -> None:
    compiler = nvrtc.load()
    assert isinstance(compiler, nvrtc.Compiler)
    source, make = LAUNCHES[name]
    started = make()
    clusters = source == "recurrent.cu"
    for architecture in ("compute_90",) if clusters else ("compute_80", "compute_90"):
        text = compiler.ptx(
            ptx.source_text(source),
            name=source,
            architecture=architecture,
            defines=started.defines,
        )
        assert f".entry {started.entry}" in text
        # The oldest GPUs that we write for have no such instruction.
        assert architecture == "compute_90" or "sub.rn.bf16x2" not in text


@pytest.mark.parametrize(("dtype", "parts"), [(np.float32, 3), (np.float16, 2)])
def test_a_warp_reads_the_parts_that_it_made(
    dtype: Any, parts: int, rng: np.random.Generator
) -> None:
    """What ``SPLIT`` of dequant_matmul.cu does in shared memory, lane by lane."""
    rows, pitch, bf16 = 3, dequant_matmul.PARTS_PITCH, ml_dtypes.bfloat16
    x = (rng.standard_normal((rows, 256)) * 10.0 ** rng.integers(-6, 4, (rows, 256))).astype(dtype)
    memory = np.zeros(rows * parts * pitch, np.uint8)
    for lane in range(32):
        for m in range(rows):
            for half in range(2):
                at = half * 128 + 4 * lane
                left = x[m, at : at + 4].astype(np.float32)
                for p in range(parts):
                    taken = left.astype(bf16)
                    left = left - taken.astype(np.float32)
                    to = (m * parts + p) * pitch + half * 256 + 8 * lane
                    memory[to : to + 8] = taken.view(np.uint8)
    found = np.zeros((rows * parts, 256), np.float64)
    for column in range(rows * parts):
        for t in range(4):
            for group in range(8):
                for half in range(2):
                    at = column * pitch + group * 64 + 8 * t + 32 * half
                    k = group * 32 + 16 * half + 4 * t
                    found[column, k : k + 4] = memory[at : at + 8].view(bf16).astype(np.float64)
    whole = found.reshape(rows, parts, 256).sum(1)
    exact = x.astype(np.float64)
    if parts == 3:
        np.testing.assert_array_equal(whole, exact)  # three times eight bits are all of f32
    else:
        np.testing.assert_allclose(whole, exact, rtol=2.0**-16)


def test_lanes_of_half_a_warp_read_different_banks() -> None:
    for lanes in (range(16), range(16, 32)):
        words = [
            (dequant_matmul.PARTS_PITCH * (lane >> 2) + 8 * (lane & 3)) // 4 + w
            for lane in lanes
            for w in range(2)
        ]
        assert len({word % 32 for word in words}) == 32


@pytest.mark.parametrize(
    ("kind", "gates", "widest"), [(Lstm, 4, 384), (Gru, 3, 448), (Rnn, 1, 512)]
)
def test_weights_of_wide_networks_fit(kind: Any, gates: int, widest: int) -> None:
    for hidden in range(257, widest + 1):
        for batch in (1, 28, 65):
            started = recurrent.launch(kind(hidden_size=hidden), batch, 9)
            threads, rows = started.block[0], started.defines["ROWS"]
            width = -(-hidden // 64) * 64
            assert threads <= 1024
            assert started.shared_bytes + 2 * rows * width * 4 <= 227 * 1024
            kept = started.defines["KEPT"]
            assert kept % 4 == 0
            assert started.shared_bytes == 4 * gates * (width // 16 - kept) * threads
            # Registers of a thread, of which a quarter of a multiprocessor has 16,384.
            assert gates * kept + 40 <= 16_384 // (32 * -(-threads // 128))


def test_a_gru_that_resets_its_state_first_is_refused() -> None:
    op = Gru(hidden_size=200, reset_after=False)
    types = ["f32[2, 9, 5]", "f32[3000]", "f32[1, 600, 200]", "f32[1, 600]", "f32[1, 600]"]
    for kernel in kernels_for(Gru, "cuda"):
        verdict = kernel.supports(op, [_type(t) for t in types], "cuda")
        assert verdict == Refused(
            "reset_after=False: a second product of each step would wait for the first"
        )


def test_what_wide_networks_are_refused() -> None:
    for op, widest, batch in ((Lstm, 384, 48), (Gru, 448, 48), (Rnn, 512, 24)):
        (wide,) = [k for k in kernels_for(op, "cuda") if k.name.endswith(".wide")]
        (plain,) = [k for k in kernels_for(op, "cuda") if k.name.endswith(".ptx")]
        for kernel, most, where in (
            (wide, widest, "registers and shared memory"),
            (plain, 256, "registers"),
        ):
            verdict = kernel.supports(op(hidden_size=most + 1), [_type("f32[2, 5, 8]")], "cuda")
            assert isinstance(verdict, Refused)
            assert verdict.reason == (
                f"hidden_size {most + 1} is above {most}: its weights do not fit into {where}"
            )
        for both, count in ((False, batch + 1), (True, batch // 2 + 1)):
            made = op(hidden_size=300, bidirectional=both)
            verdict = wide.supports(made, [_type(f"f32[{count}, 5, 8]")], "cuda")
            assert isinstance(verdict, Refused)
            assert verdict.reason == (
                f"f32[{count}, 5, 8] has more than {batch} sequences of a direction"
            )


@pytest.mark.parametrize(
    ("scheme", "types", "reason"),
    [
        ("gguf_q8_0", ["f32[1, 64]", "u8[32, 68]"], "scheme gguf_q8_0 is of none of int8, int8a"),
        ("int8/32", ["f64[1, 64]", "i8[64, 32]", "f32[2, 32]"], "x is f64 and none of f32, bf16"),
        ("int8/32", ["f32[6, 64]", "i8[64, 32]", "f32[2, 32]"], "6 rows of f32 are outside 1 to 5"),
        ("int8/32", ["bf16[0, 64]", "i8[64, 32]", "f32[2, 32]"], "0 rows of bf16 are outside 1"),
        ("int8/32", ["f32[1, 72]", "i8[72, 32]", "f32[3, 32]"], "K = 72 or N = 32 is no multiple"),
        ("int8/32", ["f32[1, 64]", "i8[64, 40]", "f32[2, 40]"], "K = 64 or N = 40 is no multiple"),
        ("int8/8", ["f32[1, 64]", "i8[64, 32]", "f32[8, 32]"], "8 rows of a scale are under 16"),
        ("int8/48", ["f32[1, 96]", "i8[96, 32]", "f32[2, 32]"], "48 rows of a scale are neither"),
    ],
)
def test_what_columns_are_refused(scheme: str, types: list[str], reason: str) -> None:
    (kernel,) = [k for k in kernels_for(DequantMatmul, "cuda") if k.name.endswith(".columns")]
    made = [_type(text) for text in types]
    DequantMatmul(scheme=scheme).infer(*made)
    verdict = kernel.supports(DequantMatmul(scheme=scheme), made, "cuda")
    assert isinstance(verdict, Refused)
    assert verdict.reason.startswith(reason)


@pytest.mark.parametrize("clusters", [False, True])
def test_every_warp_of_a_product_with_columns_has_a_turn(clusters: bool) -> None:
    for outer in (16, 128, 2048, 3088, 4096, 8192, 14336, 128256):
        for inner in (16, 48, 512, 2048, 8192):
            for rows in (1, 5, 16):
                types = [
                    TensorType(DType.BF16, (rows, inner)),
                    TensorType(DType.I8, (inner, outer)),
                    TensorType(DType.F32, (1, outer)),
                ]
                started = dequant_columns.launch(
                    DequantMatmul(scheme=f"int8/{inner}"),
                    types,
                    [TensorType(DType.BF16, (rows, outer))],
                    clusters=clusters,
                )
                found = started.defines
                assert found["CLUSTER"] * found["WARPS"] <= -(-inner // 32)
                assert found["CLUSTER"] == 1 or clusters
                assert started.grid[0] * 128 >= outer * found["CLUSTER"]
                inbox = 512 * rows
                assert (started.shared_bytes + inbox) * found["BLOCKS"] <= 227 * 1024
