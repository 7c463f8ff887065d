"""Names of targets, and how a compiler's errors are read; no compiler is needed."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import CompileError, DeviceError, DimError, FormatError, RunError, TraceError
from rlx_xla.aot import Artifact, FailureKind, compiling, known_targets, parse_target
from rlx_xla.aot.artifact import read_artifact
from rlx_xla.aot.compiling import failure_of
from rlx_xla.aot.hlo_text import fusions
from rlx_xla.aot.lowering import lower_for
from rlx_xla.aot.preflight import report_of


@pytest.mark.parametrize(
    ("name", "whole", "compiler", "devices"),
    [
        ("tpu:v5e:2x2", "tpu:v5e:2x2", "v5e:2x2", 4),
        ("v5e-1", "tpu:v5e:1x1", "v5e:1x1", 1),
        ("v5litepod-8", "tpu:v5e:2x4", "v5e:2x4", 8),
        ("TPU:V6E", "tpu:v6e:1x1", "v6e:1x1", 1),
        ("v7x", "tpu:tpu7x:1x1x1", "tpu7x:1x1x1", 2),
        ("tpu:tpu7x:2x2x1", "tpu:tpu7x:2x2x1", "tpu7x:2x2x1", 8),
        ("v4-8", "tpu:v4:2x2x1", "v4:2x2x1", 8),
        ("h100", "cuda:h100", "", 1),
        ("cuda:h200:1", "cuda:h200", "", 1),
        ("rocm:mi300x", "rocm:mi300x", "", 1),
    ],
)
def test_names(name: str, whole: str, compiler: str, devices: int) -> None:
    target = parse_target(name)
    assert (target.name, target.topology_name, target.devices) == (whole, compiler, devices)
    single = target.platform == "tpu" and np.prod(target.topology) == 1
    assert ("chips_per_host_bounds" in target.options) == single


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("tpu:v9", r"target 'tpu:v9' is unknown; known are tpu:v2:1x1, .*Did you mean"),
        ("cuda:v5e", "is unknown"),
        (None, "target None is unknown; known are tpu:v2:1x1"),
        ("v5e-3", r"a number of chips that a TPU v5 lite is sold in is required \(1, 4, 8"),
        ("tpu:v5e:2x2x2", "a topology of 2 axes, such as 2x2, is required"),
        ("tpu:v5p:0x1x1", "a topology of 3 axes"),
        (
            "tpu:v5e:3x3",
            r"^target 'tpu:v5e:3x3': one chip \(1x1\), or a topology whose first two axes are even "
            r"\(a host has 2x2 chips\), is required; got 3x3\. Take 2x2, 2x4, 4x4 or larger\.$",
        ),
        ("tpu:v4:2x1x2", r"one chip \(1x1x1\), .*; got 2x1x2\. Take 2x2x1, 2x2x2, 2x2x4 or larger"),
        ("tpu:v5e:two", "a topology such as 2x2 is required; got 'two'"),
        ("cuda:h100:2", "one GPU is compiled for ahead of time; got 2"),
    ],
)
def test_wrong_names(name: str, match: str) -> None:
    with pytest.raises(DeviceError, match=match):
        parse_target(name)


def test_options_of_another_type_are_refused() -> None:
    message = r"compile: options are required as rlx.CompileOptions\(...\); got dict."
    with pytest.raises(CompileError, match=message):
        rlx_xla.preflight(abs, "f32[2]", target="v5e-1", options={"strict": True})  # pyright: ignore[reportArgumentType]
    b = rlx.GraphBuilder("g")
    with pytest.raises(CompileError, match=message):
        rlx.Session("cpu").compile(b.build(b.input("x", "f32[2]")), options={"strict": True})  # pyright: ignore[reportArgumentType]


def test_every_known_target_reads_back() -> None:
    for name in known_targets():
        assert parse_target(name).name == name


def test_errors_of_compilers() -> None:
    failure = failure_of(
        "JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required "
        "for HLO temporaries (54.77G) exceeds available HBM (15.75G)."
    )
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert (failure.needed, failure.available) == (int(54.77 * 2**30), int(15.75 * 2**30))
    failure = failure_of(
        'INVALID_ARGUMENT: no; metadata={op_name="jit(f)/dot" source_file="m.py" source_line=3}'
    )
    assert failure.kind is FailureKind.REFUSED
    assert (failure.op, failure.line) == ("jit(f)/dot", "m.py:3")
    assert str(failure).startswith("refused (jit(f)/dot at m.py:3): ")


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"not installed. Install it: pip install 'rlx-xla\[tpu"):
        rlx_xla.preflight(lambda x: x + 1, "f32[3]", target="v5e-1")


def test_rocm_is_lowered_and_says_why_it_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    report = rlx_xla.preflight(lambda x: x @ x, "f32[64, 64]", target="rocm:mi300x")
    assert not report.ok
    assert report.fits is None
    assert report.largest[0].nbytes == 4 * 64 * 64
    assert report.flops == 2 * 64**3
    assert str(report.failure) == (
        "lowered, and not compiled: the compiler for rocm is required; it is not installed. "
        "Install it: pip install 'rlx-xla[rocm-aot]'"
    )
    with pytest.raises(DeviceError, match=r"target 'rocm:mi300x': the compiler for rocm is"):
        rlx_xla.aot(lambda x: x + 1, "f32[3]", target="rocm:mi300x")


def test_a_plugin_that_does_not_load_says_which_library_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "jax_plugins" / "xla_rocm7"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").touch()
    (plugin / "xla_rocm_plugin.so").write_bytes(b"no library")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compiling, "missing", lambda target: None)
    made = compiling.compile_each(["module {}", "module {}"], parse_target("mi300x"))
    assert len(made) == 2  # one start tells of both
    for compilation in made:
        assert compilation.unstarted
        assert "the plugin for ROCm does not load" in str(compilation.failure)
        assert "xla_rocm_plugin.so" in str(compilation.failure)


HLO = """HloModule rlx_f, is_scheduled=true

