"""Precision policies: what is lowered, what stays in f32, and that it is safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.dtypes import DType, as_dtype
from rlx.errors import CompileError
from rlx.ir.attributes import Literal
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.interpret import interpret
from rlx.ir.verify import verify
from rlx.numpy_backend import NumpyBackend
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.compare import Select
from rlx.ops.control_flow import Scan
from rlx.ops.dot import DotGeneral
from rlx.ops.indexing import GatherGeneral, IndexMode, Take
from rlx.ops.io import Input
from rlx.ops.normalization import LayerNorm
from rlx.ops.reduction import Mean, ReduceMax, ReduceSum
from rlx.ops.shape import BroadcastInDim
from rlx.ops.transcendental import Rsqrt
from rlx.options.precision import OpClass, Precision, PrecisionPolicy, effective
from rlx.passes import ApplyPrecision, PassContext
from tests.conformance.runner import all_samples

POLICIES = (
    PrecisionPolicy.ALWAYS_F16,
    PrecisionPolicy.AUTO_MIXED,
    PrecisionPolicy.AUTO_MIXED_CONSERVATIVE,
    PrecisionPolicy.AUTO_MIXED_BF16,
    PrecisionPolicy.AUTO_MIXED_BF16_SAFE,
)
SAFE = POLICIES[1:]
LOW = (DType.F16, DType.BF16)


def lowered(graph: Graph, policy: PrecisionPolicy) -> tuple[Graph, list[str]]:
    ctx = PassContext()
    made = ApplyPrecision(policy=policy).run(graph, ctx)
    verify(made)
    return made, ctx.notes


def dtypes(graph: Graph, op: str) -> list[DType]:
    """The dtypes that the nodes of an op read."""
    return [n.inputs[0].type.dtype for n in graph.nodes() if n.op.op_name == op]


def mlp() -> Graph:
    b = rlx.GraphBuilder("mlp")
    x, w, v = b.input("x", "f32[4, 8]"), b.param("w", "f32[8, 16]"), b.param("v", "f32[16, 3]")
    with rlx.scope("body"):
        hidden = (x @ w).tanh()
    with rlx.scope("head"):
        logits = hidden @ v
    return b.build(logits.softmax(axis=-1))


def test_products_and_steps_are_low_and_softmax_is_not() -> None:
    graph, notes = lowered(mlp(), PrecisionPolicy.AUTO_MIXED_BF16)
    assert dtypes(graph, "matmul") == [DType.BF16] * 2
    assert dtypes(graph, "tanh") == [DType.BF16]
    assert dtypes(graph, "softmax") == [DType.F32]
    assert notes == [
        "compute in bf16: 2 ops",
        "elementwise in bf16: 1 ops",
        "casts: bf16 → f32 × 1, f32 → bf16 × 3",
        "params converted on every run: w, v; cache_param_invariant=True converts them once",
    ]


@pytest.mark.parametrize(
    ("policy", "product", "step", "sum_"),
    [
        (PrecisionPolicy.ALWAYS_F32, DType.F32, DType.F32, DType.F32),
        (PrecisionPolicy.ALWAYS_F16, DType.F16, DType.F16, DType.F32),
        (PrecisionPolicy.AUTO_MIXED, DType.F16, DType.F16, DType.F32),
        (PrecisionPolicy.AUTO_MIXED_CONSERVATIVE, DType.F16, DType.F32, DType.F32),
        (PrecisionPolicy.AUTO_MIXED_BF16, DType.BF16, DType.BF16, DType.F32),
        (PrecisionPolicy.AUTO_MIXED_BF16_SAFE, DType.F32, DType.BF16, DType.F32),
        (PrecisionPolicy.custom({OpClass.COMPUTE: Precision.BF16}), DType.BF16, DType.F32,
         DType.F32),
    ],
    ids=str,
)  # fmt: skip
def test_each_policy(policy: PrecisionPolicy, product: DType, step: DType, sum_: DType) -> None:
    graph, _ = lowered(mlp(), policy)
    assert dtypes(graph, "matmul") == [product] * 2
    assert dtypes(graph, "tanh") == [step]
    assert dtypes(graph, "softmax") == [sum_]
    assert graph.outputs[0].type.dtype is DType.F32


def test_a_dot_accumulates_in_f32_and_is_not_rounded_on_its_way_into_f32() -> None:
    b = rlx.GraphBuilder("dot")
    x, w = b.input("x", "f32[4, 8]"), b.param("w", "f32[8, 16]")
    dot = DotGeneral(lhs_contracting=(1,), rhs_contracting=(0,))(x, w)
    graph, _ = lowered(b.build(ReduceMax(axes=(1,))(dot)), PrecisionPolicy.AUTO_MIXED)
    assert dtypes(graph, "dot_general") == [DType.F16]
    (node,) = [n for n in graph.nodes() if n.op.op_name == "dot_general"]
    assert node.types[0].dtype is DType.F32
    assert node.results[0] in {v for n in graph.nodes() for v in n.inputs
                               if n.op.op_name == "reduce_max"}  # fmt: skip


def test_integers_bools_and_other_floats_are_left_alone() -> None:
    b = rlx.GraphBuilder("others")
    i, p = b.input("i", "i32[4]"), b.input("p", "bool[4]")
    d, h = b.input("d", "f64[4]"), b.input("h", "f16[4]")
    graph = b.build(i + i, Select()(p, d, d * d), h * h)
    for policy in POLICIES:
        assert lowered(graph, policy)[0] is graph


def test_the_boundary_keeps_its_dtypes() -> None:
    for policy in POLICIES:
        made, _ = lowered(mlp(), policy)
        assert [str(v.type) for v in (*made.inputs, *made.params, *made.outputs)] == [
            str(v.type) for v in (*mlp().inputs, *mlp().params, *mlp().outputs)
        ]


def test_labels_override() -> None:
    policy = PrecisionPolicy.AUTO_MIXED_BF16.override("head*", Precision.F32)
    graph, notes = lowered(mlp(), policy)
    found = {n.location.label: n.inputs[0].type.dtype for n in graph.nodes()
             if n.op.op_name == "matmul"}  # fmt: skip
    assert found == {"body": DType.BF16, "head": DType.F32}
    assert "1 ops by overrides of labels" in notes
    assert str(policy) == "auto_mixed_bf16('head*'=f32)"
    only = PrecisionPolicy.ALWAYS_F32.override("bo?y", Precision.F16)
    assert dtypes(lowered(mlp(), only)[0], "matmul") == [DType.F16, DType.F32]
    for pattern in ("", 3):
        with pytest.raises(CompileError) as caught:
            PrecisionPolicy.AUTO_MIXED.override(pattern, Precision.F32)  # type: ignore[arg-type]
        assert str(caught.value) == (
            "PrecisionPolicy.override: the pattern of a label is required, such as 'encoder/*'; "
            f"got {pattern!r}."
        )
    with pytest.raises(CompileError) as caught:
        PrecisionPolicy.AUTO_MIXED.override("x", "f32")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "PrecisionPolicy.override: a Precision is required for 'x'; got 'f32'. Use rlx.Precision."
    )


def test_an_explicit_conversion_keeps_its_target() -> None:
    b = rlx.GraphBuilder("cast")
    x = b.input("x", "f32[4]")
    graph = b.build((x * x).convert(DType.F16) + (x * x).convert(DType.F16))
    made, _ = lowered(graph, PrecisionPolicy.AUTO_MIXED_BF16)
    assert made.outputs[0].type.dtype is DType.F16
    assert dtypes(made, "add") == [DType.F16]


def layer_norm_by_hand(x: Value) -> Value:
    """E[x²] − E[x]², as flax writes it."""
    mean, square = (Mean(axes=(1,))(v).reshape((4, 1)) for v in (x, x * x))
    return (x - mean) * Rsqrt()(square - mean * mean + 1e-5)


def d11(b: rlx.GraphBuilder) -> dict[str, Callable[[], Value]]:
    def norm() -> Value:
        x = b.input("x", "f32[4, 1024]")
        ones, zeros = (b.constant(np.full(1024, n, np.float32)) for n in (1, 0))
        return LayerNorm(axis=1)(x, ones, zeros)

    return {
        "layer_norm": norm,
        "layer_norm_by_hand": lambda: layer_norm_by_hand(b.input("x", "f32[4, 1024]")),
        "softmax": lambda: b.input("x", "f32[4, 1024]").softmax(axis=-1),
        "sum": lambda: ReduceSum(axes=(0,))(b.input("x", "f32[65536]")),
    }


@pytest.mark.parametrize("policy", SAFE, ids=str)
@pytest.mark.parametrize("case", ["layer_norm", "layer_norm_by_hand", "softmax", "sum"])
@pytest.mark.parametrize("around", [False, True])
def test_mixed_policies_are_safe(
    policy: PrecisionPolicy, case: str, around: bool, rng: np.random.Generator
) -> None:
    b = rlx.GraphBuilder(case)
    out = d11(b)[case]()
    if around and out.rank:  # a product behind it, so that something is lowered
        out = (out @ b.param("w", "f32[1024, 4]")).tanh()
    graph = b.build(out)
    x: Any = 300.0 + 50.0 * rng.standard_normal((4, 1024))
    if case == "softmax":
        x = rng.uniform(-1e4, 1e4, (4, 1024))
    if case == "sum":
        x = np.ones(65536)
    feed = {"x": x.astype(np.float32)}
    params = {"w": (rng.standard_normal((1024, 4)) / 32).astype(np.float32)} if graph.params else {}
    compiled = rlx.Session("interpret", policy=policy).compile(graph)
    compiled.set_params(params)
    (found,) = compiled.run(feed)
    (wanted,) = interpret(graph, feed, params)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, wanted, atol=1e-2)
    if case == "sum":
        assert found == 65536.0


def test_what_f16_cannot_hold_is_reported() -> None:
    b = rlx.GraphBuilder("big")
    x = b.input("x", "f32[2]")
    graph = b.build(x * b.constant(np.array([1.0, 1e6], np.float32)))
    report = rlx.Session("interpret", policy=PrecisionPolicy.ALWAYS_F16).compile(graph).report()
    (record,) = [r for r in report.passes if r.name.startswith("apply-precision")]
    (line,) = [n for n in record.notes if n.startswith("overflow")]
    assert line.startswith("overflow: constant f32[2], read by mul at test_precision.py:")
    assert line.endswith("holds 1 elements beyond 65504, the largest f16 (up to 1e+06)")
    mixed = rlx.Session("interpret", policy=PrecisionPolicy.AUTO_MIXED_BF16).compile(graph)
    assert "overflow" not in str(mixed.report())


class _NoF16(NumpyBackend):  # type: ignore[misc]
    lacks = frozenset({DType.F16})


def test_a_device_without_the_dtype_computes_in_f32(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx import backend

    monkeypatch.setitem(backend._FACTORIES, "interpret", lambda device: _NoF16())  # pyright: ignore[reportPrivateUsage]
    compiled = rlx.Session("interpret", precision=Precision.F16).compile(mlp())
    assert {v.type.dtype for n in compiled.report().lir.graph.nodes() for v in n.results} == {
        DType.F32
    }
    line = "the device lacks f16: what always_f16 computes in it stays in f32"
    assert line in str(compiled.report())


def test_the_precision_of_a_session() -> None:
    for precision, dtype in ((Precision.F16, DType.F16), (Precision.BF16, DType.BF16)):
        graph = rlx.Session("interpret", precision=precision).compile(mlp()).report().lir.graph
        assert dtypes(graph, "tanh") == [dtype]
    assert effective(Precision.F32, None) is None
    assert effective(Precision.F16, PrecisionPolicy.ALWAYS_F32) is None
    assert effective(Precision.F16, PrecisionPolicy.AUTO_MIXED_BF16) is (
        PrecisionPolicy.AUTO_MIXED_BF16
    )
    for wrong in ({"precision": "f16"}, {"policy": "auto_mixed"}):
        with pytest.raises(CompileError, match=r"CompileOptions\.p[a-z]+: required a Precision"):
            rlx.Session("interpret", **wrong)  # type: ignore[arg-type]


def test_bodies_of_loops_are_lowered_and_their_carries_are_not(rng: np.random.Generator) -> None:
    leaves = [Input(name=n, dtype=DType.F32, shape=s)() for n, s in
              (("w", (8, 8)), ("c", (4, 8)), ("x", (4, 8)))]  # fmt: skip
    step = (leaves[1] @ leaves[0] + leaves[2]).tanh()
    body = Graph(leaves, (), [step, step])
    b = rlx.GraphBuilder("rnn")
    w, c, xs = b.input("w", "f32[8, 8]"), b.input("c", "f32[4, 8]"), b.input("xs", "f32[5, 4, 8]")
    scan = Scan(body=body, length=5, num_consts=1, num_carry=1)
    graph = b.build(*make_node(scan, [w, c, xs]).results)
    made, notes = lowered(graph, PrecisionPolicy.AUTO_MIXED_BF16)
    inner = made.all_graphs()[0]
    assert dtypes(inner, "matmul") == [DType.BF16]
    assert [v.type for v in inner.inputs] == [v.type for v in body.inputs]
    assert "compute in bf16: 1 ops" in notes
    feeds = {v.name: (rng.standard_normal(v.type.shape) / 3).astype(np.float32)  # type: ignore[arg-type]
             for v in graph.inputs}  # fmt: skip
    for found, wanted in zip(interpret(made, feeds), interpret(graph, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, atol=5e-2)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_every_op_takes_every_policy(policy: PrecisionPolicy, rng: np.random.Generator) -> None:
    """Whatever is lowered is an op that takes the dtype, and the boundary stays."""
    seen: set[str] = set()
    for name, samples in all_samples(rng).items():
        for sample in samples:
            if not any(a.dtype == np.float32 for a in sample.inputs):
                continue
            leaves = [
                Input(name=f"x{i}", dtype=as_dtype(a.dtype), shape=a.shape)()
                for i, a in enumerate(sample.inputs)
            ]
            node: Node = make_node(sample.op, leaves)
            graph = Graph(leaves, (), [v for v in node.results if v.type.dtype is not DType.TOKEN])
            made, _ = lowered(graph, policy)
            assert [v.type for v in made.outputs] == [v.type for v in graph.outputs]
            if made is not graph:
                seen.add(name)
                assert ApplyPrecision(policy=policy).run(graph, PassContext()) is not graph
    assert {"matmul", "attention", "conv"} <= seen or policy is PrecisionPolicy.AUTO_MIXED_BF16_SAFE


def test_rows_are_converted_and_not_the_table_that_they_come_from() -> None:
    b = rlx.GraphBuilder("embed")
    table, w = b.param("table", "f32[1000, 8]"), b.param("w", "f32[8, 8]")
    rows = Take(axis=0)(table, b.input("ids", "i32[3]"))
    graph, notes = lowered(b.build((rows @ w).tanh()), PrecisionPolicy.AUTO_MIXED_BF16)
    assert dtypes(graph, "take") == [DType.F32]
    assert dtypes(graph, "matmul") == [DType.BF16]
    assert not any("table" in note for note in notes)


def test_a_gather_fills_with_a_number_of_the_low_dtype(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("rows")
    x, rows = b.input("x", "f32[5, 3]"), b.input("rows", "i32[4, 1]")
    gather = GatherGeneral(
        slice_sizes=(1, 3),
        offset_dims=(1,),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        mode=IndexMode.FILL_OR_DROP,
        fill_value=Literal(-2.5, DType.F32),
    )
    graph = b.build(gather(x * 2.0, rows))
    made, _ = lowered(graph, PrecisionPolicy.ALWAYS_F16)
    assert dtypes(made, "gather_general") == [DType.F16]
    given = {
        "x": rng.standard_normal((5, 3)).astype(np.float32),
        "rows": np.array([[1], [9], [4], [-3]], np.int32),
    }
    found, wanted = (interpret(g, given)[0] for g in (made, graph))
    np.testing.assert_allclose(found, wanted, rtol=1e-3)
    assert found[1].tolist() == [-2.5, -2.5, -2.5]


@pytest.mark.parametrize("policy", SAFE)
def test_what_a_large_constant_is_added_to_stays_finite(
    policy: PrecisionPolicy, rng: np.random.Generator
) -> None:
    b = rlx.GraphBuilder("added")
    x, w, mask = b.input("x", "f32[2, 4]"), b.param("w", "f32[4, 3]"), b.input("mask", "f32[2, 3]")
    lowest = b.constant(np.float32(np.finfo(np.float32).min))
    every = BroadcastInDim(shape=(2, 3), broadcast_dimensions=())(lowest)
    graph = b.build(x @ w + mask * every, (-(mask * every)) * mask)
    made, _ = lowered(graph, policy)
    given = {
        "x": rng.normal(size=(2, 4)).astype(np.float32),
        "mask": np.array([[1, 0, 1], [0, 0, 1]], np.float32),
    }
    params = {"w": rng.normal(size=(4, 3)).astype(np.float32)}
    for found, wanted in zip(
        interpret(made, given, params), interpret(graph, given, params), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("policy", SAFE)
def test_a_large_negative_mask_stays_finite(policy: PrecisionPolicy) -> None:
    b = rlx.GraphBuilder("mask")
    mask = b.input("mask", "f32[2, 3]")
    lowest = b.constant(np.float32(np.finfo(np.float32).min))
    every = BroadcastInDim(shape=(2, 3), broadcast_dimensions=())(lowest)
    graph = b.build(((1.0 - mask) * every).softmax(axis=-1))
    made, _ = lowered(graph, policy)
    given = {"mask": np.array([[1, 1, 0], [1, 1, 1]], np.float32)}
    (found,) = interpret(made, given)
    np.testing.assert_allclose(found, [[0.5, 0.5, 0.0], [1 / 3] * 3], rtol=1e-2)


BELOW_A_HALF = "a number below a half"


def _masked_attention(kind: str) -> Graph:
    """Attention whose mask is an input or is computed from one, to −1e9 where a key is hidden."""
    b = rlx.GraphBuilder(kind)
    q, k, v = (b.input(name, "f32[2, 5, 2, 8]") for name in "qkv")
    mask = b.input("mask", "f32[2, 1, 5, 5]")
    custom = kind == BELOW_A_HALF
    bias = (1.0 - mask) * -1e9 if kind in ("computed", "written out") else mask
    op = Attention(num_heads=2, head_dim=8, mask_kind=MaskKind.CUSTOM if custom else MaskKind.BIAS)
    return b.build(op.decompose(q, k, v, bias) if kind == "written out" else op(q, k, v, bias))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("kind", ["computed", "written out", "an input", BELOW_A_HALF])
def test_rows_without_a_key_are_those_of_f32(
    policy: PrecisionPolicy, kind: str, rng: np.random.Generator
) -> None:
    graph = _masked_attention(kind)
    made, notes = lowered(graph, policy)
    seen = rng.random((2, 1, 5, 5)) < 0.6
    seen[0, 0, 2] = seen[1] = False  # one query and one whole text see no key
    shown, hidden = {"an input": (0.0, -1e9), BELOW_A_HALF: (0.8, 0.49999)}.get(kind, (1.0, 0.0))
    given = {n: rng.normal(size=(2, 5, 2, 8)).astype(np.float32) for n in "qkv"}
    given["mask"] = np.where(seen, shown, hidden).astype(np.float32)
    (found,), (wanted,) = (interpret(g, given) for g in (made, graph))
    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(found, wanted, rtol=3e-2, atol=3e-2)
    told = [line for line in notes if line.startswith("overflow")]
    computed = kind in ("computed", "written out")
    assert len(told) == (policy is PrecisionPolicy.ALWAYS_F16 and computed)


def test_a_graph_that_stays_in_f32_says_what_f16_cannot_hold() -> None:
    b = rlx.GraphBuilder("big")
    graph = b.build(b.input("x", "f32[2]") * b.constant(np.array([1.0, -1e9], np.float32)))
    made, notes = lowered(graph, PrecisionPolicy.ALWAYS_F16)
    assert made is graph
    (line,) = notes
    assert line.startswith("overflow: constant f32[2], read by mul at test_precision.py:")
    assert line.endswith("holds 1 elements beyond 65504, the largest f16 (up to 1e+09)")
