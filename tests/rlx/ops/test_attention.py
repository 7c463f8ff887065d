"""Attention against a plain loop over batch, head and query in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rlx.ops.attention import Attention, MaskKind

Array = np.ndarray[Any, Any]


def reference(op: Attention, q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    """[B, S, H, D] in and out; the mask is [B, H, S_q, S_k]: bool, or a bias."""
    batch, length, heads, width = q.shape
    keys, kv_heads = k.shape[1:3]
    out = np.zeros((batch, length, heads, v.shape[3]))
    for b in range(batch):
        for h in range(heads):
            kv = h // (heads // kv_heads)
            for i in range(length):
                scale = width**-0.5 if op.score_scale is None else op.score_scale
                s = np.array([q[b, i, h] @ k[b, j, kv] for j in range(keys)]) * scale
                if op.softcap is not None:
                    s = op.softcap * np.tanh(s / op.softcap)
                p = keys - length + i
                for j in range(keys):
                    seen = True
                    if op.mask_kind in (MaskKind.CAUSAL, MaskKind.SLIDING_WINDOW):
                        seen = j <= p
                    if op.window is not None:
                        seen = seen and j >= p - op.window
                    if op.mask_kind is MaskKind.CUSTOM and mask is not None:
                        seen = bool(mask[b, h, i, j])
                    if op.mask_kind is MaskKind.BIAS and mask is not None:
                        s[j] += mask[b, h, i, j]
                    if not seen:
                        s[j] = -math.inf
                if (s == -math.inf).all():
                    rows = {"zeros": 0.0, "nan": np.nan, "uniform": v[b, :, kv].mean(0)}
                    out[b, i, h] = rows[op.masked_rows]
                    continue
                weights = np.exp(s - s.max())
                out[b, i, h] = weights / weights.sum() @ v[b, :, kv]
    return out


def draw(rng: np.random.Generator, length: int, keys: int, kv_heads: int) -> list[Array]:
    shapes = ((2, length, 4, 8), (2, keys, kv_heads, 8), (2, keys, kv_heads, 3))
    return [rng.uniform(-2, 2, shape) for shape in shapes]


@pytest.mark.parametrize("rows", ["zeros", "nan", "uniform"])
@pytest.mark.parametrize("kind", ["none", "causal", "sliding_window"])
@pytest.mark.parametrize(("length", "keys"), [(5, 5), (2, 6), (6, 2), (1, 7)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_masks_of_positions(
    rng: np.random.Generator, kind: str, rows: str, length: int, keys: int, kv_heads: int
) -> None:
    window = 1 if kind == "sliding_window" else None
    op = Attention(
        num_heads=4, head_dim=8, mask_kind=MaskKind(kind), window=window, masked_rows=rows,
        softcap=1.5, score_scale=0.9,
    )  # fmt: skip
    q, k, v = draw(rng, length, keys, kv_heads)
    wanted = reference(op, q, k, v)
    np.testing.assert_allclose(op.evaluate(q, k, v), wanted, rtol=1e-10, atol=1e-12)
    other = op.replace(layout="bhsd")
    found = other.evaluate(*(x.swapaxes(1, 2) for x in (q, k, v)))
    np.testing.assert_allclose(found.swapaxes(1, 2), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", ["zeros", "nan", "uniform"])
@pytest.mark.parametrize("shape", [(2, 5), (1, 4, 1, 5), (2, 1, 3, 5), (1, 3, 5), (2, 4, 3, 5)])
def test_keys_hidden_by_a_mask(rng: np.random.Generator, shape: tuple[int, ...], rows: str) -> None:
    op = Attention(num_heads=4, head_dim=8, mask_kind=MaskKind.CUSTOM, masked_rows=rows)
    q, k, v = draw(rng, 3, 5, 2)
    seen = rng.integers(0, 2, shape).astype(bool)
    full = seen.reshape(2, 1, 1, 5) if shape == (2, 5) else seen
    wanted = reference(op, q, k, v, np.broadcast_to(full, (2, 4, 3, 5)))
    np.testing.assert_allclose(op.evaluate(q, k, v, seen), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", ["zeros", "nan", "uniform"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_keys_beyond_a_length(rng: np.random.Generator, layout: str, rows: str) -> None:
    op = Attention(num_heads=4, head_dim=8, mask_kind=MaskKind.CUSTOM, masked_rows=rows)
    q, k, v = draw(rng, 3, 5, 2)
    lengths = np.array([0, rng.integers(1, 5)], np.int32)
    seen = np.broadcast_to(np.arange(5) < lengths[:, None, None, None], (2, 4, 3, 5))
    wanted = reference(op, q, k, v, seen)
    given = op.replace(mask_kind=MaskKind.LENGTHS, layout=layout)
    arrays = [x.swapaxes(1, 2) if layout == "bhsd" else x for x in (q, k, v)]
    found = given.evaluate(*arrays, lengths)
    found = found.swapaxes(1, 2) if layout == "bhsd" else found
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", ["zeros", "nan", "uniform"])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (1, 4, 1, 5), (2, 1, 3, 5), (2, 4, 3, 5)])
def test_bias(rng: np.random.Generator, shape: tuple[int, ...], rows: str) -> None:
    op = Attention(num_heads=4, head_dim=8, mask_kind=MaskKind.BIAS, masked_rows=rows)
    q, k, v = draw(rng, 3, 5, 2)
    hidden = rng.integers(0, 2, shape).astype(bool)
    bias = np.where(hidden, -np.inf, rng.uniform(-1, 1, shape))
    wanted = reference(op, q, k, v, np.broadcast_to(bias, (2, 4, 3, 5)))
    np.testing.assert_allclose(op.evaluate(q, k, v, bias), wanted, rtol=1e-10, atol=1e-12)


def test_numbers_below_one_half_hide_a_key(rng: np.random.Generator) -> None:
    op = Attention(num_heads=4, head_dim=8, mask_kind=MaskKind.CUSTOM)
    q, k, v = draw(rng, 3, 5, 4)
    numbers = rng.uniform(0, 1, (2, 5))
    numbers[:, 0] = 0.5
    found = op.evaluate(q, k, v, numbers)
    np.testing.assert_array_equal(found, op.evaluate(q, k, v, numbers >= 0.5))


def test_packed_heads(rng: np.random.Generator) -> None:
    op = Attention(num_heads=4, head_dim=8, mask_kind=MaskKind.CAUSAL)
    q, k, v = draw(rng, 3, 5, 2)
    packed = [x.reshape(*x.shape[:2], -1) for x in (q, k, v)]
    wanted = op.evaluate(q, k, v).reshape(2, 3, 12)
    np.testing.assert_array_equal(op.evaluate(*packed), wanted)


def test_one_batch_without_its_axis(rng: np.random.Generator) -> None:
    op = Attention(num_heads=4, head_dim=8, mask_kind=MaskKind.CUSTOM, v_head_dim=3)
    packed = [x[:1].reshape(1, x.shape[1], -1) for x in draw(rng, 3, 5, 2)]
    mask = np.array([[1, 0, 1, 1, 0]], np.float64)
    wanted = op.evaluate(*packed, mask)
    found = op.evaluate(*(x[0] for x in packed), mask)
    np.testing.assert_array_equal(found, wanted[0])


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(("kv_heads", "rank"), [(4, 4), (2, 5)])
def test_scores_have_an_axis_of_groups_only_where_heads_share_keys(
    layout: str, kv_heads: int, rank: int
) -> None:
    from rlx.dtypes import DType
    from rlx.ir.graph import Graph
    from rlx.ops.io import Input

    heads = {"q": 4, "k": kv_heads, "v": kv_heads}
    shapes = {n: (2, 3, h, 8) if layout == "bshd" else (2, h, 3, 8) for n, h in heads.items()}
    leaves = [Input(name=n, dtype=DType.F32, shape=s)() for n, s in shapes.items()]
    op = Attention(num_heads=4, head_dim=8, mask_kind=MaskKind.CAUSAL, layout=layout)
    graph = Graph(leaves, (), (op.decompose(*leaves),))
    assert max(t.rank for node in graph.nodes() for t in node.types) == rank


def test_grouped_heads_are_not_repeated() -> None:
    """The keys enter the product as they are: nothing of their size times the group exists."""
    from rlx.ir.graph import Graph
    from rlx.ops.io import Input
    from rlx.types import as_type

    leaves = [
        Input(name=n, dtype=t.dtype, shape=t.shape)()
        for n, t in (("q", as_type("f32[1, 1, 32, 64]")), ("k", as_type("f32[1, 4096, 4, 64]")))
    ]
    out = Attention(num_heads=32, head_dim=64).decompose(leaves[0], leaves[1], leaves[1])
    sizes = [math.prod(t.shape) for n in Graph(leaves, (), (out,)).nodes() for t in n.types]  # type: ignore[arg-type]
    assert max(sizes) == 4096 * 4 * 64


@pytest.mark.parametrize(
    ("kind", "q", "k", "plain"),
    [
        ("causal", "f32[1, 4, 2, 8]", "f32[1, 4, 2, 8]", True),
        ("causal", "f32[1, s, 2, 8]", "f32[1, s + 3, 2, 8]", True),
        ("sliding_window", "f32[1, 1, 2, 8]", "f32[1, 9, 2, 8]", True),
        ("causal", "f32[1, 4, 2, 8]", "f32[1, 3, 2, 8]", False),
        ("causal", "f32[1, s, 2, 8]", "f32[1, t, 2, 8]", False),
    ],
)
def test_a_plain_softmax_where_every_query_sees_a_key(
    kind: str, q: str, k: str, plain: bool
) -> None:
    from rlx.ir.graph import Graph
    from rlx.ops.io import Input
    from rlx.types import as_type

    leaves = [
        Input(name=n, dtype=t.dtype, shape=t.shape)()
        for n, t in (("q", as_type(q)), ("k", as_type(k)))
    ]
    window = 2 if kind == "sliding_window" else None
    op = Attention(num_heads=2, head_dim=8, mask_kind=MaskKind(kind), window=window)
    out = op.decompose(leaves[0], leaves[1], leaves[1])
    names = [n.op.op_name for n in Graph(leaves, (), (out,)).nodes()]
    assert ("softmax" in names) == plain
