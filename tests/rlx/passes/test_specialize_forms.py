"""Specialize on CPUs: functions written out in doubles, and one row as two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.text_parse import parse
from rlx.ir.verify import verify
from rlx.ops.arithmetic import Rem
from rlx.ops.dot import DotGeneral
from rlx.ops.transcendental import Atan2, Cos, Sin, Tan
from rlx.options.compile import CompileOptions
from rlx.passes import PassContext, Specialize

CPU = PassContext(platform="cpu")
SIZE = 2**15
SPECIAL = np.array(
    [0.0, -0.0, np.nan, 1e-30, -1e-30, np.pi, -np.pi / 2, 9999999.0, 1.0, -1.0], np.float32
)
INFINITE = np.array([np.inf, -np.inf, 3e38, -2e7], np.float32)
FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "sin": (Sin(), np.sin), "cos": (Cos(), np.cos), "tan": (Tan(), np.tan),
    "atan2": (Atan2(), np.arctan2), "rem": (Rem(), np.fmod),
}  # fmt: skip


def names(graph: Graph) -> set[str]:
    return {node.op.op_name for node in graph.nodes()}


def drawn(name: str, rng: np.random.Generator, *, wide: bool) -> list[np.ndarray]:
    """Operands with every pair of special values, and where wide with what is out of range."""
    count = 2 if name in ("atan2", "rem") else 1
    special = np.concatenate([SPECIAL, INFINITE]) if wide else SPECIAL
    places = np.meshgrid(*[special] * count)
    made: list[np.ndarray] = []
    for values in places:
        data = rng.standard_normal(SIZE) * 10.0 ** rng.uniform(-3, 5 if count == 1 else 1, SIZE)
        data = data.astype(np.float32)
        data[: values.size] = values.ravel()
        made.append(data)
    if name == "rem" and not wide:  # without a zero or a very small divisor
        made[1] = np.where(np.abs(made[1]) < 1e-6, np.float32(0.3), made[1])
    return made


def built(name: str, size: int = SIZE) -> Graph:
    b = GraphBuilder()
    count = 2 if name in ("atan2", "rem") else 1
    return b.build(FUNCTIONS[name][0](*(b.input(f"x{i}", f"f32[{size}]") for i in range(count))))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_written_out_in_doubles(name: str, wide: bool, rng: np.random.Generator) -> None:
    graph = built(name)
    made = Specialize().run(graph, CPU)
    verify(made)
    assert name not in names(made)
    operands = drawn(name, rng, wide=wide)
    (found,) = interpret(made, {f"x{i}": v for i, v in enumerate(operands)})
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name][1](*(v.astype(np.float64) for v in operands))
        wanted = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(wanted)[known])
    if name == "rem":
        np.testing.assert_array_equal(found, wanted)
        return
    finite = np.isfinite(exact)
    unit = np.spacing(np.maximum(np.abs(wanted[finite]), np.float32(1e-30))).astype(np.float64)
    assert (np.abs(found[finite] - exact[finite]) / unit).max() <= 0.6


@pytest.mark.parametrize("name", FUNCTIONS)
def test_small_arrays_and_other_dtypes_stay(name: str) -> None:
    small = built(name, 4095)
    assert Specialize().run(small, CPU) is small
    b = GraphBuilder()
    count = 2 if name in ("atan2", "rem") else 1
    wide = b.build(FUNCTIONS[name][0](*(b.input(f"x{i}", f"f64[{SIZE}]") for i in range(count))))
    assert Specialize().run(wide, CPU) is wide
    assert Specialize().run(built(name), PassContext(platform="tpu")).outputs


def test_strict_writes_out_only_what_is_exact() -> None:
    strict = PassContext(CompileOptions(strict=True), platform="cpu")
    for name in ("sin", "cos", "tan", "atan2"):
        graph = built(name)
        assert Specialize().run(graph, strict) is graph
    assert "rem" not in names(Specialize().run(built("rem"), strict))


def test_restricted_ops_stay() -> None:
    options = CompileOptions(supported_ops=["sin", "dot_general"])
    restricted = PassContext(options, platform="cpu")
    for graph in (built("sin"), product(ROWS["a row"], "bf16", "f32")):
        assert Specialize().run(graph, restricted) is graph


def test_the_record_counts_them() -> None:
    ctx = PassContext(platform="cpu")
    Specialize().run(built("sin"), ctx)
    assert ctx.notes == ["sin of f32 in f64 × 1"]


ROWS = {
    "a row": 'input %x "x": {t}[1, 4096] input %w "w": {t}[32, 4096] '
    "%0 = dot_general(%x, %w) {{lhs_contracting = (1,), rhs_contracting = (1,), "
    "preferred_element_type = {r}}}: {r}[1, 32]",
    "by columns": 'input %x "x": {t}[1, 1, 256] input %w "w": {t}[256, 4, 64] '
    "%0 = dot_general(%x, %w) {{lhs_contracting = (2,), rhs_contracting = (0,), "
    "preferred_element_type = {r}}}: {r}[1, 1, 4, 64]",
    "on the right": 'input %w "w": {t}[256, 4, 64] input %x "x": {t}[4, 64] '
    "%0 = dot_general(%w, %x) {{lhs_contracting = (2, 1), rhs_contracting = (1, 0), "
    "preferred_element_type = {r}}}: {r}[256]",
}
LEFT = {
    "short rows of a matrix by rows": 'input %x "x": {t}[1, 1024] input %w "w": {t}[256, 1024] '
    "%0 = dot_general(%x, %w) {{lhs_contracting = (1,), rhs_contracting = (1,), "
    "preferred_element_type = {r}}}: {r}[1, 256]",
    "two rows": 'input %x "x": {t}[2, 256] input %w "w": {t}[256, 256] '
    "%0 = dot_general(%x, %w) {{lhs_contracting = (1,), rhs_contracting = (0,), "
    "preferred_element_type = {r}}}: {r}[2, 256]",
    "a small matrix": 'input %x "x": {t}[1, 64] input %w "w": {t}[64, 64] '
    "%0 = dot_general(%x, %w) {{lhs_contracting = (1,), rhs_contracting = (0,), "
    "preferred_element_type = {r}}}: {r}[1, 64]",
    "a batch": 'input %x "x": {t}[4, 1, 256] input %w "w": {t}[4, 256, 256] '
    "%0 = dot_general(%x, %w) {{lhs_contracting = (2,), rhs_contracting = (1,), "
    "lhs_batch = (0,), rhs_batch = (0,), preferred_element_type = {r}}}: {r}[4, 1, 256]",
}


def product(text: str, dtype: str, result: str) -> Graph:
    body = text.format(t=dtype, r=result)
    return parse(f'graph "g" {{ {body} return %0 }}')


@pytest.mark.parametrize(("dtype", "result"), [("bf16", "f32"), ("bf16", "bf16"), ("i8", "i32")])
@pytest.mark.parametrize("name", ROWS)
def test_one_row_as_two(name: str, dtype: str, result: str, rng: np.random.Generator) -> None:
    graph = product(ROWS[name], dtype, result)
    made = Specialize().run(graph, CPU)
    verify(made)
    (dot,) = [n for n in made.nodes() if isinstance(n.op, DotGeneral)]
    assert dot.inputs[0].shape[0] == 2
    feed: dict[str, np.ndarray] = {}
    for value in graph.inputs:
        shape = tuple(int(str(d)) for d in value.shape)
        if dtype == "i8":
            feed[value.name] = rng.integers(-128, 128, shape).astype(np.int8)
        else:
            feed[value.name] = rng.standard_normal(shape).astype(value.dtype.numpy)
    (before,), (after,) = interpret(graph, feed), interpret(made, feed)
    assert before.dtype == after.dtype
    tolerance = {"i32": 0.0, "f32": 1e-4, "bf16": 1e-2}[result]
    wide = before.astype(np.float64)
    np.testing.assert_allclose(
        after.astype(np.float64), wide, rtol=tolerance, atol=tolerance * np.abs(wide).max()
    )


@pytest.mark.parametrize("name", LEFT)
def test_other_products_stay(name: str) -> None:
    graph = product(LEFT[name], "bf16", "f32")
    assert Specialize().run(graph, CPU) is graph


def test_rows_of_other_dtypes_and_what_a_kernel_takes_stay() -> None:
    for dtype, result in (("f32", "f32"), ("f16", "f32"), ("u8", "u32")):
        graph = product(ROWS["a row"], dtype, result)
        assert Specialize().run(graph, CPU) is graph
    graph = product(ROWS["a row"], "bf16", "f32")
    kernel = PassContext(platform="cpu", has_kernel=lambda node: True)
    assert Specialize().run(graph, kernel) is graph
    strict = PassContext(CompileOptions(strict=True), platform="cpu")
    assert Specialize().run(graph, strict) is graph
    whole = product(ROWS["a row"], "i8", "i32")
    assert Specialize().run(whole, strict) is not whole