%inner (p: f32[4]) -> f32[4] {
  %p = f32[4]{0:T(128)} parameter(0)
  ROOT %t = f32[4]{0:T(128)} tanh(%p)
}

%outer (a: f32[4], b: f32[4]) -> f32[4] {
  %a = f32[4]{0:T(128)} parameter(0)
  %b = f32[4]{0:T(128)} parameter(1)
  %f = f32[4]{0:T(128)} fusion(%a), kind=kLoop, calls=%inner
  %m = f32[4]{0:T(128)} multiply(%f, %b)
  ROOT %n = f32[4]{0:T(128)} multiply(%m, %m)
}

%alone (c: f32[4]) -> f32[4] {
  %c = f32[4]{0:T(128)} parameter(0)
  ROOT %d = f32[4]{0:T(128)} bitcast(%c)
}

ENTRY %main (x: f32[4], y: f32[4]) -> f32[4] {
  %x = f32[4]{0:T(128)} parameter(0)
  %y = f32[4]{0:T(128)} parameter(1)
  %g = f32[4]{0:T(128)} fusion(%x), kind=kLoop, calls=%alone
  ROOT %h = f32[4]{0:T(128)} fusion(%g, %y), kind=kLoop, calls=%outer, WHERE
}
""".replace(
    "WHERE",
    'metadata={op_name="f" source_file="/home/me/model.py" source_line=7}, '
    'backend_config={"estimated_cycles":"1234"}',
)


def test_what_was_fused_is_read_from_the_program() -> None:
    (found,) = fusions(HLO)
    assert found.ops == (("multiply", 2), ("tanh", 1))
    assert str(found) == "multiply × 2, tanh → f32[4] at model.py:7, 1,234 cycles"
    assert fusions("") == []


@pytest.mark.parametrize(
    ("code", "kind", "words", "timeout"),
    [
        ("import os; os.abort()", FailureKind.ABORTED, "exit code -6", 90),
        ("import sys; sys.exit('F1 Check failed: it broke')", FailureKind.ABORTED, "it broke", 90),
        ("x = b'1' * (1 << 29); import time; time.sleep(60)", FailureKind.COMPILER_MEMORY, "", 45),
        ("import time; time.sleep(60)", FailureKind.TIMED_OUT, "", 0.5),
    ],
)
def test_whatever_a_compiler_does_is_an_answer(
    code: str,
    kind: FailureKind,
    words: str,
    timeout: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "rlx_bad_compiler.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compiling, "CHILD", "rlx_bad_compiler")
    monkeypatch.setattr(compiling, "missing", lambda target: None)
    target = parse_target("v5e-1")
    made = compiling.compile_text("module {}", target, timeout=timeout, memory_limit=1 << 28)
    assert made.failure is not None
    assert made.failure.kind is kind
    assert words in made.failure.message


def test_what_is_asked_for_is_checked() -> None:
    with pytest.raises(TraceError, match="a JAX function, a Graph, a Module or a traced function"):
        rlx_xla.preflight(3, target="v5e-1")
    with pytest.raises(DimError, match="every size is required to be known; b are symbols"):
        rlx_xla.preflight(lambda x: x + 1, "f32[b]", target="v5e-1")
    b = rlx.GraphBuilder()
    graph = b.build(b.input("x", "f32[3]") * 2.0)
    with pytest.raises(TraceError, match="arguments are for functions"):
        rlx_xla.preflight(graph, 1.0, target="v5e-1")


def test_what_does_not_lower_is_listed_with_lines() -> None:
    import jax.numpy as jnp

    target = parse_target("v5e-1")
    traced = rlx_xla.trace(lambda a: jnp.linalg.eig(a)[0], "f32[4, 4]")
    lowered = lower_for(traced.graph, target, rlx.CompileOptions())
    report = report_of(lowered, target, None)
    (named,) = report.unsupported
    assert named.what == "eig"
    assert "test_aot_targets.py" in named.where
    assert "no general eigenvalues on TPUs" in named.detail
    assert not report.ok
    assert report.fits is None
    assert json.loads(report.to_json())["unsupported"][0]["what"] == "eig"


def test_what_is_slow_to_compile_has_a_suggestion() -> None:
    import jax.numpy as jnp

    def function(x: Any, y: Any) -> Any:
        return jnp.sort(x), jnp.cumsum(y, axis=0), jnp.cumsum(y, axis=1)

    traced = rlx_xla.trace(function, "f32[65536]", "f32[70000, 4]")
    for name, count in (("v5e-1", 2), ("h100", 0)):
        target = parse_target(name)
        lowered = lower_for(traced.graph, target, rlx.CompileOptions())
        assert len(report_of(lowered, target, None).slow_compile) == count
    target = parse_target("v5e-1")
    found = report_of(lower_for(traced.graph, target, rlx.CompileOptions()), target, None)
    lines = sorted(str(named) for named in found.slow_compile)
    assert re.fullmatch(
        r"cumsum of f32\[70000, 4\] at test_aot_targets\.py:\d+: TPU compilers take up to a minute "
        r"for 65,536 elements in a row; a jax\.lax\.scan over chunks of some thousand compiles at "
        r"once",
        lines[0],
    )
    assert lines[1].startswith("sort of f32[65536] at ")


def _artifact() -> Artifact:
    return Artifact(
        name="f",
        target="tpu:v5e:1x1",
        inputs=(("x", rlx.TensorType(rlx.DType.F32, (3,))),),
        params=(),
        outputs=(rlx.TensorType(rlx.DType.F32, (3,)),),
        hlo="HloModule f",
        stablehlo="module {}",
        serialized=b"code",
        memory={"temp": 3},
        versions={"jax": "0"},
    )


def test_artifacts_save_and_read(tmp_path: Path) -> None:
    path = tmp_path / "f.rlxa"
    _artifact().save(path)
    assert read_artifact(path) == _artifact()


def test_damaged_artifacts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.rlxa"
    path.write_bytes(b"not a zip")
    with pytest.raises(FormatError, match=r"a file of rlx_xla\.aot is required"):
        rlx_xla.load_artifact(path)
    _artifact().save(path)
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    parts["executable.bin"] = b"other"
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts.items():
            file.writestr(name, data)
    with pytest.raises(FormatError, match="is damaged: its code has another checksum"):
        rlx_xla.load_artifact(path)
    for missing, found in ((tmp_path / "none.rlxa", "cannot be read"), (tmp_path, "is a folder")):
        with pytest.raises(FormatError, match=rf"^load_artifact \[file\]: .* {found}"):
            rlx_xla.load_artifact(missing)


def test_an_artifact_that_is_damaged_anywhere_is_refused(tmp_path: Path) -> None:
    path, damaged = tmp_path / "f.rlxa", tmp_path / "damaged.rlxa"
    made = dataclasses.replace(_artifact(), serialized=bytes(range(256)) * 4, hlo="HloModule\n" * 9)
    made.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng()
    versions = [whole[:end] for end in range(0, len(whole), 7)]
    for at in range(len(whole)):
        other = bytearray(whole)
        other[at] ^= int(rng.integers(1, 256))
        versions.append(bytes(other))
    refused = 0
    for data in versions:
        damaged.write_bytes(data)
        try:
            assert read_artifact(damaged) == made  # bytes that zip files do not use
        except FormatError:
            refused += 1
    assert refused > len(versions) // 2


def test_what_cannot_be_written_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = rlx.GraphBuilder("g")
    exported = rlx_xla.export(b.build(b.input("x", "f32[2]").exp()), ["cpu"])
    for saved in (_artifact(), exported):
        with pytest.raises(FormatError, match=r"^save: '.*' cannot be written: "):
            saved.save(tmp_path / "no" / "folder")
        path = tmp_path / "kept"
        path.write_bytes(b"old")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", _disk_is_full)
            with pytest.raises(FormatError, match="No space left"):
                saved.save(path)
        assert path.read_bytes() == b"old"
        assert [file.name for file in tmp_path.iterdir()] == ["kept"]
    with pytest.raises(
        FormatError, match=r"load_export \[file\]: a file is required; .* cannot be read"
    ):
        rlx_xla.load_export(tmp_path / "none")


def _disk_is_full(handle: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_artifact_needs_its_device(tmp_path: Path) -> None:
    path = tmp_path / "f.rlxa"
    _artifact().save(path)
    with pytest.raises(DeviceError):
        rlx_xla.load_artifact(path)
    with pytest.raises(DeviceError, match="a device of platform 'tpu' is required"):
        rlx_xla.load_artifact(path, "cpu")


def test_inputs_of_a_loaded_artifact_are_checked() -> None:
    from rlx_xla.aot import LoadedArtifact
    from rlx_xla.runtime.client import find_device

    class Echo:
        def execute(self, arrays: list[object]) -> list[object]:
            return arrays

    loaded = LoadedArtifact(_artifact(), find_device("cpu"), Echo())
    found = loaded.run({"x": np.arange(3, dtype=np.float32)})
    np.testing.assert_array_equal(found[0], [0, 1, 2])
    with pytest.raises(RunError, match="missing \\['x'\\], unknown \\['y'\\]"):
        loaded.run({"y": 1.0})
    with pytest.raises(RunError, match=r"input 'x' is required to be f32\[3\]; got float64"):
        loaded.run({"x": np.zeros(3)})
    with pytest.raises(RunError, match="unknown param 'w'"):
        loaded.set_params({"w": 1.0})
