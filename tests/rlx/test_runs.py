"""Ways to run and to set params: typed bytes, ranges, handles, pipelines, rows, clones."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.errors import CompileError, DTypeError, RunError

DEVICES = [d for d in ("interpret", "cpu") if d in rlx.registered_devices()]


@pytest.fixture(params=DEVICES)
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return rlx.Session(request.param)


def _scale(dtype: str = "f32") -> rlx.Graph:
    b = rlx.GraphBuilder("scale")
    return b.build(b.input("x", f"{dtype}[2, 3]") * b.param("w", f"{dtype}[3]"))


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("declared", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("given", ["f32", "f16", "bf16"])
def test_typed_floats_are_converted(
    session: rlx.Session, rng: np.random.Generator, declared: str, given: str
) -> None:
    compiled = session.compile(_scale(declared))
    x, w = _draw(rng, 2, 3), _draw(rng, 3)
    dtype = rlx.DType[given.upper()].numpy
    inside = rlx.DType[declared.upper()].numpy
    compiled.set_param_typed("w", w.astype(dtype).tobytes(), given)
    ((data, found),) = compiled.run_typed({"x": (x.astype(dtype).tobytes(), given)})
    assert found is rlx.DType[declared.upper()]
    wanted = x.astype(dtype).astype(inside) * w.astype(dtype).astype(inside)
    got = np.frombuffer(data, inside).reshape(2, 3)
    np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), rtol=1e-2)


def test_run_converts_f32_for_half_inputs(session: rlx.Session, rng: np.random.Generator) -> None:
    compiled = session.compile(_scale("bf16"))
    x, w = _draw(rng, 2, 3), _draw(rng, 3)
    compiled.set_param("w", w)
    (found,) = compiled.run({"x": x})
    assert found.dtype == ml_dtypes.bfloat16
    low = (x.astype(ml_dtypes.bfloat16) * w.astype(ml_dtypes.bfloat16)).astype(np.float32)
    np.testing.assert_allclose(found.astype(np.float32), low, rtol=1e-2)
    with pytest.raises(RunError):
        compiled.run({"x": x.astype(np.float64)})


def test_u8_bytes_are_bits(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("packed")
    codes, nibbles, small = (
        b.param("i", "i8[3]"),
        b.param("n", "i4[3]"),
        b.param("f", "f8e4m3fn[2]"),
    )
    graph = b.build(*(v.convert(rlx.DType.F32) for v in (codes, nibbles, small)))
    compiled = session.compile(graph)
    compiled.set_param_typed("i", bytes([255, 0, 127]), "u8")
    compiled.set_param_typed("n", bytes([0xF1, 0x08]), "u8")  # the low half first
    values = np.array([1.5, -2.0], ml_dtypes.float8_e4m3fn)
    compiled.set_param_typed("f", values.tobytes(), "u8")
    found = [a.tolist() for a in compiled.run({})]
    assert found == [[-1.0, 0.0, 127.0], [1.0, -1.0, -8.0], [1.5, -2.0]]
    with pytest.raises(RunError, match=r"i4\[3\], 3 elements of u8 in 2 bytes; got 3 bytes"):
        compiled.set_param_typed("n", bytes(3), "u8")


def test_a_range_of_a_param_is_replaced(session: rlx.Session, rng: np.random.Generator) -> None:
    compiled = session.compile(_scale())
    with pytest.raises(RunError, match="'w' is required to have a value that is changed; it has"):
        compiled.set_param_range("w", 0, b"")
    w = _draw(rng, 3)
    compiled.set_param("w", w)
    x = _draw(rng, 2, 3)
    compiled.set_param_range("w", 4, np.float32(7.0).tobytes())
    w[1] = 7.0
    np.testing.assert_allclose(compiled.run({"x": x})[0], x * w, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(compiled.params()["w"]), w)
    with pytest.raises(RunError, match=r"it has 12 bytes; got bytes 8 to 16. Shorten it"):
        compiled.set_param_range("w", 8, bytes(8))
    with pytest.raises(RunError, match="the offset is required to be an int ≥ 0, in bytes; got -1"):
        compiled.set_param_range("w", -1, b"")
    with pytest.raises(RunError, match=r"unknown param 'W'.*Did you mean 'w'"):
        compiled.set_param_range("W", 0, b"")


def test_a_run_is_read_back_later(session: rlx.Session, rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("two")
    x = b.input("x", "f32[4, 3]")
    compiled = session.compile(b.build(x + 1.0, x.sum()))
    value = _draw(rng, 4, 3)
    handle = compiled.run_async({"x": value}, outputs=[1, 0])
    total, moved = handle.result()
    assert handle.done()
    assert repr(handle) == "<RunHandle of outputs [1, 0]>"
    np.testing.assert_allclose(total, value.sum(), rtol=1e-5)
    np.testing.assert_array_equal(moved, value + 1)
    np.testing.assert_array_equal(handle.row(0, 2), value[2] + 1)
    last = compiled.run_async({"x": value}, outputs=[-2])
    np.testing.assert_array_equal(last.row(0, -1), value[3] + 1)
    np.testing.assert_array_equal(compiled.read_output_row({"x": value}, row=-4), value[0] + 1)
    with pytest.raises(RunError, match="output 0 has rows 0 to 3; got 4"):
        handle.row(0, 4)
    with pytest.raises(RunError, match="output 1 has rank 0"):
        handle.row(1)
    with pytest.raises(RunError, match=r"an output of this run is required \(0\); got 1"):
        compiled.run_async({"x": value}, outputs=[0]).row(1)


def test_runs_follow_one_another(session: rlx.Session, rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("grow")
    compiled = session.compile(b.build(b.input("x", "f32[n]") * 2.0))
    sets = [_draw(rng, n) for n in (1, 4, 2, 4)]
    for depth in (1, 3):
        found = compiled.run_pipelined(({"x": x} for x in sets), depth=depth)
        for (got,), x in zip(found, sets, strict=True):
            np.testing.assert_array_equal(got, x * 2)
    with pytest.raises(RunError, match="depth is required to be an int ≥ 1; got 0"):
        compiled.run_pipelined([], depth=0)


def test_pipelined_runs_of_a_kept_input_read_every_state(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("count")
    x, s = b.input("x", "f32[]"), b.input("s", "f32[]")
    compiled = session.compile(b.build(s + x), options=rlx.CompileOptions(resident={"s": 0}))
    compiled.set_kept("s", 0.0)
    found = compiled.run_pipelined([{"x": 1.0}] * 4, depth=3)
    assert [float(out) for (out,) in found] == [1.0, 2.0, 3.0, 4.0]


def test_a_clone_shares_programs_and_params(session: rlx.Session, rng: np.random.Generator) -> None:
    compiled = session.compile(_scale())
    w, x = _draw(rng, 3), _draw(rng, 2, 3)
    compiled.set_param("w", w)
    compiled(x)
    twin = compiled.clone()
    assert twin.params()["w"] is compiled.params()["w"]
    assert twin.specializations().misses == 0
    assert [r.hits for r in twin.specializations()] == [0]
    np.testing.assert_allclose(twin(x), x * w, rtol=1e-6)
    twin.set_param("w", w + 1)
    np.testing.assert_allclose(twin(x), x * (w + 1), rtol=1e-6)
    np.testing.assert_allclose(compiled(x), x * w, rtol=1e-6)
    assert (twin.device, twin.graph) == (compiled.device, compiled.graph)


def test_a_clone_of_symbolic_sizes(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("grow")
    compiled = session.compile(b.build(b.input("x", "f32[n]") * 2.0))
    compiled.warm([{"n": 3}])
    twin = compiled.clone()
    twin(np.ones(3, np.float32))
    assert twin.specializations().misses == 0
    twin(np.ones(4, np.float32))
    assert twin.specializations().misses == 1
    assert compiled.specializations().misses == 1


def test_bound_params_are_folded_and_fixed(session: rlx.Session, rng: np.random.Generator) -> None:
    x, w = _draw(rng, 2, 3), _draw(rng, 3)
    options = rlx.CompileOptions(param_bindings={"w": w})
    compiled = session.compile(_scale(), options=options)
    np.testing.assert_allclose(compiled(x), x * w, rtol=1e-6)
    assert [v.name for v in compiled.report().lir.graph.params] == []
    assert compiled.capabilities().fixed_params == ("w",)
    with pytest.raises(
        RunError, match=r"'w' is required to be free; CompileOptions.param_bindings"
    ):
        compiled.set_param("w", w)
    with pytest.raises(RunError, match="'w' is required to be free"):
        compiled.set_param_range("w", 0, b"")
    compiled.finalize_params()


def test_a_bound_param_decides_what_is_constant(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("fold")
    x, k = b.input("x", "f32[2]"), b.param("k", "f32[2]")
    graph = b.build(x + (k * 2.0 + 1.0).exp())
    bound = session.compile(graph, options=rlx.CompileOptions(param_bindings={"k": [1.0, 2.0]}))
    names = {n.op.op_name for n in bound.report().lir.graph.nodes()}
    assert names == {"input", "constant", "add"}
    np.testing.assert_allclose(bound(np.zeros(2, np.float32)), np.exp([3.0, 5.0]), rtol=1e-5)


def test_a_large_bound_param_is_no_literal(session: rlx.Session, rng: np.random.Generator) -> None:
    """What folding cannot use is a param again, bound to the value; it is still fixed."""
    for rows, note in (
        (256, "w: f32[256, 256] is read as it is, from a param with that value"),
        (2048, "w: f32[2048, 256] stays a param with that value; its 2,097,152 bytes are more "
               "than 1,048,576"),
    ):  # fmt: skip
        b = rlx.GraphBuilder("large")
        x, w, k = (
            b.input("x", f"f32[2, {rows}]"),
            b.param("w", f"f32[{rows}, 256]"),
            b.param("k", "f32[1]"),
        )
        value = _draw(rng, rows, 256)
        options = rlx.CompileOptions(param_bindings={"w": value, "k": [2.0]}, validate=rows == 256)
        compiled = session.compile(b.build(x @ w * k), options=options)
        given = _draw(rng, 2, rows)
        np.testing.assert_allclose(compiled(given), given @ value * 2, rtol=1e-3, atol=1e-2)
        assert [v.name for v in compiled.report().lir.graph.params] == ["w"]
        assert note in [n for record in compiled.report().passes for n in record.notes]
        with pytest.raises(RunError, match="'w' is required to be free"):
            compiled.set_param("w", value)
        twin = compiled.clone()
        np.testing.assert_array_equal(np.asarray(twin(given)), np.asarray(compiled(given)))


def test_folding_reads_large_bound_params(session: rlx.Session, rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("sum")
    x, w = b.input("x", "f32[]"), b.param("w", "f32[64, 256]")
    value = _draw(rng, 64, 256)
    options = rlx.CompileOptions(param_bindings={"w": value})
    compiled = session.compile(b.build(x + w.sum()), options=options)
    assert compiled.report().lir.graph.params == ()
    np.testing.assert_allclose(float(compiled(0.0)), value.sum(dtype=np.float64), rtol=1e-4)


def test_packed_params_are_bound(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("packed")
    graph = b.build(b.param("p", "u8[4]").convert(rlx.DType.F32))
    options = rlx.CompileOptions(quant_param_bindings={"p": bytes([1, 2, 3, 255])})
    assert session.compile(graph, options=options).run({})[0].tolist() == [1, 2, 3, 255]
    wrong = rlx.CompileOptions(quant_param_bindings={"p": b"123", "q": b""})
    with pytest.raises(CompileError) as caught:
        session.compile(graph, options=wrong)
    assert "4 elements of u8 in 4 bytes; got 3 bytes" in str(caught.value)
    assert "CompileOptions.quant_param_bindings: unknown param 'q'; params are 'p': u8[4]" in str(
        caught.value
    )


def test_bound_params_are_checked(session: rlx.Session) -> None:
    for bad, text in (
        ({"W": [1.0]}, r"param_bindings: unknown param 'W'.*Did you mean 'w'"),
        ({"w": [1.0]}, r"param_bindings: param 'w' is required to be f32\[3\]; got f32\[1\]"),
    ):
        with pytest.raises(CompileError, match=text):
            session.compile(_scale(), options=rlx.CompileOptions(param_bindings=bad))


def test_params_are_shared_by_name(session: rlx.Session, rng: np.random.Generator) -> None:
    first = session.compile(_scale())
    b = rlx.GraphBuilder("other")
    second = session.compile(b.build(b.param("w", "f32[3]") + b.param("v", "f32[3]")))
    with pytest.raises(RunError, match=r"'w': f32\[3\], 'v': f32\[3\]\); 'scale' has bound none"):
        second.share_params_from(first)
    w, v = _draw(rng, 3), _draw(rng, 3)
    first.set_param("w", w)
    second.set_param("v", v)
    second.share_params_from(first)
    np.testing.assert_allclose(second.run({})[0], w + v, rtol=1e-6)
    first.set_param("w", w * 2)
    np.testing.assert_allclose(second.run({})[0], w + v, rtol=1e-6)


def test_bytes_come_from_any_buffer(session: rlx.Session, rng: np.random.Generator) -> None:
    compiled: Any = session.compile(_scale())
    w: Any = _draw(rng, 3)
    x = _draw(rng, 2, 3)
    for data in (w.tobytes(), bytearray(w.tobytes()), memoryview(w), w):
        compiled.set_param_typed("w", np.zeros(3, np.float32).tobytes(), "f32")
        compiled.set_param_typed("w", data, "f32")
        np.testing.assert_allclose(compiled.run({"x": x})[0], x * w, rtol=1e-6)
    compiled.set_param_range("w", 4, memoryview(w[:1]))
    np.testing.assert_array_equal(np.asarray(compiled.params()["w"]), w[[0, 0, 2]])
    wanted = (
        "set_param_typed: param 'w' is required to be given as bytes; got str. Use "
        "array.tobytes(), or set_param for an array."
    )
    with pytest.raises(RunError, match=f"^{re.escape(wanted)}$"):
        compiled.set_param_typed("w", "abcdefghijkl", "f32")
    with pytest.raises(RunError, match="param 'w' is required to be given as bytes; got list"):
        compiled.set_param_range("w", 0, [1, 2])


def test_what_is_no_number_of_an_output(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("two")
    x = b.input("x", "f32[2]")
    compiled: Any = session.compile(b.build(x + 1.0, x * 2.0))
    feed = {"x": np.ones(2, np.float32)}
    with pytest.raises(RunError, match="run: outputs are numbered 0 to 1; got True"):
        compiled.run(feed, outputs=[True])
    wanted = (
        "keep: the output that feeds 'x' is required to be its number; got '1'. Outputs are "
        "numbered from 0."
    )
    with pytest.raises(CompileError, match=f"^{re.escape(wanted)}$"):
        compiled.keep("x", from_output="1")
    with pytest.raises(RunError, match=r"run_pipelined: a list of mappings .* got NoneType"):
        compiled.run_pipelined(None)
    with pytest.raises(RunError, match=r"got dict\. For one run use run\."):
        compiled.run_pipelined(feed)
    assert compiled.run(feed)[1].tolist() == [2.0, 2.0]


def test_masks_are_not_lost(session: rlx.Session) -> None:
    compiled: Any = session.compile(_scale())
    masked = np.ma.masked_array(np.ones(3, np.float32), mask=[0, 1, 0])
    wanted = (
        "set_param: param 'w' is required to be an array without a mask; got a masked array. Use "
        ".filled(value), or pass its data and its mask."
    )
    with pytest.raises(RunError, match=f"^{re.escape(wanted)}$"):
        compiled.set_param("w", masked)
    compiled.set_param("w", masked.filled(0))
    with pytest.raises(RunError, match="run: input 'x' is required to be an array without a mask"):
        compiled.run({"x": np.ma.zeros((2, 3), np.float32)})
    with pytest.raises(DTypeError, match="constant is required to be an array without a mask"):
        rlx.constant(masked)
    with pytest.raises(RunError, match=r"required to be f32\[3\]; got None\. Pass an array"):
        compiled.set_param("w", None)
