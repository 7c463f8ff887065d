"""What params alone decide is computed once per binding of them, on every backend."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.errors import PassError, RunError
from rlx.hidden import PREPARED
from rlx.passes.prepare import split_param_invariant

DEVICES = [d for d in ("interpret", "cpu") if d in rlx.registered_devices()]
STAGED = rlx.CompileOptions(cache_param_invariant=True)


@pytest.fixture(params=DEVICES)
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return rlx.Session(request.param)


def _graph(spec: str = "f32[2, 4]") -> rlx.Graph:
    """x @ exp(w·w + 1) + v: one value depends on w alone, v is read as it is."""
    b = rlx.GraphBuilder("staged")
    x, w, v = b.input("x", spec), b.param("w", "f32[4, 3]"), b.param("v", "f32[3]")
    return b.build(x @ (w * w + 1.0).exp() + v)


def _meaning(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    return x @ np.exp(w * w + 1) + v


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / 2).astype(np.float32)


def test_split_names_both_graphs() -> None:
    split = split_param_invariant(_graph())
    assert split is not None
    assert [v.name for v in split.prepare.params] == ["w"]
    assert [v.name for v in split.main.params] == ["v", f"{PREPARED}0"]
    assert split.prepare.inputs == ()
    assert [str(v.type) for v in split.prepared] == ["f32[4, 3]"]
    assert not {n.op.op_name for n in split.main.nodes()} & {"exp", "mul"}
    first, *_ = split.lines()
    assert first == "prepare: 5 nodes, once per binding of w (48 bytes) → f32[4, 3] (48 bytes)"


def test_a_graph_without_such_a_part_is_not_split(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("plain")
    graph = b.build(b.input("x", "f32[3]") * b.param("w", "f32[3]"))
    assert split_param_invariant(graph) is None
    compiled = session.compile(graph, options=STAGED)
    assert list(compiled.report().staging) == [
        "nothing depends on params alone: there is one graph"
    ]


def test_results_follow_params(session: rlx.Session, rng: np.random.Generator) -> None:
    compiled = session.compile(_graph(), options=STAGED)
    x, w, v = _draw(rng, 2, 4), _draw(rng, 4, 3), _draw(rng, 3)
    with pytest.raises(RunError, match=r"'w' has none. Set it with set_param"):
        compiled(x)
    compiled.set_params({"w": w, "v": v})
    for _ in range(2):
        np.testing.assert_allclose(compiled(x), _meaning(x, w, v), rtol=1e-4)
    for name in ("w", "v", "w"):
        fresh = _draw(rng, *({"w": w, "v": v}[name].shape))
        w, v = (fresh, v) if name == "w" else (w, fresh)
        compiled.set_param(name, fresh)
        np.testing.assert_allclose(compiled.run({"x": x})[0], _meaning(x, w, v), rtol=1e-4)
    staging = "\n".join(compiled.report().staging)
    assert "prepare:" in staging
    assert "main:" in staging
    assert "exp × 1" in staging
    assert compiled.capabilities().staged


def test_the_first_stage_runs_once_per_binding(
    session: rlx.Session, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlx.staging import PrepareStage

    compiled = session.compile(_graph(), options=STAGED)
    compiled.set_params({"w": _draw(rng, 4, 3), "v": _draw(rng, 3)})
    runs: list[object] = []
    results = PrepareStage.results

    def counted(stage: PrepareStage) -> dict[str, object]:
        made = results(stage)
        runs.append(made[f"{PREPARED}0"])
        return made

    monkeypatch.setattr(PrepareStage, "results", counted)
    compiled.finalize_params()
    assert len(runs) == 1
    for _ in range(3):
        compiled(_draw(rng, 2, 4))
    assert len(runs) == 1
    compiled.set_param("v", _draw(rng, 3))  # is read by the second stage alone
    compiled(_draw(rng, 2, 4))
    assert runs[0] is runs[1]
    compiled.set_param("w", _draw(rng, 4, 3))
    compiled(_draw(rng, 2, 4))
    assert runs[2] is not runs[1]


def test_sizes_share_the_first_stage(session: rlx.Session, rng: np.random.Generator) -> None:
    compiled = session.compile(_graph("f32[n, 4]"), options=STAGED)
    w, v = _draw(rng, 4, 3), _draw(rng, 3)
    compiled.set_params({"w": w, "v": v})
    for n in (2, 5, 2):
        x = _draw(rng, n, 4)
        np.testing.assert_allclose(compiled(x), _meaning(x, w, v), rtol=1e-4)
    w = _draw(rng, 4, 3)
    compiled.set_param("w", w)
    for n in (5, 2, 7):
        x = _draw(rng, n, 4)
        np.testing.assert_allclose(compiled(x), _meaning(x, w, v), rtol=1e-4)


def test_what_grows_too_much_stays(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("outer")
    x, u = b.input("x", "f32[512, 512]"), b.param("u", "f32[512]")
    graph = b.build(x + u.reshape(512, 1) @ u.reshape(1, 512))
    assert split_param_invariant(graph) is None
    split = split_param_invariant(graph, max_growth=1000.0)
    assert split is not None
    b = rlx.GraphBuilder("both")
    x, u = b.input("x", "f32[512, 512]"), b.param("u", "f32[512]")
    split = split_param_invariant(b.build(x + (u * 2.0).reshape(512, 1) @ u.reshape(1, 512)))
    assert split is not None
    assert [str(v.type) for v in split.prepare.outputs] == ["f32[512]"]
    assert split.kept == (
        "f32[512, 512] of matmul: its 1,048,576 bytes are more than 16 times those of the params "
        "behind it (2,048)",
    )


def test_a_broadcast_is_never_handed_over() -> None:
    b = rlx.GraphBuilder("wide")
    x, u = b.input("x", "f32[8, 4]"), b.param("u", "f32[4]")
    split = split_param_invariant(b.build(x + u.exp()))
    assert split is not None
    assert [str(v.type) for v in split.prepare.outputs] == ["f32[4]"]
    assert split.kept == ()


def test_an_output_of_params_alone_is_prepared(
    session: rlx.Session, rng: np.random.Generator
) -> None:
    b = rlx.GraphBuilder("norms")
    x, w = b.input("x", "f32[3]"), b.param("w", "f32[3]")
    compiled = session.compile(b.build(x + w, w.exp()), options=STAGED)
    x_value, w_value = _draw(rng, 3), _draw(rng, 3)
    compiled.set_param("w", w_value)
    found = compiled.run({"x": x_value})
    np.testing.assert_allclose(found[0], x_value + w_value, rtol=1e-6)
    np.testing.assert_allclose(found[1], np.exp(w_value), rtol=1e-5)


def test_random_numbers_are_not_prepared(session: rlx.Session) -> None:
    from rlx.ops.random import RngUniform

    b = rlx.GraphBuilder("noise")
    w = b.param("w", "f32[3]")
    noise = RngUniform(dtype=rlx.DType.F32, shape=(3,))()
    compiled = session.compile(b.build(w.exp() + noise), options=STAGED)
    compiled.set_param("w", np.zeros(3, np.float32))
    first = np.asarray(compiled())
    compiled.set_rng(rlx.RngOptions(seed=3))
    assert not np.array_equal(np.asarray(compiled()), first)


def test_a_clone_has_a_stage_of_its_own(session: rlx.Session, rng: np.random.Generator) -> None:
    compiled = session.compile(_graph(), options=STAGED)
    x, w, v = _draw(rng, 2, 4), _draw(rng, 4, 3), _draw(rng, 3)
    compiled.set_params({"w": w, "v": v})
    twin = compiled.clone()
    other = _draw(rng, 4, 3)
    twin.set_param("w", other)
    np.testing.assert_allclose(twin(x), _meaning(x, other, v), rtol=1e-4)
    np.testing.assert_allclose(compiled(x), _meaning(x, w, v), rtol=1e-4)


def test_threads_see_whole_bindings(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("pair")
    x, u, v = b.input("x", "f32[]"), b.param("u", "f32[]"), b.param("v", "f32[]")
    compiled = session.compile(b.build(x + u * 2.0 - v), options=STAGED)
    compiled.set_params({"u": 0.0, "v": 0.0})
    wrong: list[float] = []

    def call() -> None:
        for _ in range(100):
            found = float(compiled.run({"x": 1.0})[0])
            if found != 1.0:
                wrong.append(found)

    thread = threading.Thread(target=call)
    thread.start()
    for k in range(60):
        compiled.set_params({"u": float(k), "v": float(2 * k)})
    thread.join()
    assert not wrong


def test_the_split_is_validated_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = STAGED.replace(validate=True, verbose=True, ir_dump=str(tmp_path))
    rlx.Session("interpret").compile(_graph(), options=options)
    assert "prepare: 5 nodes, once per binding of w" in capsys.readouterr().out
    assert "exp" in (tmp_path / "staged.mir.prepare.txt").read_text()
    monkeypatch.setattr("rlx.passes.prepare.Split.joined", lambda split: _broken())
    with pytest.raises(PassError, match="pass 'split-param-invariant' is required to keep what"):
        rlx.Session("interpret").compile(_graph(), options=options)


def test_weights_are_quantised_once(session: rlx.Session, rng: np.random.Generator) -> None:
    from rlx.quant import ScaledQuantConfig

    b = rlx.GraphBuilder("quantised")
    graph = b.build(b.input("x", "f32[4, 64]") @ b.param("w", "f32[64, 8]"))
    options = STAGED.replace(scaled_quant=ScaledQuantConfig.fp8_e4m3())
    compiled = session.compile(graph, options=options)
    x, w = _draw(rng, 4, 64), _draw(rng, 64, 8)
    compiled.set_param("w", w)
    np.testing.assert_allclose(compiled(x), x @ w, atol=0.5)
    staging = "\n".join(compiled.report().staging)
    assert "scaled_quantize × 1" in staging.split("main:")[0]
    assert "scaled_quantize × 1, scaled_matmul × 1" in staging.split("main:")[1]


def _broken() -> rlx.Graph:
    b = rlx.GraphBuilder("broken")
    x, w, v = b.input("x", "f32[2, 4]"), b.param("w", "f32[4, 3]"), b.param("v", "f32[3]")
    return b.build(x @ (w * w).exp() + v)
