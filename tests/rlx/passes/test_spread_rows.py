"""Nodes divided over their rows: in NumPy the parts together are what the whole is."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import pytest

import rlx
from rlx.dtypes import as_dtype
from rlx.ir.graph import Graph, make_node
from rlx.ir.interpret import run
from rlx.ops.arithmetic import Neg
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.collective import ShardMap
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.io import Input
from rlx.ops.pooling import ReduceWindow, SelectAndScatterAdd
from rlx.ops.quantized import DequantMatmul
from rlx.ops.reduction import Argmax, CumSum
from rlx.ops.sequence import GatedDeltaNet, Gru, Lstm, SelectiveScan
from rlx.ops.sorting import Sort, TopK
from rlx.passes.spread_rows import divided, rows_of, stated
from rlx.sharding import Mesh, P, Sharding, constrain
from tests.samples.base import Sample

MESH = Mesh({"data": 2})
FAMILIES = {
    Sort: "sorting",
    TopK: "sorting",
    Argmax: "reduction",
    CumSum: "reduction",
    DequantMatmul: "quantized_blocks",
    Attention: "attention",
    ConvGeneralDilated: "convolution",
    ReduceWindow: "pooling",
    SelectAndScatterAdd: "pooling",
    SelectiveScan: "sequence",
    GatedDeltaNet: "sequence",
    Lstm: "sequence",
    Gru: "sequence",
}
SUMS = (Attention, DequantMatmul, ConvGeneralDilated, SelectiveScan, GatedDeltaNet, Lstm, Gru)
"""Ops that add products, in an order that is the library's."""


def drawn(op: type[rlx.ops.Sort], count: int = 12) -> Iterator[Sample]:
    """Some samples of an op that have rows to divide."""
    module = importlib.import_module(f"tests.samples.{FAMILIES[op]}")
    found = 0
    for sample in module.samples(np.random.default_rng()):
        if type(sample.op) is op and sample.check is None and sample.inputs[0].size:
            yield sample
            found += 1
            if found == 40 * count:
                return


@pytest.mark.parametrize("op", FAMILIES)
def test_parts_make_the_whole(op: type[rlx.ops.Sort]) -> None:
    made = 0
    for sample in drawn(op):
        leaves = [
            Input(name=f"x{i}", dtype=as_dtype(a.dtype), shape=a.shape)()
            for i, a in enumerate(sample.inputs)
        ]
        node = make_node(sample.op, leaves)
        rows = rows_of(node)
        if rows is None:
            continue
        for axis, number in enumerate(rows[0][0]):
            if number is None or sample.inputs[0].shape[axis] % 2:
                continue
            spec = [None] * axis + ["data"]
            first = constrain(leaves[0], P(*spec), MESH)
            results = divided(make_node(sample.op, [first, *leaves[1:]]), MESH, lambda _: True)
            assert results is not None
            assert isinstance(results[0].node.op, ShardMap)
            found = run(Graph(leaves, (), results), sample.inputs)
            wanted = run(Graph(leaves, (), node.results), sample.inputs)
            for mine, whole in zip(found, wanted, strict=True):
                if op in SUMS:
                    np.testing.assert_allclose(
                        mine.astype(np.float64), whole.astype(np.float64), rtol=2e-2, atol=1e-5
                    )
                else:
                    assert mine.tobytes() == whole.tobytes(), sample.label
            made += 1
        if made > 12:
            break
    assert made > 1, "no sample of this op has rows to divide"


@pytest.mark.parametrize("op", [Lstm, Gru])
def test_a_mask_is_divided_with_its_sequences(op: type[rlx.ops.Sort]) -> None:
    (sample,) = [s for s in drawn(op) if "masked" in s.label and not s.inputs[0].shape[0] % 2]
    leaves = [Input(name=f"x{i}", dtype=as_dtype(a.dtype), shape=a.shape)()
              for i, a in enumerate(sample.inputs)]  # fmt: skip
    node = make_node(sample.op, leaves)
    rows = rows_of(node)
    assert rows is not None
    assert rows[0][-1] == (0, None)
    first = constrain(leaves[0], P("data"), MESH)
    results = divided(make_node(sample.op, [first, *leaves[1:]]), MESH, lambda _: True)
    assert results is not None
    pairs = zip(run(Graph(leaves, (), results), sample.inputs),
                run(Graph(leaves, (), node.results), sample.inputs), strict=True)  # fmt: skip
    for mine, whole in pairs:
        np.testing.assert_allclose(*(a.astype(np.float64) for a in (mine, whole)), rtol=2e-2,
                                   atol=1e-5)  # fmt: skip


def test_what_stays_as_it_is() -> None:
    x = Input(name="x", dtype=rlx.DType.F32, shape=(4, 6))()
    rows = constrain(x, P("data"), MESH)

    def sort(value: rlx.Value, axis: int, *, takes: bool = True) -> object:
        node = make_node(Sort(axis=axis), [value])
        return divided(node, MESH, lambda _: takes)

    assert sort(rows, 1) is not None
    assert sort(x, 1) is None, "nothing is known of x"
    assert sort(rows, 0) is None, "rows are what is sorted"
    assert sort(rows, 1, takes=False) is None, "no kernel"
    assert divided(make_node(Neg(), [rows]), MESH, lambda _: True) is None, "XLA divides it"
    mask = Input(name="mask", dtype=rlx.DType.BOOL, shape=(2, 8))()
    q = Input(name="q", dtype=rlx.DType.F32, shape=(2, 8, 2, 4))()
    custom = Attention(num_heads=2, head_dim=4, mask_kind=MaskKind.CUSTOM)
    assert rows_of(make_node(custom, [q, q, q, mask])) is None, "of a batch, or of queries"


def test_a_sharding_is_followed_through_elementwise_ops() -> None:
    x = Input(name="x", dtype=rlx.DType.F32, shape=(4, 6))()
    rows = constrain(x, P("data"), MESH)
    assert stated(-(rows * 2.0)) == Sharding(MESH, (("data",), ()))
    assert stated(rows.reshape([6, 4])) is None
    assert stated(x) is None
