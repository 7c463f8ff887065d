"""Quantisation passes: what they make of graphs, and that they keep what they may not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import PassError, RlxError
from rlx.ops.pooling import WindowKind
from rlx.ops.quantized import FakeQuantize, FakeQuantizeLsq, ScaleMode
from rlx.passes.base import PassContext
from rlx.quant import CalibrationRecord, ScaledQuantConfig, TensorScale

Array = np.ndarray[Any, Any]


def applied(graph: rlx.Graph, one: Any, **options: Any) -> tuple[rlx.Graph, list[str]]:
    ctx = PassContext(rlx.CompileOptions(**options))
    result = one.run(graph, ctx)
    rlx.verify(result)
    return result, ctx.notes


def names(graph: rlx.Graph) -> list[str]:
    return [n.op.op_name for n in graph.nodes() if n.op.op_name not in ("input", "param")]


def scaled(config: ScaledQuantConfig) -> Any:
    return rlx.passes.InsertScaledMatmul(config=config)


def test_scaled_matmul_graph() -> None:
    graph = rlx.parse("""graph "g" {
  input %x "x": bf16[m, 64]
  param %w "w": bf16[64, 10]
  %0 = matmul(%x, %w): bf16[m, 10]
  return %0
}
""")
    result, notes = applied(graph, scaled(ScaledQuantConfig.mxfp8_e4m3()))
    expected = rlx.parse("""graph "g" {
  input %x "x": bf16[m, 64]
  param %w "w": bf16[64, 10]
  %0 = scaled_quant_scale(%x) {format = "f8e4m3", layout = "mx_e8m0/32"}: u8[m, 2]
  %1 = scaled_quantize(%x, %0) {format = "f8e4m3", layout = "mx_e8m0/32"}: u8[m, 64]
  %2 = transpose(%w) {permutation = (1, 0)}: bf16[10, 64]
  %3 = scaled_quant_scale(%2) {format = "f8e4m3", layout = "mx_e8m0/32"}: u8[10, 2]
  %4 = scaled_quantize(%2, %3) {format = "f8e4m3", layout = "mx_e8m0/32"}: u8[10, 64]
  %5 = scaled_matmul(%1, %4, %0, %3) {lhs_format = "f8e4m3", rhs_format = "f8e4m3", \
layout = "mx_e8m0/32"}: f32[m, 10]
  %6 = convert(%5) {dtype = bf16}: bf16[m, 10]
  return %6
}
""")
    assert rlx.same(result, expected), str(result)
    assert notes == ["1 matmuls in f8e4m3, mx_e8m0/32"]


def test_a_tensor_is_quantised_once() -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[4, 8]")
    products = [x @ b.param(f"w{i}", "f32[8, 3]") for i in range(3)]
    result, notes = applied(b.build(products), scaled(ScaledQuantConfig.fp8_e4m3()))
    assert names(result).count("scaled_quantize") == 4
    assert notes == ["3 matmuls in f8e4m3, per_tensor"]


@pytest.mark.parametrize("axes", [(1, 0), (1, 1), (0, 0), (0, 1)])
def test_dot_general_of_matrices(axes: tuple[int, int], rng: np.random.Generator) -> None:
    lhs, rhs = (6, 64) if axes[0] else (64, 6), (5, 64) if axes[1] else (64, 5)
    b = rlx.GraphBuilder()
    x, w = b.input("x", f"f32{list(lhs)}"), b.input("w", f"f32{list(rhs)}")
    dot = rlx.ops.DotGeneral(lhs_contracting=axes[:1], rhs_contracting=axes[1:])
    graph = b.build(dot(x, w))
    feeds = {"x": rng.normal(size=lhs).astype("f"), "w": rng.normal(size=rhs).astype("f")}
    wanted = rlx.interpret(graph, feeds)[0]
    for config, error in (
        (ScaledQuantConfig.fp8_e4m3(), 0.1),
        (ScaledQuantConfig.mxfp8_e4m3(), 0.1),
        (ScaledQuantConfig.nvfp4(), 0.3),
        (ScaledQuantConfig.of("f6e2m3", "per_row"), 0.1),
    ):
        result, _ = applied(graph, scaled(config))
        assert "dot_general" not in names(result)
        found = rlx.interpret(result, feeds)[0]
        assert 1e-4 < np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < error


def test_groups_that_scales_of_e4m3_lose_are_named() -> None:
    b = rlx.GraphBuilder()
    graph = b.build(b.input("x", "f32[1, 16]") @ b.input("w", "f32[16, 1]"))
    told = "groups of f8e5m2 whose largest |x| is at most 56 become 0: their scales round to 0 in "
    for largest, lost in ((56.0, True), (56.5, False)):  # 57344 · 2^-10; E4M3 begins at 2^-9
        feeds = {"x": np.full((1, 16), largest, "f"), "w": np.full((16, 1), 300, "f")}
        result, notes = applied(graph, scaled(ScaledQuantConfig.of("f8e5m2", "nvfp4/16")))
        assert told + "nvfp4/16; mx_e8m0/32 keeps them" in notes
        assert (rlx.interpret(result, feeds)[0].item() == 0) == lost
    for config in (ScaledQuantConfig.nvfp4(), ScaledQuantConfig.of("f8e5m2", "mx_e8m0/16")):
        assert not any("become 0" in note for note in applied(graph, scaled(config))[1])


def test_what_is_no_product_of_two_matrices_stays() -> None:
    b = rlx.GraphBuilder()
    x, v, m = b.input("x", "f32[2, 4, 4]"), b.input("v", "f32[4]"), b.input("m", "f64[4, 4]")
    i = b.input("i", "i32[4, 4]")
    graph = b.build(x @ x, x @ v, m @ m, i @ i)
    assert applied(graph, scaled(ScaledQuantConfig.fp8_e4m3()))[0] is graph


def test_blocks_need_a_number() -> None:
    b = rlx.GraphBuilder()
    graph = b.build(b.input("x", "f32[2, k]") @ b.input("w", "f32[k, 3]"))
    result, notes = applied(graph, scaled(ScaledQuantConfig.mxfp8_e4m3()))
    assert result is graph
    assert len(notes) == 1
    assert "stays: blocks need a number for k. Bind its symbols." in notes[0]
    assert applied(graph, scaled(ScaledQuantConfig.fp8_e4m3()))[0] is not graph


def test_the_option_changes_what_is_compiled(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder()
    graph = b.build(b.input("x", "f32[3, 64]") @ b.param("w", "f32[64, 5]"))
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((3, 64), (64, 5)))
    config = ScaledQuantConfig.of("f4e3m0", "mx/16")
    session = rlx.Session("interpret")
    found = []
    for chosen in (None, config):
        compiled = session.compile(graph, options=rlx.CompileOptions(scaled_quant=chosen))
        compiled.set_param("w", w)
        found.append(compiled.run({"x": x})[0])
    by_hand, _ = applied(graph, scaled(config))
    np.testing.assert_allclose(found[0], x @ w, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[1], rlx.interpret(by_hand, {"x": x}, {"w": w})[0])
    assert np.abs(found[1] - found[0]).max() > 0.1


def test_calibrated_tensors_go_there_and_back(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder()
    x, w = b.input("x", "f32[m, 8]"), b.param("w", "f32[8, 3]")
    hidden = (x @ w).relu()
    graph = b.build(hidden @ b.param("v", "f32[3, 3]"))
    params = {"w": rng.normal(size=(8, 3)).astype("f"), "v": np.eye(3, dtype=np.float32)}
    batches = [{"x": rng.normal(size=(m, 8)).astype("f")} for m in (4, 2)]
    record = CalibrationRecord.observe(graph, batches, params)
    recorded = dict(record.entries)
    assert list(recorded) == ["x", "w", "%1", "v"]
    greatest = max(float(np.abs(batch["x"]).max()) for batch in batches)
    assert recorded["x"].scales[0] == pytest.approx(greatest / 127)
    result, notes = applied(graph, rlx.passes.InsertQDQ(calibration=record))
    assert notes == ["4 tensors quantised"]
    assert names(result).count("quantize") == names(result).count("dequantize") == 4
    for batch in batches:
        wanted = rlx.interpret(graph, batch, params)[0]
        found = rlx.interpret(result, batch, params)[0]
        assert 0 < np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max() + 0.05


def test_recorded_by_hand_and_asymmetric(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "bf16[4]")
    graph = b.build(x + x)
    record = CalibrationRecord.of({"x": TensorScale((0.5,), (3,)), "%0": TensorScale((0.25,))})
    result, _ = applied(graph, rlx.passes.InsertQDQ(calibration=record))
    assert names(result) == [
        "quantize", "dequantize", "convert", "add", "quantize", "dequantize", "convert",
    ]  # fmt: skip
    assert [v.type for v in result.outputs] == [v.type for v in graph.outputs]
    scale = TensorScale.from_range(-1.0, 4.0, symmetric=False)
    codes = np.round(np.array([-1.0, 0.0, 4.0]) / scale.scales[0]) + scale.zero_points[0]
    assert codes.tolist() == [-128, scale.zero_points[0], 127]


def test_unknown_tensors_and_ranges() -> None:
    b = rlx.GraphBuilder()
    graph = b.build(b.input("speed", "f32[4]").relu())
    wrong = rlx.passes.InsertQDQ(calibration=CalibrationRecord.of({"sped": TensorScale((1.0,))}))
    with pytest.raises(PassError) as caught:
        wrong.run(graph, PassContext())
    assert str(caught.value) == (
        "insert-qdq: recorded tensors are required to be in the graph; 'sped' is not. "
        "Did you mean 'speed'? Record this graph."
    )
    with pytest.raises(RlxError) as other:
        CalibrationRecord.observe(graph, [], tensors=["sped"])
    assert str(other.value) == (
        "calibration: 'sped' is required to be a tensor of the graph. Did you mean 'speed'? "
        "Print the graph for its names."
    )
    batch = {"speed": np.float32([1, np.inf, 0, 0])}
    with pytest.raises(RlxError) as third:
        CalibrationRecord.observe(graph, [batch], tensors=["speed"])
    assert str(third.value) == (
        "calibration: 'speed' is required to take finite values; got 0.0 to inf. "
        "Pass batches that it has elements in, without NaN."
    )


PROPAGATE = rlx.passes.PropagateQuantization()


def chain(make: Any, given: bool) -> tuple[rlx.Graph, rlx.Graph]:
    """A fake quantisation, something, and the same fake quantisation; and without the second."""
    b = rlx.GraphBuilder()
    x, scale = b.input("x", "f32[2, 3, 4, 4]"), b.input("scale", "f32[1]")
    op = FakeQuantize(bits=4, scale_mode=ScaleMode.FIXED if given else ScaleMode.PER_BATCH)
    state = (scale,) if given else ()
    middle = make(op(x, *state))
    return b.build(op(middle, *state)), b.build(middle)


MOVES: list[Any] = [lambda v: v.reshape(6, 16), lambda v: v.transpose(1, 0, 2, 3)]
PARTS: list[Any] = [
    lambda v: v.narrow(1, 1, 2),
    lambda v: rlx.ops.Concatenate(axis=0)(v, v),
    lambda v: v.relu(),
    lambda v: rlx.ops.Pool(kind=WindowKind.MAX, kernel=(2, 2), stride=(2, 2), padding=(0, 0))(v),
]


@pytest.mark.parametrize("make", MOVES + PARTS, ids=range(6))
def test_a_given_scale_passes_through(make: Any, rng: np.random.Generator) -> None:
    graph, without = chain(make, given=True)
    result, notes = applied(graph, PROPAGATE)
    assert rlx.same(result, without)
    assert notes == ["1 redundant fake quantisations removed"]
    feeds = {"x": rng.normal(size=(2, 3, 4, 4)).astype("f"), "scale": np.float32([0.3])}
    found, wanted = rlx.interpret(result, feeds)[0], rlx.interpret(graph, feeds)[0]
    np.testing.assert_array_equal(found, wanted)
    assert applied(graph, PROPAGATE, strict=True)[0] is not graph


@pytest.mark.parametrize("make", MOVES, ids=range(2))
def test_the_greatest_element_stays_the_same(make: Any, rng: np.random.Generator) -> None:
    graph, without = chain(make, given=False)
    assert rlx.same(applied(graph, PROPAGATE)[0], without)
    feeds = {"x": rng.normal(size=(2, 3, 4, 4)).astype("f"), "scale": np.float32([0.3])}
    found, wanted = (rlx.interpret(g, feeds)[0] for g in (without, graph))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert applied(graph, PROPAGATE, strict=True)[0] is graph


@pytest.mark.parametrize("make", PARTS, ids=range(4))
def test_a_part_has_another_greatest_element(make: Any) -> None:
    graph, _ = chain(make, given=False)
    assert applied(graph, PROPAGATE)[0] is graph


def test_other_grids_stay() -> None:
    b = rlx.GraphBuilder()
    x, scale, other = b.input("x", "f32[4]"), b.input("s", "f32[1]"), b.input("t", "f32[1]")
    learned = FakeQuantizeLsq(bits=4)
    average = FakeQuantize(scale_mode=ScaleMode.EMA)
    mean, state = average(x, scale)
    graph = b.build(
        learned(learned(x, scale), other),
        FakeQuantizeLsq(bits=8)(learned(x, scale), scale),
        learned(x + learned(x, scale), scale),
        average(mean, state),
    )
    assert applied(graph, PROPAGATE)[0] is graph
    twice = b.build(learned(learned(x, scale).relu(), scale))
    assert names(applied(twice, PROPAGATE)[0]) == ["fake_quantize_lsq", "relu"]


def test_weights_are_quantised_once_where_stages_are_split(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder()
    graph = b.build(b.input("x", "f32[3, 64]") @ b.param("w", "f32[64, 5]"))
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((3, 64), (64, 5)))
    found = []
    for staged in (False, True):
        options = rlx.CompileOptions(
            scaled_quant=ScaledQuantConfig.mxfp8_e4m3(), cache_param_invariant=staged
        )
        compiled = rlx.Session("interpret").compile(graph, options=options)
        compiled.set_param("w", w)
        found.append(compiled.run({"x": x})[0])
    np.testing.assert_array_equal(found[1], found[0])
    report = str(compiled.report())
    prepare, main = report[report.index("prepare:") :].split("main:")
    assert "scaled_quantize × 1" in prepare
    assert "scaled_quantize × 1" in main  # of x
    assert "scaled_matmul" not in prepare
