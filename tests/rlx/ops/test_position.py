"""Rotary embeddings against plain loops over tokens, heads and pairs in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.ops.position import AxialRope2d, Rope, RopeStyle

Array = np.ndarray[Any, Any]


def turn(head: Array, i: int, j: int, angle: float) -> None:
    a, b = head[i], head[j]
    head[i], head[j] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)


def rope(x: Array, angles: Array, n_rot: int, style: str) -> Array:
    """x is [B, S, H, D], angles [S, n_rot / 2]."""
    out = x.copy()
    for b, s, h in np.ndindex(x.shape[:3]):
        for i in range(n_rot // 2):
            pair = (i, i + n_rot // 2) if style == "neox" else (2 * i, 2 * i + 1)
            turn(out[b, s, h], *pair, angles[s, i])
    return out


@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.parametrize("n_rot", [2, 4, 8])
@pytest.mark.parametrize("longer", [0, 3])
def test_rope(rng: np.random.Generator, style: str, n_rot: int, longer: int) -> None:
    x = rng.uniform(-1, 1, (2, 5, 3, 8))
    angles = rng.uniform(0, 6, (5 + longer, n_rot // 2))
    wanted = rope(x, angles, n_rot, style)
    tables = np.cos(angles), np.sin(angles)
    op = Rope(head_dim=8, n_rot=n_rot, style=RopeStyle(style))
    np.testing.assert_allclose(op.evaluate(x, *tables), wanted, rtol=1e-12, atol=1e-13)
    packed = op.evaluate(x.reshape(2, 5, 24), *tables)
    np.testing.assert_array_equal(packed, op.evaluate(x, *tables).reshape(2, 5, 24))
    one = op.evaluate(x[0].reshape(5, 24), *tables)
    np.testing.assert_array_equal(one, packed[0])
    other = op.replace(layout="bhsd").evaluate(x.swapaxes(1, 2), *tables)
    np.testing.assert_array_equal(other.swapaxes(1, 2), op.evaluate(x, *tables))


def test_wider_tables_give_their_first_columns(rng: np.random.Generator) -> None:
    """Rows of head_dim / 2 columns, as RLX strides them."""
    x = rng.uniform(-1, 1, (1, 5, 2, 8))
    angles = rng.uniform(0, 6, (5, 4))
    op = Rope(head_dim=8, n_rot=4)
    found = op.evaluate(x, np.cos(angles), np.sin(angles))
    np.testing.assert_allclose(found, rope(x, angles, 4, "neox"), rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(found[..., 4:], x[..., 4:])


def test_a_bounded_sequence_reads_the_start_of_a_longer_table(rng: np.random.Generator) -> None:
    length = rlx.dims.symbol("s", upper=9)
    b = rlx.GraphBuilder()
    x = b.input("x", rlx.TensorType(rlx.DType.F64, (1, length, 2, 8)))
    tables = [b.param(n, "f64[9, 4]") for n in ("cos", "sin")]
    graph = b.build(Rope(head_dim=8, n_rot=8)(x, *tables))
    angles = rng.uniform(0, 6, (9, 4))
    params = {"cos": np.cos(angles), "sin": np.sin(angles)}
    for size in (1, 5, 9):
        feed = {"x": rng.uniform(-1, 1, (1, size, 2, 8))}
        found = rlx.interpret(graph, feed, params)[0]
        wanted = rope(feed["x"], angles[:size], 8, "neox")
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


def test_half_precision_turns_in_f32(rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (1, 5, 2, 8)).astype(np.float16)
    angles = rng.uniform(0, 6, (5, 4))
    tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    op = Rope(head_dim=8, n_rot=8)
    wanted = op.evaluate(x.astype(np.float32), *tables).astype(np.float16)
    np.testing.assert_array_equal(op.evaluate(x, *tables), wanted)


@pytest.mark.parametrize("repeat", [1, 3])
def test_axial_rope2d(rng: np.random.Generator, repeat: int) -> None:
    end_x, end_y, heads, width, theta = 4, 3, 2, 16, 50.0
    op = AxialRope2d(
        end_x=end_x, end_y=end_y, head_dim=width, num_heads=heads, theta=theta, repeat_factor=repeat
    )
    x = rng.uniform(-1, 1, (2, end_x * end_y * repeat, heads * width))
    wanted = x.reshape(*x.shape[:2], heads, width).copy()
    for b, t, h in np.ndindex(wanted.shape[:3]):
        place = t // repeat
        for i in range(width // 4):
            frequency = theta ** (-4 * i / width)
            turn(wanted[b, t, h], 2 * i, 2 * i + 1, place % end_x * frequency)
            half = width // 2
            turn(wanted[b, t, h], half + 2 * i, half + 2 * i + 1, place // end_x * frequency)
    found = op.evaluate(x)
    np.testing.assert_allclose(found, wanted.reshape(x.shape), rtol=1e-11, atol=1e-12)
