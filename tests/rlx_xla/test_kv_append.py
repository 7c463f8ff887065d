"""Case J5: a cache is updated where it lies, whatever its capacity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx.ir.graph import Value
from rlx.ops.indexing import DynamicUpdateSlice, KvAppend

CAPACITIES = (64, 1024)


def compiled(build: Callable[..., Value], *inputs: tuple[str, str]) -> Any:
    """A graph whose input ``cache`` is donated."""
    b = rlx.GraphBuilder("step")
    graph = b.build(build(*(b.input(name, type_) for name, type_ in inputs)))
    return rlx.Session("cpu").compile(
        graph, options=rlx.CompileOptions(donate=frozenset({"cache"}))
    )


def drawn(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng().normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_j5_rows_are_written_in_place(capacity: int) -> None:
    def write(cache: Value, row: Value, place: Value) -> Value:
        zero = rlx.constant(0)
        return DynamicUpdateSlice()(cache, row, zero, place, zero)

    step = compiled(
        write, ("cache", f"f32[8, {capacity}, 64]"), ("row", "f32[8, 1, 64]"), ("place", "i32[]")
    )
    cache, rows = drawn(8, capacity, 64), drawn(3, 8, 1, 64)
    wanted, address = np.array(cache), cache.unsafe_buffer_pointer()
    for place, row in enumerate(rows, start=5):
        wanted[:, place : place + 1] = row
        cache = step(cache, row, jnp.int32(place))
        assert cache.unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(cache, wanted)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_j5_the_row_that_fills_a_cache_is_appended_in_place(capacity: int) -> None:
    step = compiled(
        KvAppend(axis=1, pos=capacity - 1),
        ("cache", f"f32[8, {capacity}, 64]"),
        ("row", "f32[8, 1, 64]"),
    )
    cache, row = drawn(8, capacity, 64), drawn(8, 1, 64)
    wanted, address = np.array(cache), cache.unsafe_buffer_pointer()
    wanted[:, -1:] = row
    found = step(cache, row)
    assert found.unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(found, wanted)


def test_j5_caches_may_be_several_or_stacked() -> None:
    def write(first: Value, second: Value, stacked: Value, row: Value, place: Value) -> Any:
        zero = rlx.constant(0)
        update = DynamicUpdateSlice()
        return (
            update(first, row, zero, place, zero),
            update(second, row, zero, place, zero),
            update(stacked, row.reshape(1, 8, 1, 16), rlx.constant(1), zero, place, zero),
        )

    b = rlx.GraphBuilder("step")
    types = ("f32[8, 32, 16]", "f32[8, 32, 16]", "f32[2, 8, 32, 16]", "f32[8, 1, 16]", "i32[]")
    names = ("first", "second", "stacked", "row", "place")
    leaves = [b.input(name, type_) for name, type_ in zip(names, types, strict=True)]
    graph = b.build(*write(*leaves))
    options = rlx.CompileOptions(donate=frozenset(names[:3]))
    step = rlx.Session("cpu").compile(graph, options=options)
    caches = [drawn(8, 32, 16), drawn(8, 32, 16), drawn(2, 8, 32, 16)]
    addresses = [cache.unsafe_buffer_pointer() for cache in caches]
    row = drawn(8, 1, 16)
    found = step(*caches, row, jnp.int32(7))
    assert [cache.unsafe_buffer_pointer() for cache in found] == addresses
    for cache in (found[0], found[1], found[2][1]):
        np.testing.assert_array_equal(cache[:, 7:8], row)
