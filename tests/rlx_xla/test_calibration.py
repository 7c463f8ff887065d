"""Bounds of kernels: packaged, measured on this machine, and files that must not be believed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import rlx
from rlx.dtypes import DType
from rlx.errors import RegistryError, RunError
from rlx.ops.quantized import DequantMatmul
from rlx.ops.reduction.cumulative import CumSum
from rlx.ops.sorting import TopK
from rlx.options.dispatch import KernelPolicy
from rlx.types import as_type
from rlx_xla.cli import bench
from rlx_xla.cli.main import app
from rlx_xla.kernels import calibration, ffi
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.calibration import all_bounds, bound, described, forget, open_all, store
from rlx_xla.kernels.calibration import measure as measuring
from rlx_xla.kernels.calibration.bounds import MEASURED_ON
from rlx_xla.kernels.calibration.cases import CASES
from rlx_xla.kernels.calibration.measure import bound_of, calibrate
from rlx_xla.kernels.library import top_k
from rlx_xla.kernels.select import kernels_for


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if isinstance(library := ffi.load(), ffi.Unavailable):
        pytest.skip(library.reason)
    monkeypatch.setenv("HOME", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def _verdict(size: int) -> Supported | Refused:
    (kernel,) = (k for k in kernels_for(TopK, "cpu") if k.name == "top_k.cpu.ffi")
    return kernel.supports(TopK(k=2), [as_type(f"f32[3, {size}]")], "cpu")


def test_without_a_file_the_packaged_numbers_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert top_k.MIN_SIZE[DType.F32].value == 64
    assert _verdict(64) == Supported()
    monkeypatch.setattr(store, "features", lambda: MEASURED_ON)
    assert described() == f"packaged, measured on {MEASURED_ON}"
    monkeypatch.setattr(store, "features", lambda: "x86_64-avx2")
    assert described() == (
        f"packaged, measured on {MEASURED_ON}; this CPU is x86_64-avx2, and nearest to that"
    )


def test_a_file_of_this_machine_is_used_and_the_report_says_so() -> None:
    file = store.write({"top_k.cpu.ffi/f32": 100})
    assert file == store.path()
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    forget()
    assert _verdict(99) == Refused("rows of 99 elements are outside 100 to 2147483647")
    assert _verdict(100) == Supported()
    assert described() == (f"measured on this machine, 1 of {len(all_bounds())} ({store.path()})")
    b = rlx.GraphBuilder("g")
    graph = b.build(TopK(k=2)(b.input("x", "f32[3, 128]"))[0])
    report = rlx.Session("cpu").compile(graph).report()
    assert report.decisions == (f"kernel bounds: {described()}",)


@pytest.mark.parametrize(
    ("of", "type_", "told"),
    [
        ("the bound refuses", "f32[3, 4]", True),
        ("no kernel takes the dtype, whatever its size", "c64[3, 400]", False),
    ],
)
def test_a_bound_that_refuses_is_told(of: str, type_: str, told: bool) -> None:
    b = rlx.GraphBuilder("g")
    graph = b.build(CumSum(axis=1)(b.input("x", type_)))
    report = rlx.Session("cpu").compile(graph).report()
    (choice,) = (c for c in report.choices if c.op == "cumsum")
    assert choice.kind == "rule"
    assert any(r.startswith("cumsum.cpu.ffi: ") for r in choice.refused)
    lines = (f"kernel bounds: {described()}",) if told else ()
    assert report.decisions == lines, of


def test_a_bound_that_leaves_a_decomposition_is_told() -> None:
    b = rlx.GraphBuilder("g")
    w = b.param("w", "u8[8, 34]")
    graph = b.build(DequantMatmul(scheme="gguf_q8_0")(b.input("x", "f32[1100, 32]"), w))
    report = rlx.Session("cpu").compile(graph).report()
    assert report.decisions == (f"kernel bounds: {described()}",)


@pytest.mark.parametrize("type_", ["f32[3, 400]", "f32[3, 4]"])
def test_kernels_that_an_option_leaves_out_say_nothing_of_bounds(type_: str) -> None:
    b = rlx.GraphBuilder("g")
    graph = b.build(CumSum(axis=1)(b.input("x", type_)))
    options = rlx.CompileOptions(
        kernel_dispatch=rlx.KernelDispatch(policy=KernelPolicy.FORCE_COMMON)
    )
    assert rlx.Session("cpu").compile(graph, options=options).report().decisions == ()


def test_a_program_without_such_kernels_says_nothing_of_bounds() -> None:
    b = rlx.GraphBuilder("g")
    graph = b.build(-b.input("x", "f32[3]"))
    assert rlx.Session("cpu").compile(graph).report().decisions == ()


def _content(**changes: Any) -> str:
    content: dict[str, Any] = {
        "format": store.FORMAT,
        "features": store.features(),
        "library": store.library_version(),
        "bounds": {"top_k.cpu.ffi/f32": 3},
    }
    return json.dumps({**content, **changes})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 2}, "its format is 2 and not 1"),
        ({"format": True}, "its format is True and not 1"),
        ({"features": "z80"}, "its features is 'z80' and not "),
        ({"library": "0.0.1+0"}, "its library is '0.0.1+0' and not "),
        ({"bounds": [1]}, "it has no object of bounds"),
        ({"bounds": {"top_k.cpu.ffi/f32": -1}}, "the bound 'top_k.cpu.ffi/f32' is -1"),
        ({"bounds": {"top_k.cpu.ffi/f32": 2**63}}, "the bound 'top_k.cpu.ffi/f32' is 9"),
        ({"bounds": {"top_k.cpu.ffi/f32": 1.5}}, "the bound 'top_k.cpu.ffi/f32' is 1.5"),
        ({"bounds": {"top_k.cpu.ffi/f32": True}}, "the bound 'top_k.cpu.ffi/f32' is True"),
        ({"bounds": {"top_k.cpu.ffi/f32": "x" * 99}}, "is 'xxx"),
    ],
)
def test_a_file_that_does_not_fit_is_left_aside(changes: dict[str, Any], problem: str) -> None:
    _left_aside(_content(**changes).encode(), problem)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it is not JSON"),
        (b"\xff\x00\x01", "it is not JSON"),
        (b"[1]", "it is not an object"),
        (b"NaN", "it is not an object"),
        (b"[" * 60_000, "it is not JSON"),
        (b'{"format": 1' + b"0" * 6000 + b"}", "it is not JSON"),
        (b" " * (store.MAX_BYTES + 1), f"it is larger than {store.MAX_BYTES} bytes"),
    ],
)
def test_garbage_is_left_aside(data: bytes, problem: str) -> None:
    _left_aside(data, problem)


def test_drawn_garbage_is_left_aside(rng: np.random.Generator) -> None:
    good = bytearray(_content(), "utf-8")
    for _ in range(50):
        data = good.copy()
        for at in rng.integers(0, len(data), 3):
            data[at] = rng.integers(256)
        _put(bytes(data))
        assert top_k.MIN_SIZE[DType.F32].value >= 0
        assert described()


def _put(data: bytes) -> None:
    store.path().parent.mkdir(parents=True, exist_ok=True)
    store.path().write_bytes(data)
    forget()


def _left_aside(data: bytes, problem: str) -> None:
    _put(data)
    assert top_k.MIN_SIZE[DType.F32].value == 64
    assert f"; {store.path()} is left aside: " in described()
    assert problem in described()


def test_a_folder_in_the_files_place_is_left_aside() -> None:
    store.path().mkdir(parents=True)
    assert top_k.MIN_SIZE[DType.F32].value == 64
    assert described().endswith("is left aside: it cannot be read (Is a directory)")


def test_an_unknown_name_in_a_file_is_harmless() -> None:
    _put(_content(bounds={"no.such.kernel/size": 3}).encode())
    assert top_k.MIN_SIZE[DType.F32].value == 64


def test_a_file_that_cannot_be_written_is_an_error(home: Path) -> None:
    (home / ".cache").write_text("in the way")
    with pytest.raises(RunError) as caught:
        store.write({})
    assert str(caught.value) == (
        f"calibration: a folder that can be written is required for {store.path()}; got Not a "
        "directory. Free space there, or set HOME to another folder."
    )


@pytest.mark.parametrize(
    ("ratios", "least", "value"),
    [
        ((0.5, 0.5, 0.5), True, 1),
        ((2.0, 0.5, 0.5), True, 4),
        ((0.5, 2.0, 0.5), True, 16),
        ((0.5, 0.5, 1.0), True, store.NEVER),
        ((0.5, 0.5, 0.5), False, 16),
        ((0.5, 1.0, 0.5), False, 1),
        ((1.0, 0.5, 0.5), False, 0),
    ],
)
def test_a_bound_is_where_every_size_beyond_gains(
    ratios: tuple[float, ...], least: bool, value: int
) -> None:
    assert bound_of((1, 4, 16), ratios, least=least) == value


def test_within_open_all_every_size_is_admitted() -> None:
    store.write({"top_k.cpu.ffi/f32": store.NEVER})
    forget()
    assert isinstance(_verdict(128), Refused)
    with open_all():
        assert _verdict(128) == Supported()
    assert isinstance(_verdict(128), Refused)


def test_every_case_has_its_bound_and_is_taken_by_its_kernel() -> None:
    bounds = {b.name: b for b in all_bounds()}
    assert set(CASES) <= set(bounds)
    with open_all():
        for name, case in CASES.items():
            graph = case(bounds[name].sizes[0])
            (op,) = {n.op for n in graph.nodes() if n.inputs}
            (kernel,) = (k for k in kernels_for(type(op), "cpu") if name.startswith(k.name))
            types = [v.type for v in graph.inputs]
            assert kernel.supports(op, types, "cpu") == Supported(), name


def test_a_calibration_measures_writes_and_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "CASES", {n: CASES[n] for n in ("top_k.cpu.ffi/f32",)})
    monkeypatch.setattr(measuring, "_SECONDS", 0.01)
    seen: list[tuple[int, int, str]] = []
    (found,) = calibrate(lambda done, count, m: seen.append((done, count, m.bound.name)))
    assert seen == [(1, 1, "top_k.cpu.ffi/f32")]
    assert len(found.ratios) == len(found.bound.sizes)
    assert all(r > 0 for r in found.ratios)
    assert found.value in (*found.bound.sizes, store.NEVER)
    assert top_k.MIN_SIZE[DType.F32].value == found.value
    assert str(found).startswith("top_k.cpu.ffi/f32: ")


def test_the_command_measures_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_ratio", lambda graph, kernel: 0.5)
    result = CliRunner().invoke(app, ["bench", "--calibrate", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["file"] == str(store.path())
    assert set(found["bounds"]) == set(CASES)
    assert json.loads(store.path().read_text())["bounds"]["top_k.cpu.ffi/f32"] == 16
    result = CliRunner().invoke(app, ["bench", "--calibrate"])
    assert f"kernel bounds: measured on this machine, {len(CASES)} of" in result.stdout


def test_the_command_takes_a_program_or_calibrates() -> None:
    with pytest.raises(RunError) as caught:
        bench.bench(None)
    assert str(caught.value) == (
        "bench: a program MODULE:NAME is required, or --calibrate; got neither. Name a JAX "
        "function."
    )
    with pytest.raises(RunError) as caught:
        bench.bench("m:f", calibrate=True)
    assert str(caught.value) == (
        "bench: no program is required with --calibrate; got 'm:f'. Leave one of them out."
    )


def test_without_a_library_there_is_nothing_to_calibrate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffi, "load", lambda: ffi.Unavailable("built without a C++ compiler"))
    with pytest.raises(RunError) as caught:
        calibrate()
    assert str(caught.value) == (
        "calibrate: the C++ kernels are required; built without a C++ compiler. There is nothing "
        "to measure without them."
    )


def test_bounds_have_one_name_each_and_ascending_sizes() -> None:
    with pytest.raises(RegistryError) as caught:
        bound("top_k.cpu.ffi/f32", 1, (1, 2))
    assert str(caught.value) == ("bound: the name 'top_k.cpu.ffi/f32' is taken. Choose another.")
    with pytest.raises(RegistryError) as caught:
        bound("x.cpu.ffi/size", 1, (2, 1))
    assert str(caught.value) == (
        "bound 'x.cpu.ffi/size': ascending sizes to measure are required; got (2, 1). Sort them."
    )
    assert calibration.bound is bound
