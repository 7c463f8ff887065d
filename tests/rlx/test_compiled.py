"""CompiledGraph on the NumPy backend: names, params, errors, symbolic dims, threads."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest

import rlx
from rlx import backend
from rlx.errors import CompileError, DeviceError, DimError, RunError, ShapeError

DEVICES = [d for d in ("interpret", "cpu") if d in rlx.registered_devices()]


def _linear() -> rlx.Graph:
    b = rlx.GraphBuilder("linear")
    x = b.input("x", "f32[1, 4]")
    w = b.param("w", "f32[4, 2]")
    return b.build(x @ w)


def _sum(spec: str = "f32[n]") -> rlx.Graph:
    b = rlx.GraphBuilder("sum")
    x = b.input("x", spec)
    y = b.input("y", spec)
    return b.build(x + y)


@pytest.fixture(params=DEVICES)
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return rlx.Session(request.param)


def test_field_case_h6_linear(session: rlx.Session, rng: np.random.Generator) -> None:
    compiled = session.compile(_linear())
    x = rng.standard_normal((1, 4)).astype(np.float32)
    w = rng.standard_normal((4, 2)).astype(np.float32)
    with pytest.raises(RunError, match="'w'"):
        compiled.run({"x": x})
    with pytest.raises(RunError, match=r"unknown param 'W'.*'w': f32\[4, 2\].*Did you mean 'w'"):
        compiled.set_param("W", w)
    with pytest.raises(RunError, match=r"required to be f32\[4, 2\]; got f32\[2, 4\]"):
        compiled.set_param("w", w.T)
    with pytest.raises(RunError, match=r"f32\[4, 2\]; got f64\[4, 2\].*astype"):
        compiled.set_param("w", w.astype(np.float64))
    compiled.set_param("w", w)
    with pytest.raises(RunError, match=r"f32\[1, 4\].*3"):
        compiled.run({"x": x[:, :3]})
    with pytest.raises(RunError, match=r"float64|f64"):
        compiled.run({"x": x.astype(np.float64)})
    with pytest.raises(RunError, match="missing 'x'"):
        compiled.run({})
    with pytest.raises(RunError, match=r"unknown input 'X'.*Did you mean 'x'"):
        compiled.run({"X": x})
    with pytest.raises(RunError, match="It is a param: use set_param"):
        compiled.run({"x": x, "w": w})
    np.testing.assert_allclose(compiled.run({"x": x})[0], x @ w, rtol=1e-5, atol=1e-6)


def test_every_param_problem_is_reported_and_nothing_changes(session: rlx.Session) -> None:
    compiled = session.compile(_linear())
    good = np.ones((4, 2), np.float32)
    with pytest.raises(RunError) as caught:
        compiled.set_params({"w": good, "v": good, "u": good})
    assert "'v'" in str(caught.value)
    assert "'u'" in str(caught.value)
    assert not compiled.params()
    with pytest.raises(RunError, match=r"not set: 'w': f32\[4, 2\]"):
        compiled.finalize_params()


def test_cast_inputs_is_explicit(session: rlx.Session) -> None:
    graph = _sum("f32[3]")
    wide = np.array([1.5, 2.5, 3.5])
    with pytest.raises(RunError):
        session.compile(graph).run({"x": wide, "y": wide})
    casting = session.compile(graph, options=rlx.CompileOptions(cast_inputs=True))
    found = casting.run({"x": wide, "y": wide})[0]
    assert found.dtype == np.float32
    assert found.tolist() == [3.0, 5.0, 7.0]


def test_equal_size_dtypes_are_never_reinterpreted(session: rlx.Session) -> None:
    compiled = session.compile(_sum("f32[3]"))
    with pytest.raises(RunError):
        compiled.run({"x": np.ones(3, np.int32), "y": np.ones(3, np.float32)})


def test_half_params_are_converted(session: rlx.Session) -> None:
    b = rlx.GraphBuilder()
    w = b.param("w", "bf16[3]")
    compiled = session.compile(b.build(w + w))
    compiled.set_param("w", np.array([1.0, 2.0, 3.0], np.float32))
    assert compiled.run({})[0].astype(np.float32).tolist() == [2.0, 4.0, 6.0]
    compiled.set_param_typed("w", np.array([4, 5, 6], np.float32).tobytes(), "f32")
    assert compiled.run({})[0].astype(np.float32).tolist() == [8.0, 10.0, 12.0]
    with pytest.raises(RunError, match="12 bytes; got 11"):
        compiled.set_param_typed("w", b"0" * 11, "f32")


def test_run_typed_round_trip(session: rlx.Session) -> None:
    compiled = session.compile(_sum("f32[n]"))
    x = np.arange(5, dtype=np.float32)
    ((data, dtype),) = compiled.run_typed({"x": (x.tobytes(), "f32"), "y": (x.tobytes(), "f32")})
    assert dtype is rlx.DType.F32
    assert np.frombuffer(data, np.float32).tolist() == (x + x).tolist()


def test_outputs_are_selected(session: rlx.Session) -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[2]")
    compiled = session.compile(b.build(x + x, -x, x))
    assert [a.tolist() for a in compiled.run({"x": [1, 2]}, outputs=[2, 0])] == [[1, 2], [2, 4]]
    with pytest.raises(RunError, match="numbered 0 to 2; got 3"):
        compiled.run({"x": [1, 2]}, outputs=[3])


def test_symbolic_dims_compile_once_per_binding(session: rlx.Session) -> None:
    compiled = session.compile(_sum("f32[n, m]"))
    for n, m in [(4, 8), (2, 8), (4, 8), (2, 8), (4, 8)]:
        x = np.ones((n, m), np.float32)
        assert compiled.run({"x": x, "y": x})[0].shape == (n, m)
    records = compiled.specializations()
    assert [r.reason for r in records] == ["first call", "x axis 0: 4 → 2"]
    assert (records.misses, records.hits, records.evictions) == (2, 3, 0)


def test_specialisations_are_dropped_least_recent_first(session: rlx.Session) -> None:
    options = rlx.CompileOptions(specialization_cache_size=2)
    compiled = session.compile(_sum(), options=options)
    for n in (1, 2, 3, 1):
        compiled(np.ones(n, np.float32), np.ones(n, np.float32))
    records = compiled.specializations()
    assert (records.misses, records.evictions) == (4, 2)


def test_contradicting_sizes_name_both_inputs(session: rlx.Session) -> None:
    compiled = session.compile(_sum())
    with pytest.raises(DimError, match=r"'x'.*'y'"):
        compiled(np.ones(3, np.float32), np.ones(4, np.float32))
    assert compiled(np.ones(3, np.float32), np.ones(3, np.float32)).shape == (3,)


def test_warm_compiles_ahead(session: rlx.Session) -> None:
    compiled = session.compile(_sum())
    with pytest.raises(RunError, match="nothing has been compiled"):
        compiled.report()
    compiled.warm([{"n": 3}, {"n": 5}])
    assert compiled.specializations().misses == 2
    for n in (3, 5):
        compiled(np.ones(n, np.float32), np.ones(n, np.float32))
    assert compiled.specializations().misses == 2  # what was warmed is what calls find
    with pytest.raises(DimError, match="size to each of n"):
        compiled.warm([{"m": 3}])


def test_call_count_is_checked(session: rlx.Session) -> None:
    compiled = session.compile(_sum("f32[3]"))
    with pytest.raises(RunError):
        compiled(np.ones(3, np.float32))
    symbolic = session.compile(_sum())
    with pytest.raises(RunError, match="required 2 inputs"):
        symbolic(np.ones(3, np.float32))


def test_names_and_positions_are_told_apart(session: rlx.Session) -> None:
    symbolic = session.compile(_sum())
    with pytest.raises(RunError) as caught:
        symbolic.run(cast("Any", np.ones(3, np.float32)))
    assert str(caught.value) == (
        "run: a mapping (input name → array) is required; got ndarray. Write {'name': array}."
    )
    with pytest.raises(RunError) as caught:
        symbolic({"x": np.ones(3, np.float32)}, np.ones(3, np.float32))
    assert str(caught.value) == (
        "call: argument 'x' is required to be f32[n]; got dict. Arrays by name are for "
        "run({...}); a call takes them in order."
    )


def test_threads_see_whole_bindings(session: rlx.Session) -> None:
    b = rlx.GraphBuilder()
    x, u, v = b.input("x", "f32[]"), b.param("u", "f32[]"), b.param("v", "f32[]")
    compiled = session.compile(b.build(x + u - v))
    compiled.set_params({"u": 0.0, "v": 0.0})
    wrong: list[Any] = []

    def call() -> None:
        for _ in range(200):
            found = float(compiled.run({"x": 1.0})[0])
            if found != 1.0:
                wrong.append(found)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for k in range(100):
        compiled.set_params({"u": float(k), "v": float(k)})
    for thread in threads:
        thread.join()
    assert not wrong


def test_unknown_devices_are_explained() -> None:
    with pytest.raises(DeviceError, match=r"registered: .*interpret.*Did you mean 'cpu'"):
        rlx.Session("cpuu")
    with pytest.raises(DeviceError, match=r"a name such as .* is required; got 3"):
        rlx.Session(3)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="Metal is not available"):
        rlx.Session("metal")
    with pytest.raises(DeviceError):
        rlx.Session("cpu:99")


def test_a_device_of_xla_without_its_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """rlx alone is installed: no entry point names a backend."""
    monkeypatch.setattr(backend, "_FACTORIES", {})
    monkeypatch.setattr(backend, "entry_points", lambda **_: ())
    with pytest.raises(
        DeviceError, match=r"TPU:1 — enable feature `tpu`.*: interpret\. Install rlx"
    ):
        rlx.Session("tpu:1")
    assert rlx.registered_devices() == ["interpret"]


def test_only_graphs_compile(session: rlx.Session) -> None:
    with pytest.raises(CompileError, match="got int"):
        session.compile(3)  # type: ignore[arg-type]


def test_unknown_option_is_explained() -> None:
    with pytest.raises(CompileError, match="Did you mean 'validate'"):
        rlx.CompileOptions().replace(validat=True)


def test_sizes_that_overflow_are_refused() -> None:
    b = rlx.GraphBuilder()
    with pytest.raises(ShapeError, match=r"2\^62"):
        b.input("x", f"f32[{2**40}, {2**40}]")


def test_report_prints_and_renders(session: rlx.Session) -> None:
    compiled = session.compile(_sum("f32[3]"))
    text = str(compiled.report())
    assert "rule add" in text
    assert compiled.report()._repr_html_().startswith('<div class="rlx-report">')
