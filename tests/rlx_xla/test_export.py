"""Portable StableHLO and files for several platforms: field cases C11 and C12."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import CompileError, FormatError, LoweringError, RunError
from rlx_xla._jax_compat import mlir, portable
from rlx_xla.lowering import exported
from rlx_xla.testing.reference import Unavailable, reference_run, reference_runs


def _model(params, x, y):
    hidden = jax.nn.softmax(x @ params["w"])
    return {"a": hidden, "b": jax.lax.erf(y), "c": jax.lax.top_k(y, 2)}


def _made() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng()
    w = rng.standard_normal((4, 3), np.float32)
    feeds = {
        "x": rng.standard_normal((2, 4), np.float32),
        "y": rng.standard_normal((4, 5), np.float32),
    }
    traced = rlx_xla.trace(_model, {"w": w}, feeds["x"], feeds["y"], params=0)
    return traced, feeds, {"params/w": w}


# -- portable StableHLO ------------------------------------------------------------------------

CORE = {
    "erf": (jax.lax.erf, "f32[64]"),
    "erf_inv": (jax.lax.erf_inv, "f32[64]"),
    "top_k": (lambda x: jax.lax.top_k(x, 3), "f32[4, 16]"),
    "softmax": (jax.nn.softmax, "f32[4, 16]"),
    "lgamma": (jax.lax.lgamma, "f32[16]"),
}


@pytest.mark.parametrize("name", CORE)
def test_c11_core_ops_only_and_the_interpreter_agrees(name: str) -> None:
    fn, spec = CORE[name]
    traced = rlx_xla.trace(fn, spec)
    text = rlx_xla.stablehlo(traced, portable=True)
    assert "chlo." not in text
    assert "custom_call" not in text
    (leaf,) = traced.graph.inputs
    x = np.random.default_rng().uniform(-0.95, 0.95, [int(str(d)) for d in leaf.type.shape])
    x = x.astype(np.float32)
    wanted = jax.tree_util.tree_leaves(jax.jit(fn)(x))
    for found, want in zip(reference_run(traced, x), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-6)


def test_c11_erf_of_one_half() -> None:
    (found,) = reference_run(rlx_xla.trace(jax.lax.erf, "f32[]"), np.float32(0.5))
    assert abs(float(found) - 0.5204999) < 1e-6


@pytest.mark.parametrize(
    ("version", "platform"),
    [("12 weeks", "cpu"), ("4 weeks", "tpu"), ("minimum", "cpu"), ("0.9.0", "tpu"), (None, "cpu")],
)
def test_c12_artifacts_keep_names_and_types(version: str | None, platform: str) -> None:
    traced, feeds, params = _made()
    data = rlx_xla.portable_artifact(traced, platform, version=version)
    assert data.startswith(mlir.BYTECODE_MAGIC)
    graph = rlx_xla.from_stablehlo(data)
    assert [v.name for v in graph.inputs] == ["x", "y", "params/w"]
    found = rlx.interpret(graph, {**feeds, **params})
    wanted = rlx.interpret(traced.graph, feeds, params=params)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_versions_are_ordered() -> None:
    def numbers(version: str) -> list[int]:
        return [int(n) for n in version.split(".")]

    ages = [mlir.minimum_stablehlo_version(), portable.version_of_age(12)]
    ages += [portable.version_of_age(4), mlir.stablehlo_version()]
    assert ages == sorted(ages, key=numbers)
    traced, _, _ = _made()
    assert rlx_xla.export(traced, ["cpu"]).version == portable.version_of_age(12)


def test_versions_that_are_refused() -> None:
    traced, _, _ = _made()
    with pytest.raises(LoweringError) as info:
        rlx_xla.portable_artifact(traced, version="newest")
    assert str(info.value) == (
        "stablehlo: version is a number such as '0.9.0', or one of 12 weeks, 4 weeks, minimum, "
        "current; got 'newest'."
    )
    with pytest.raises(CompileError, match=r"the module must be expressible in version 0\.1\.0"):
        rlx_xla.portable_artifact(traced, version="0.1.0")


def test_a_type_that_an_old_version_lacks() -> None:
    graph = rlx_xla.trace(lambda x: x + x, "f8e3m4[4]").graph
    assert rlx_xla.portable_artifact(graph)
    with pytest.raises(CompileError, match=r"expressible in version 0\.9\.0"):
        rlx_xla.portable_artifact(graph, version="minimum")


# -- files for several platforms ---------------------------------------------------------------


@pytest.mark.parametrize(
    "platforms", [("cpu",), ("cpu", "cuda", "rocm", "tpu"), ("tpu", "cpu"), ("cpu", "cpu")]
)
def test_one_file_runs_here_and_in_jax(tmp_path: Path, platforms: tuple[str, ...]) -> None:
    traced, feeds, params = _made()
    made = rlx_xla.export(traced, platforms)
    assert made.platforms == tuple(dict.fromkeys(platforms))
    assert made.shared
    made.save(tmp_path / "model.export")
    compiled = rlx_xla.load_export(tmp_path / "model.export", params=params)
    wanted = jax.tree_util.tree_leaves(rlx.Session("cpu").compile(traced)(feeds["x"], feeds["y"]))
    for found, want in zip(compiled.run(feeds), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    theirs = jax.export.deserialize(bytearray((tmp_path / "model.export").read_bytes()))
    assert tuple(theirs.platforms) == made.platforms
    for found, want in zip(
        theirs.call(feeds["x"], feeds["y"], params["params/w"]), wanted, strict=True
    ):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_without_params_all_are_inputs() -> None:
    traced, feeds, params = _made()
    compiled = rlx_xla.load_export(rlx_xla.export(traced).serialized)
    again = rlx_xla.load_export(rlx_xla.export(traced), params=params)
    for a, b in zip(compiled.run({**feeds, **params}), again.run(feeds), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("order", [("cpu", "tpu"), ("tpu", "cpu")])
def test_each_platform_runs_its_own_program(
    monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]
) -> None:
    b = rlx.GraphBuilder("g")
    x = b.input("x", "f32[3]")
    graphs = {"cpu": b.build(x + 1.0), "tpu": b.build(x * 2.0)}
    lower = exported.stablehlo
    monkeypatch.setattr(
        exported, "stablehlo", lambda graph, platform, **options: lower(graphs[platform], **options)
    )
    made = rlx_xla.export(graphs["cpu"], order)
    assert not made.shared
    value = np.float32([1, 2, 3])
    assert rlx_xla.load_export(made).run({"x": value})[0].tolist() == [2, 3, 4]
    theirs = jax.export.deserialize(bytearray(made.serialized))
    assert np.asarray(theirs.call(value)[0]).tolist() == [2, 3, 4]
    with jax.default_device(jax.devices("cpu")[0]):
        text = str(mlir.from_portable(theirs.mlir_module_serialized))
    assert len(re.findall(r"stablehlo\.case", text)) == 1


def test_64_bits_and_small_types_pass() -> None:
    for spec in ("f64[3]", "i64[2]", "bf16[4]", "bool[2]"):
        name = spec.partition("[")[0]
        b = rlx.GraphBuilder("g")
        x = b.input("x", spec)
        graph = b.build(x if name == "bool" else x + x)
        value = np.ones([int(str(d)) for d in x.type.shape], x.type.dtype.numpy)
        (found,) = rlx_xla.load_export(rlx_xla.export(graph)).run({"x": value})
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value if name == "bool" else value + value)


def test_what_export_refuses() -> None:
    traced, _, _ = _made()
    with pytest.raises(LoweringError) as info:
        rlx_xla.export(traced, ["cpu", "gpu"])
    assert str(info.value).startswith("export _model: platforms are some of cpu, ")
    assert str(info.value).endswith("; got 'cpu', 'gpu'.")
    with pytest.raises(LoweringError, match="got none"):
        rlx_xla.export(traced, [])
    assert rlx_xla.export(traced, "cpu").platforms == ("cpu",)
    with pytest.raises(
        LoweringError, match="a Graph or a traced function is required; got function"
    ):
        rlx_xla.export(_made)
    with pytest.raises(LoweringError, match="static shapes are required"):
        rlx_xla.export(rlx_xla.trace(jnp.tanh, "f32[b]"))
    with pytest.raises(LoweringError) as library:
        rlx_xla.export(rlx_xla.trace(lambda x: jnp.linalg.eigvals(x), "f32[3, 3]"))
    assert re.fullmatch(
        r"lowering of eig at test_export\.py:\d+: eig is required to call a library, which a "
        r"portable module must not\. Files of rlx_xla\.export hold no such calls: keep the graph "
        r"with rlx\.save, which is compiled where it is loaded, or take an op that needs no "
        r"library \(eigh for symmetric matrices\)\.",
        str(library.value),
    )
    with pytest.raises(LoweringError) as effects:
        rlx_xla.export(rlx_xla.trace(lambda x: [jax.debug.print("{}", x), x][1], "f32[3]"))
    assert re.fullmatch(
        r"export <lambda>: a graph without effects is required; it has debug_\w+ at "
        r"test_export\.py:\d+\. Remove prints and callbacks\.",
        str(effects.value),
    )


def test_damage_anywhere_in_a_saved_file_is_refused(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    rlx_xla.export(_made()[0], ["cpu"]).save(tmp_path / "model")
    data = (tmp_path / "model").read_bytes()
    for place in rng.integers(0, len(data) - 16, 20):
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        for read in (rlx_xla.load_export, rlx_xla.from_stablehlo):
            with pytest.raises(FormatError, match="is damaged: its checksum is that of"):
                read(bytes(damaged))


def test_what_load_refuses(tmp_path: Path) -> None:
    traced, _, params = _made()
    with pytest.raises(FormatError) as info:
        rlx_xla.load_export(rlx_xla.export(traced, ["tpu", "cuda"]))
    assert str(info.value) == (
        "load_export: a file for 'cpu' is required; it is for tpu, cuda. Export again with "
        "platforms=[…, 'cpu']."
    )
    made = rlx_xla.export(traced)
    with pytest.raises(RunError) as unknown:
        rlx_xla.load_export(made, params={"params/v": params["params/w"]})
    assert str(unknown.value) == (
        "load_export: params are some of x, y, params/w; got 'params/v'. Did you mean 'params/w'?"
    )
    (tmp_path / "cut").write_bytes(made.serialized[: len(made.serialized) // 2])
    with pytest.raises(FormatError):
        rlx_xla.load_export(tmp_path / "cut")


# -- the interpreter ---------------------------------------------------------------------------


def test_programs_after_one_that_ends_the_process_still_run() -> None:
    good = rlx_xla.trace(lambda x: x + 1, "f32[2]")
    bad = rlx_xla.trace(lambda x: jnp.fft.fft(x), "c64[4]")
    value = np.float32([1, 2])
    wave = np.ones(4, np.complex64)
    first, second, third = reference_runs([(good, [value]), (bad, [wave]), (good, [value])])
    assert not isinstance(first, Unavailable)
    assert not isinstance(third, Unavailable)
    assert first[0].tolist() == third[0].tolist() == [2, 3]
    assert isinstance(second, Unavailable)
    with pytest.raises(CompileError) as info:
        reference_run(bad, wave)
    assert str(info.value).startswith(
        "reference_run: StableHLO's interpreter is required to run the graph; "
    )


def test_the_interpreter_has_a_time_limit() -> None:
    graph = rlx_xla.trace(lambda x: x @ x, "f32[8, 8]")
    (found,) = reference_runs([(graph, [np.ones((8, 8), np.float32)])], timeout=0.01)
    assert found == Unavailable("it took more than 0 s")


def test_the_interpreter_takes_bf16_and_4_bits() -> None:
    b = rlx.GraphBuilder("g")
    x, n = b.input("x", "bf16[3]"), b.input("n", "i4[2]")
    graph = b.build(x * x, n + n)
    values = np.asarray([1.5, -2, 0.25]).astype(x.type.dtype.numpy)
    counts = np.asarray([3, -4]).astype(n.type.dtype.numpy)
    squares, doubles = reference_run(graph, values, counts)
    assert squares.dtype == values.dtype
    assert squares.astype(float).tolist() == [2.25, 4, 0.0625]
    assert doubles.astype(int).tolist() == [6, -8]


def test_the_number_of_arrays_is_checked() -> None:
    graph = rlx_xla.trace(lambda x: x + 1, "f32[2]").graph
    with pytest.raises(RunError) as info:
        reference_run(graph)
    assert str(info.value).endswith(": 1 arrays are required, for inputs and then params; got 0.")
