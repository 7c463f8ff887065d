"""Every op in a bucket: what the analysis calls safe equals the unpadded run, poison or not.

The ops are those of the samples, so that none is left out; what is refused stands in a table.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import rlx
from rlx import dims, ops
from rlx.dtypes import DType
from rlx.errors import DimError, ShapeError
from rlx.ir.graph import Graph, make_node
from rlx.ir.op import Op
from rlx.ir.operators import constant
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.indexing import GatherGeneral, IndexMode, ScatterGeneral, ScatterKind
from rlx.ops.io import Input
from rlx.ops.random import RngAlgorithm, RngBitGenerator, RngNormal, RngUniform
from rlx.passes.bind_dims import bind
from rlx.passes.pad_dims import PaddedGraph, Unsafe, pad_dims
from rlx.passes.pad_dims.context import ruled_ops
from rlx.types import as_type
from tests.conformance import runner
from tests.properties.symbolised import Symbolised, compare, cut, poisoned, symbolised
from tests.samples.base import Sample

POISONS = (np.nan, 1e30)

REFUSED = {
    **dict.fromkeys(
        ["all_gather", "all_to_all", "pmax", "pmin", "ppermute", "psum", "reduce_scatter"],
        "other devices would see the padding",
    ),
    "conv3d_backward_weight": "its samples hold one image: what is left is the kernel's window",
    "custom": "what it computes is the caller's",
    "external": "what it computes is JAX's",
}
"""Ops that have no padding at all, each with its reason."""

UNTRIED = {
    **dict.fromkeys(["constant", "dim_value", "iota"], "no input"),
    **dict.fromkeys(["philox_bits", "rng_normal", "rng_uniform"], "no input: test_draws"),
    **dict.fromkeys(["axis_index", "create_token"], "no axis"),
    "rng_bit_generator": "its draws depend on the size: test_draws",
    **dict.fromkeys(
        ["call", "cond", "custom_fn", "platform_index", "shard_map", "while"], "static graphs"
    ),
    **dict.fromkeys(["dequant_matmul", "dequant_moe_weights", "dequantize_blocks"], "packed sizes"),
    "external": "its types are attributes",
}
"""Ops of which no sample has an axis that can be dynamic, each with its reason."""

GENTLE = {"igamma_grad_a": (np.nan, 60.0)}
"""Poison of ops whose meaning in NumPy takes as many steps as its argument says."""


@cache
def _families() -> dict[str, dict[str, list[Sample]]]:
    """Small samples by family and op."""
    table: dict[str, dict[str, list[Sample]]] = {}
    rng = np.random.default_rng(11)
    for family in runner.families():
        ops = table.setdefault(family.__name__.rpartition(".")[2], {})
        for sample in family.samples(rng):
            if all(a.size <= 400 for a in sample.inputs):
                ops.setdefault(sample.op.op_name, []).append(sample)
    return table


def _drawn(name: str, samples: list[Sample], most: int) -> Iterator[Symbolised]:
    """Ops over a dynamic axis of one name: one of each of several samples, then another …"""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    order = [samples[i] for i in rng.permutation(len(samples))[:most]]
    rows = [symbolised(sample) for sample in sorted(order, key=_size)]
    while rows:
        left: list[Iterator[Symbolised]] = []
        for row in rows:
            made = next(row, None)
            if made is not None:
                left.append(row)
                yield made
        rows = left


def _size(sample: Sample) -> int:
    return sum(a.size for a in sample.inputs)


@cache
def _proven(family: str, wanted: int, tried: int) -> frozenset[type[Op]]:
    """Compare some ops of a family; the classes that are padded.

    Args:
        family: of samples.
        wanted: graphs of each op that are compared.
        tried: most that are made of it.
    """
    proven: set[type[Op]] = set()
    for name, samples in _families()[family].items():
        done, refusals, count = 0, set[str](), 0
        for count, one in enumerate(_drawn(name, samples, 4 * tried), 1):
            bucket = one.size + 2
            padded = pad_dims(one.graph, {"n": bucket})
            if isinstance(padded, Unsafe):
                refusals.add(padded.reason)
            elif compare(one, padded, bucket, GENTLE.get(name, POISONS)):
                proven.add(type(one.sample.op))
                done += 1
            if done >= wanted or count >= tried:
                break
        if name in REFUSED:
            assert not done, f"{name} is padded now: take it out of the table"
        elif name in UNTRIED:
            assert not count, f"{name} has a dynamic axis now: take it out of the table"
        else:
            assert done, f"{name}: refused {sorted(refusals)}" if count else f"{name}: untried"
    return frozenset(proven)


FAMILIES = sorted(m.__name__.rpartition(".")[2] for m in runner.families())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_op_is_the_same_with_padding(family: str) -> None:
    _proven(family, 2, 800)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_many_forms_of_every_op_are_the_same_with_padding(family: str) -> None:
    _proven(family, 16, 800)


def test_no_rule_is_left_out() -> None:
    proven = frozenset[type[Op]]().union(*(_proven(family, 2, 800) for family in FAMILIES))
    left = {op.op_name for op in ruled_ops()} - {op.op_name for op in proven}
    assert left <= set(UNTRIED), sorted(left - set(UNTRIED))
    assert len(proven) >= 270


@pytest.mark.parametrize("op", [RngUniform, RngNormal], ids=lambda op: op.op_name)
@pytest.mark.parametrize("text", ["n", "n, 3", "3, n", "m, n", "n, m, 2"])
def test_draws_are_those_of_the_unpadded_run(op: Any, text: str) -> None:
    shape = as_type(f"f32[{text}]").shape
    leaf = Input(name="x", dtype=DType.F32, shape=shape)()
    graph = Graph([leaf], (), [op(shape=shape, dtype=DType.F32, key=3)()])
    padded = pad_dims(graph, dict.fromkeys(graph.symbols, 6))
    assert isinstance(padded, PaddedGraph)
    for n in range(1, 7):
        sizes = {"n": n, "m": 1 + n * 5 % 6}
        sizes = {name: sizes[name] for name in graph.symbols}
        bound = bind(graph, sizes)
        (wanted,) = rlx.interpret(bound, {"x": np.zeros(bound.inputs[0].type.shape, np.float32)})
        extents = {f"__rlx_extent_{name}": np.int32(size) for name, size in sizes.items()}
        whole = np.zeros(padded.graph.inputs[0].type.shape, np.float32)
        (found,) = rlx.interpret(padded.graph, {"x": whole, **extents})
        np.testing.assert_array_equal(found[tuple(slice(0, d) for d in wanted.shape)], wanted)


def test_draws_of_a_generator_of_bits_are_refused() -> None:
    state = Input(name="state", dtype=DType.U64, shape=(2,))()
    made = RngBitGenerator(
        algorithm=RngAlgorithm.PHILOX, dtype=DType.U32, shape=(dims.symbol("n"),)
    )
    found = pad_dims(Graph([state], (), make_node(made, [state]).results), {"n": 4})
    assert isinstance(found, Unsafe)
    assert found.op == "rng_bit_generator"


STEPS: dict[str, Callable[[Any], Any]] = {
    "tanh": lambda x: x.tanh(),
    "softmax": lambda x: x.softmax(axis=-1),
    "times its sum": lambda x: x * x.sum(0, keepdims=True).broadcast_to(x.shape),
    "less its mean": lambda x: x - x.mean(1, keepdims=True).broadcast_to(x.shape),
    "largest": lambda x: x - x.max(0, keepdims=True).broadcast_to(x.shape),
    "transpose": lambda x: x.transpose(1, 0),
    "merged and back": lambda x: x.reshape((x.shape[0] * x.shape[1],)).reshape(x.shape),
    "turned": lambda x: x.reshape((x.shape[1], x.shape[0])),
    "sorted": lambda x: ops.Sort(axis=1)(x),
    "added up": lambda x: ops.CumSum(axis=0, reverse=True)(x),
    "reversed": lambda x: ops.Reverse(axes=(0, 1))(x),
    "beside itself": lambda x: ops.Concatenate(axis=0)(x, x * 2.0),
    "padded": lambda x: ops.Pad(low=(1, 0), high=(0, 2), interior=(0, 0))(x, constant(0.25)),
    "product": lambda x: (x @ x.transpose(1, 0)) * 0.125,
    "but the first": lambda x: ops.Concatenate(axis=1)(x, x).narrow(1, 1, x.shape[1]),
    "halved": lambda x: ops.Slice(start_indices=(0, 0), limit_indices=x.shape, strides=(1, 2))(x),
}
"""What a drawn graph is made of; each takes and gives a matrix whose sizes may both be padded."""


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6), st.data())
def test_drawn_graphs_at_drawn_sizes(steps: list[str], data: Any) -> None:
    leaf = Input(name="x", dtype=DType.F32, shape=as_type("f32[m, n]").shape)()
    value: Any = leaf
    try:
        for step in steps:
            value = STEPS[step](value)
    except DimError:  # such as sizes that only numbers tell apart
        assume(False)
    graph = Graph([leaf], (), [value])
    largest = {"m": 4, "n": 5}
    sizes = {name: data.draw(st.integers(1, most), label=name) for name, most in largest.items()}
    bound = bind(graph, sizes)
    assert bound.outputs[0].type == value.type.bind(sizes)
    x = np.random.default_rng(len(steps)).uniform(-1, 1, (sizes["m"], sizes["n"]))
    x = x.astype(np.float32)
    (wanted,) = rlx.interpret(bound, {"x": x})
    padded = pad_dims(graph, largest)
    assert isinstance(padded, PaddedGraph), f"{steps}: {padded}"
    extents = {f"__rlx_extent_{name}": np.int32(size) for name, size in sizes.items()}
    for poison in POISONS:
        wide = poisoned(x, (4, 5), poison)
        with np.errstate(all="ignore"):
            (y,) = rlx.interpret(padded.graph, {"x": wide, **extents})
        found = cut(y, padded.outputs[0], sizes, largest, wanted.shape)
        scale = float(np.abs(wanted).max(initial=1.0))
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * scale)


def test_a_window_of_no_component_fits_in_x() -> None:
    """Indices ``[3, 0]`` are three vectors that move nothing, so that three windows are read."""
    op = GatherGeneral(
        slice_sizes=(1, 3), offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=()
    )
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(op.evaluate(x, np.zeros((3, 0), np.int32)), [x[0]] * 3)
    with pytest.raises(ShapeError, match=r"gather_general \[C7\]: slice sizes are required to be"):
        op.infer(as_type("f32[4, 2]"), as_type("i32[3, 0]"))


@pytest.mark.parametrize("mode", list(IndexMode))
@pytest.mark.parametrize(("components", "dtype"), [(0, "i32"), (1, "u8"), (1, "i32")])
def test_updates_that_are_padding_write_nothing(
    mode: IndexMode, components: int, dtype: str
) -> None:
    """300 places are more than a u8 can name; without a component no place is outside."""
    x = Input(name="x", dtype=DType.F32, shape=(300,))()
    at = Input(
        name="at", dtype=as_type(f"{dtype}[1]").dtype, shape=(dims.symbol("n"), components)
    )()
    new = Input(name="new", dtype=DType.F32, shape=(dims.symbol("n"),))()
    op = ScatterGeneral(
        update_window_dims=(),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=tuple(range(components)),
        kind=ScatterKind.SET,
        mode=mode,
    )
    padded = pad_dims(Graph([x, at, new], (), [op(x, at, new)]), {"n": 4})
    if not components:
        assert isinstance(padded, Unsafe)
        assert "no index component that moves them out" in padded.reason
        return
    assert isinstance(padded, PaddedGraph)
    rng = np.random.default_rng()
    given = {
        "x": rng.normal(size=300).astype(np.float32),
        "at": rng.integers(0, 250, (4, 1)).astype(at.dtype.numpy),
        "new": np.array([5.0, np.nan, np.nan, np.nan], np.float32),
        "__rlx_extent_n": np.int32(1),
    }
    (found,) = rlx.interpret(padded.graph, given)
    wanted = given["x"].copy()
    wanted[given["at"][0, 0]] = 5.0
    np.testing.assert_array_equal(found, wanted)


def test_a_batch_of_groups_beside_a_padded_axis() -> None:
    op = ConvGeneralDilated(
        window_strides=(1,), padding=((0, 0),), lhs_dilation=(1,), rhs_dilation=(1,),
        lhs_spec=(0, 1, 2), rhs_spec=(0, 1, 2), out_spec=(0, 1, 2), batch_group_count=2,
    )  # fmt: skip
    x = Input(name="x", dtype=DType.F32, shape=(6, 2, dims.symbol("n", 2)))()
    w = Input(name="w", dtype=DType.F32, shape=(4, 2, 2))()
    graph = Graph([x, w], (), [op(x, w)])
    padded = pad_dims(graph, {"n": 6})
    assert isinstance(padded, PaddedGraph)
    rng = np.random.default_rng()
    given = {v.name: rng.normal(size=s).astype(np.float32) for v, s in
             ((x, (6, 2, 5)), (w, (4, 2, 2)))}  # fmt: skip
    (wanted,) = rlx.interpret(bind(graph, {"n": 5}), given)
    wide = {**given, "x": poisoned(given["x"], (6, 2, 6), np.nan), "__rlx_extent_n": np.int32(5)}
    (y,) = rlx.interpret(padded.graph, wide)
    found = cut(y, padded.outputs[0], {"n": 5}, {"n": 6}, wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
