"""Sizes are rounded up by ladders: declared, powers of two, or learned from what was seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx import dims
from rlx.dims.buckets import Buckets, buckets_of, proposal
from rlx.dims.constraints import check_constraints, constraint, constraints_of
from rlx.errors import DimError


def test_declared_sizes_take_what_fits() -> None:
    buckets = Buckets({"n": [16, 32, 64], "m": [4]})
    assert buckets.rounded({"n": 1, "m": 4, "k": 7}) == {"n": 16, "m": 4, "k": 7}
    assert buckets.rounded({"n": 33, "m": 1}) == {"n": 64, "m": 4}
    assert buckets.greatest("n") == 64
    assert buckets.greatest("k") is None
    assert {"n": 32, "m": 4} in buckets.declared()
    with pytest.raises(
        DimError, match="n is required to be at most 64, its last bucket; got n = 65"
    ):
        buckets.rounded({"n": 65})


def test_powers_of_two() -> None:
    buckets = buckets_of("pow2", ["n"])
    assert buckets is not None
    found = [buckets.rounded({"n": n})["n"] for n in (0, 1, 2, 3, 4, 5, 64, 65)]
    assert found == [1, 1, 2, 4, 4, 8, 64, 128]
    with pytest.raises(DimError, match=r"those of n are 'pow2'\. Pass the bindings"):
        buckets.declared()


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=80))
def test_learned_sizes_are_few_and_large_enough(sizes: list[int]) -> None:
    buckets = Buckets({"n": "auto"})
    steps = [buckets.rounded({"n": n})["n"] for n in sizes]
    assert all(n <= step < max(2 * n, 2) + 1 for n, step in zip(sizes, steps, strict=True))
    assert len(set(steps)) <= 4 * 13


def test_learned_steps_follow_the_histogram() -> None:
    buckets = Buckets({"n": "auto"})
    for _ in range(20):
        assert buckets.rounded({"n": 100})["n"] == 128
    assert buckets.rounded({"n": 300})["n"] == 300


@pytest.mark.parametrize("start", [1, 40])
def test_learned_steps_of_growing_sizes_double(start: int) -> None:
    buckets = Buckets({"n": "auto"})
    steps = {buckets.rounded({"n": n})["n"] for n in range(start, 1000)}
    assert len(steps) <= 11, sorted(steps)


def test_names_are_checked() -> None:
    assert buckets_of(None, ["n"]) is None
    assert buckets_of("pow2", []) is None
    with pytest.raises(
        DimError, match=r"buckets: names of symbols are required \(batch\); got 'bach'.* Did"
    ):
        buckets_of({"bach": [4]}, ["batch"])


def test_proposals_are_at_most_four_sizes() -> None:
    assert proposal(range(1, 100)) == [16, 32, 64, 128]
    assert proposal([5]) == [8]


def test_constraints_are_read_and_checked() -> None:
    seq, sizes = constraint("seq % 64 == 0"), constraint("past + seq ≤ 4096")
    check_constraints([seq, sizes], {"seq": 128, "past": 1})
    with pytest.raises(DimError, match=r"got seq%64 == 0 with seq = 100; .*past = 4000, seq = 100"):
        check_constraints([seq, sizes], {"seq": 100, "past": 4000})
    assert constraint("batch >= 2").bound() == ("batch", 2, None)
    assert constraint("8 > batch").bound() == ("batch", None, 7)
    assert seq.bound() is None
    for text in ("seq", "a == b == c", "3"):
        with pytest.raises(DimError, match="constraint: a comparison of two dims"):
            constraint(text)
    with pytest.raises(DimError, match=r"symbols of the graph are required \(it has none\)"):
        constraints_of(["n >= 1"], [])


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 5), st.integers(0, 9))
def test_bind_then_infer_gives_the_binding_back(b: int, s: int, k: int, c: int) -> None:
    batch, seq = dims.symbol("b"), dims.symbol("s")
    declared = [("x", (batch, seq)), ("y", (k * seq + c, 3)), ("z", (batch * seq, seq // 2))]
    sizes = {"b": b, "s": s}
    actual = {name: tuple(dims.evaluate(d, sizes) for d in shape) for name, shape in declared}
    assert dict(dims.infer_bindings(declared, actual)) == sizes
    bound = [(name, tuple(dims.substitute(d, sizes) for d in shape)) for name, shape in declared]
    assert bound == list(actual.items())
    wrong = {**actual, "y": (actual["y"][0] + k, 3)}
    with pytest.raises(DimError, match=r"'x' axis 1.*'y' axis 0|'y' axis 0"):
        dims.infer_bindings(declared, wrong)
