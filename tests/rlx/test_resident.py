"""Kept inputs: they live on the device and are fed from an output of each run."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import rlx
from rlx.errors import CompileError, DimError, RunError

DEVICES = [d for d in ("interpret", "cpu") if d in rlx.registered_devices()]


@pytest.fixture(params=DEVICES)
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return rlx.Session(request.param)


def _counter(spec: str = "f32[2]", state: str = "f32[2]") -> rlx.Graph:
    """Outputs x·s and the next state s + 1."""
    b = rlx.GraphBuilder("counter")
    x, s = b.input("x", spec), b.input("s", state)
    return b.build((x * s.sum()).sum(), s + 1.0)


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_the_output_feeds_the_input(session: rlx.Session) -> None:
    compiled = session.compile(_counter())
    compiled.keep("s", from_output=1, value=[0.0, 1.0])
    found = [float(compiled(_ones(2))[0]) for _ in range(3)]
    assert found == [2.0, 6.0, 10.0]
    assert compiled.kept("s").tolist() == [3.0, 4.0]
    assert compiled.kept("s", row=-1) == 4.0
    with pytest.raises(RunError, match="output 0 has rows 0 to 1; got 2"):
        compiled.kept("s", row=2)
    assert compiled.run({"x": _ones(2)}, outputs=[0])[0] == 14.0
    assert compiled.specializations()[-1].reason == "keep 's' from output 1"
    assert compiled.capabilities().kept == ("s",)


def test_the_first_value_comes_from_the_first_run_or_call(session: rlx.Session) -> None:
    compiled = session.compile(_counter(), options=rlx.CompileOptions(resident={"s": 1}))
    missing = r"kept inputs are required to have a value; 's': f32\[2\] has none"
    with pytest.raises(RunError, match=missing):
        compiled(_ones(2))
    with pytest.raises(RunError, match="missing 's'"):
        compiled.run({"x": _ones(2)})
    assert float(compiled(_ones(2), _ones(2))[0]) == 4.0
    assert float(compiled(_ones(2))[0]) == 8.0
    compiled.reset_kept()
    with pytest.raises(RunError, match="'s' has no value yet"):
        compiled.kept("s")
    with pytest.raises(RunError, match=missing):
        compiled(_ones(2))
    assert compiled.run({"x": _ones(2), "s": [5.0, 5.0]})[0] == 20.0
    assert compiled.run({"x": _ones(2)})[0] == 24.0
    assert compiled.run({"x": _ones(2), "s": [1.0, 1.0]})[0] == 4.0  # given again: it starts over


def test_the_callers_arrays_are_copied(session: rlx.Session) -> None:
    compiled = session.compile(_counter())
    start = _ones(2)
    compiled.keep("s", from_output=1, value=start)
    start[:] = 100.0
    compiled(_ones(2))
    read = compiled.kept("s")
    compiled(_ones(2))
    assert read.tolist() == [2.0, 2.0]
    assert compiled.kept("s").tolist() == [3.0, 3.0]


def test_outputs_read_before_stay(session: rlx.Session) -> None:
    compiled = session.compile(_counter())
    compiled.keep("s", from_output=1, value=_ones(2))
    first = compiled.run({"x": _ones(2)})[1]
    second = compiled.run({"x": _ones(2)})[1]
    assert (first.tolist(), second.tolist()) == ([2.0, 2.0], [3.0, 3.0])


def test_a_clone_goes_its_own_way(session: rlx.Session) -> None:
    compiled = session.compile(_counter())
    compiled.keep("s", from_output=1, value=_ones(2))
    twin = compiled.clone()
    for _ in range(3):
        twin(_ones(2))
    assert twin.kept("s").tolist() == [4.0, 4.0]
    assert compiled.kept("s").tolist() == [1.0, 1.0]
    assert float(compiled(_ones(2))[0]) == 4.0


def test_sizes_may_change_around_a_kept_input(session: rlx.Session) -> None:
    compiled = session.compile(_counter("f32[n]"))
    compiled.keep("s", from_output=1, value=_ones(2))
    found = [float(compiled(_ones(n))[0]) for n in (1, 3, 1, 2)]
    assert found == [2.0, 12.0, 6.0, 16.0]
    assert compiled.kept("s").tolist() == [5.0, 5.0]
    assert compiled.specializations().misses == 3


def test_a_kept_input_decides_sizes(session: rlx.Session) -> None:
    compiled = session.compile(_counter("f32[n]", "f32[n]"))
    compiled.keep("s", from_output=1)
    assert compiled.run({"x": _ones(3), "s": _ones(3)})[0] == 9.0
    with pytest.raises(DimError, match="'x'"):
        compiled.run({"x": _ones(4)})
    assert compiled.run({"x": _ones(4), "s": _ones(4)})[0] == 16.0
    assert float(compiled(_ones(4))[0]) == 32.0


def test_typed_runs_keep_inputs_too(session: rlx.Session) -> None:
    compiled = session.compile(_counter())
    compiled.keep("s", from_output=1)
    x = (_ones(2).tobytes(), "f32")
    first = compiled.run_typed({"x": x, "s": (np.ones(2, np.float16).tobytes(), "f16")})
    assert np.frombuffer(first[0][0], np.float32) == 4.0
    assert np.frombuffer(compiled.run_typed({"x": x})[0][0], np.float32) == 8.0


def test_several_inputs_are_kept(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("fibonacci")
    x, p, q = b.input("x", "f32[]"), b.input("p", "f32[]"), b.input("q", "f32[]")
    compiled = session.compile(b.build(p + x, q, p + q))
    compiled.keep("p", from_output=1, value=1.0)
    compiled.keep("q", from_output=2, value=1.0)  # p has its value still
    assert [float(compiled(0.0)[0]) for _ in range(7)] == [1, 1, 2, 3, 5, 8, 13]


def test_what_cannot_be_kept_is_refused(session: rlx.Session) -> None:
    compiled = session.compile(_counter())
    with pytest.raises(CompileError, match=r"keep: an input is required \('x'.*got 'S'. Did you"):
        compiled.keep("S", from_output=1)
    with pytest.raises(CompileError, match=r"type f32\[2\]; got output 0, and it is f32\[\]"):
        compiled.keep("s", from_output=0)
    with pytest.raises(CompileError, match=r"there is no such output. Outputs of that type: 1"):
        session.compile(_counter(), options=rlx.CompileOptions(resident={"s": 9}))
    b = rlx.GraphBuilder("two")
    p, q = b.input("p", "f32[]"), b.input("q", "f32[]")
    with pytest.raises(CompileError, match=r"output 0 feeds 'p' and 'q'. Return the value twice"):
        session.compile(b.build(p + q), options=rlx.CompileOptions(resident={"p": 0, "q": 0}))
    with pytest.raises(CompileError, match="donated already; got 's'"):
        rlx.CompileOptions(resident={"s": 1}, donate=frozenset({"s"}))
    with pytest.raises(RunError, match=r"set_kept: a kept input is required \(none\)"):
        compiled.set_kept("s", _ones(2))
    compiled.keep("s", from_output=1)
    with pytest.raises(RunError, match=r"set_kept: kept input 's' is required to be f32\[2\]"):
        compiled.set_kept("s", _ones(3))


def test_a_second_call_at_once_is_refused() -> None:
    """The first call waits inside an op while the second one starts."""
    session = rlx.Session("interpret")
    compiled = session.compile(_counter())
    compiled.keep("s", from_output=1, value=_ones(2))
    inside, leave = threading.Event(), threading.Event()

    class Slow:
        """An argument that is read slowly."""

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            inside.set()
            leave.wait(10)
            return _ones(2)

    thread = threading.Thread(target=lambda: compiled(Slow()))
    thread.start()
    assert inside.wait(10)
    with pytest.raises(RunError, match=r"'s' is in use by a concurrent call. Give each thread its"):
        compiled(_ones(2))
    with pytest.raises(RunError, match="in use by a concurrent call"):
        compiled.set_kept("s", _ones(2))
    leave.set()
    thread.join()
    assert compiled.kept("s").tolist() == [2.0, 2.0]


def test_values_are_cast_where_inputs_are(session: rlx.Session) -> None:
    wide = np.array([1.0, 2.0])
    compiled = session.compile(_counter(), options=rlx.CompileOptions(cast_inputs=True))
    compiled.keep("s", from_output=1, value=wide)
    assert float(compiled(wide)[0]) == 9.0
    plain = session.compile(_counter())
    with pytest.raises(RunError, match=r"kept input 's' is required to be f32\[2\]; got f64\[2\]"):
        plain.keep("s", from_output=1, value=wide)
    assert plain.specializations().misses == 1  # a wrong value changes nothing
    assert plain.capabilities().kept == ()
