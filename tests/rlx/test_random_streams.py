"""RLX's random streams: known answers, order of consumption, policies and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlx import rng
from rlx.errors import CompileError, RunError
from rlx.ops.random_bits import philox4x32
from rlx.options.rng import RngBackend, RngOptions


def _philox_block(seed: int, block: int, first_multiplier: int) -> list[int]:
    """One block in Python's integers, as the algorithm is published."""
    c = [block & 0xFFFFFFFF, block >> 32, 0, 0]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        a, b = first_multiplier * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k1, a & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def test_the_rounds_are_random123s_but_for_the_multiplier() -> None:
    zeros = [np.zeros(1, np.uint64)] * 4
    words = [int(w[0]) for w in philox4x32(zeros, (np.uint64(0), np.uint64(0)))]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # Random123's kat_vectors
    assert words == _philox_block(0, 0, 0xD2511F53)


@pytest.mark.parametrize("seed", [0, 1, 42, 0xDEADBEEF, 2**64 - 1])
def test_the_words_of_a_seed(seed: int) -> None:
    wanted = [w for block in range(5) for w in _philox_block(seed, block, 0xD2561A75)]
    assert rng.Philox4x32(seed).next_u32(20).tolist() == wanted
    one_by_one = rng.Philox4x32(seed)
    assert [one_by_one.next_u32() for _ in range(20)] == wanted


def test_scalars_and_arrays_take_the_same_stream() -> None:
    seed = int(np.random.default_rng().integers(2**63))
    scalars = rng.Philox4x32(seed)
    wanted = [scalars.uniform() for _ in range(700)]
    mixed = rng.Philox4x32(seed)
    parts = [mixed.uniform(3), [mixed.uniform()], mixed.uniform((9, 71)).reshape(-1)]
    rest = mixed.uniform(700 - sum(map(len, parts)))
    assert np.array_equal(np.concatenate([*parts, rest]), np.array(wanted, np.float32))
    words = rng.Philox4x32(seed).next_u32(700)
    assert np.array_equal(np.array(wanted, np.float32), ((words >> 8) / 2**24).astype(np.float32))


def test_a_normal_takes_two_uniforms() -> None:
    seed = int(np.random.default_rng().integers(2**63))
    u = rng.Philox4x32(seed).uniform((500, 2)).astype(np.float64)
    # one draw in 2²⁴ is zero, which stands for the least normal number
    radius = np.sqrt(-2 * np.log(np.maximum(u[:, 0], 2.0**-126)))
    wanted = radius * np.cos(2 * math.pi * u[:, 1])
    found = rng.Philox4x32(seed).normal(500)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)
    scalars = rng.Philox4x32(seed)
    assert [scalars.normal() for _ in range(500)] == found.tolist()


def test_a_uniform_of_zero_gives_a_finite_normal() -> None:
    found = rng.box_muller(np.zeros(2, np.uint32))
    assert found.tolist() == [pytest.approx(math.sqrt(-2 * math.log(2.0**-126)))]


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "1", True, None])
def test_a_seed_is_64_bits(seed: object) -> None:
    with pytest.raises(RunError, match=r"Philox4x32: seed is required to be an int in \[0, 2\*\*"):
        rng.Philox4x32(seed)  # type: ignore[arg-type]
    with pytest.raises(CompileError, match=r"RngOptions.seed: required an int in \[0, 2\*\*64\)"):
        RngOptions(seed=seed)  # type: ignore[arg-type]


def test_the_key_is_mixed_into_the_seed() -> None:
    assert rng.mixed_seed(42, 0) == 42
    assert rng.mixed_seed(42, 3) == (42 + 3 * 0x9E3779B97F4A7C15) % 2**64
    found = rng.uniforms(RngOptions(), 9, key=3)
    assert np.array_equal(found, rng.Philox4x32(rng.mixed_seed(42, 3)).uniform(9))
    assert not np.array_equal(found, rng.uniforms(RngOptions(), 9, key=4))


def test_minstd_rand0_is_the_standards() -> None:
    assert rng.MinstdRand0(1).next(10000)[-1] == 1043618065  # the C++ standard's check value
    assert rng.MinstdRand0(0).next(3).tolist() == rng.MinstdRand0(2**31 - 1).next(3).tolist()
    engine = rng.MinstdRand0(7)
    split = np.concatenate([engine.next(5), engine.next(0), engine.next(6)])
    assert split.tolist() == rng.MinstdRand0(7).next(11).tolist()


# Printed by std::normal_distribution<float> and std::uniform_real_distribution<float>(-2, 3)
# over std::default_random_engine (libstdc++).
_NORMALS = {
    0: "-0x1.094fbap-2 0x1.9a01fp+0 -0x1.7fbbecp+0 0x1.65ec88p-3 0x1.e88168p-4",
    42: "-0x1.cd7062p-1 0x1.caf614p-1 -0x1.33e50ap+0 -0x1.f5eb46p-2 0x1.77da62p-7",
}
_UNIFORMS = {
    0: "-0x1.fffd7p+0 -0x1.57a1b2p+0 0x1.c72ccp+0 0x1.2c49fp-2 0x1.53e258p-1",
    42: "-0x1.ff944ap+0 0x1.3ef168p-1 0x1.ad5794p+0 -0x1.5df014p-1 -0x1.e6eecp-4",
}


@pytest.mark.parametrize("seed", [0, 42])
def test_onnx_runtimes_streams(seed: int) -> None:
    wanted = [float.fromhex(t) for t in _NORMALS[seed].split()]
    assert rng.normals(RngOptions.ort(seed), 5).tolist() == wanted
    unit = rng.uniforms(RngOptions.ort(seed), 5)
    found = unit * np.float32(5) + np.float32(-2)
    assert found.tolist() == [float.fromhex(t) for t in _UNIFORMS[seed].split()]


def test_an_ops_own_seed_wins_over_onnx_runtimes() -> None:
    own = rng.normals(RngOptions.ort(9), 7, key=5, op_seed=42.75)
    assert np.array_equal(own, rng.normals(RngOptions.ort(42), 7))
    assert np.array_equal(
        rng.normals(RngOptions.ort(9), 7, key=5), rng.normals(RngOptions.ort(14), 7)
    )
    assert [rng.ort_seed(1, 1, v) for v in (-3.0, 1e20, math.nan)] == [0, 2**32 - 1, 0]
    assert rng.ort_seed(2**64 - 1, 2, None) == 1
    philox = rng.normals(RngOptions(), 7, op_seed=1.0)
    assert np.array_equal(philox, rng.normals(RngOptions(), 7))


def test_the_zero_backend_gives_zeros() -> None:
    assert not rng.uniforms(RngOptions.zero(), 5).any()
    assert not rng.normals(RngOptions.zero(), 5, op_seed=3.0).any()


def test_moments_of_the_streams() -> None:
    seed = int(np.random.default_rng().integers(2**31))
    for options in (RngOptions.philox(seed), RngOptions.ort(seed)):
        unit, normal = rng.uniforms(options, 40000), rng.normals(options, 40000)
        assert abs(unit.mean() - 0.5) < 0.01
        assert abs(unit.var() - 1 / 12) < 0.005
        assert abs(normal.mean()) < 0.04
        assert abs(normal.var() - 1) < 0.05


def test_gumbel_numbers_choose_by_probability() -> None:
    seed = int(np.random.default_rng().integers(2**63))
    logits = np.tile(np.log(np.array([0.2, 0.3, 0.5], np.float32)), (20000, 1))
    found = rng.gumbel_max_argmax(logits, rng.Philox4x32(seed))
    assert found.dtype == np.int32
    assert found.shape == (20000,)
    shares = np.bincount(found, minlength=3) / 20000
    np.testing.assert_allclose(shares, [0.2, 0.3, 0.5], atol=0.03)
    noise = rng.gumbel01(rng.Philox4x32(seed), (20000, 3))
    assert np.array_equal(found, np.argmax(logits + noise, axis=-1))
    assert rng.gumbel_max_argmax([1.0, 900.0], rng.Philox4x32(seed)) == 1
    with pytest.raises(RunError, match="logits are required to have a last axis"):
        rng.gumbel_max_argmax(np.zeros((3, 0)), rng.Philox4x32(seed))


def test_policies() -> None:
    assert RngOptions() == RngOptions.philox(42)
    assert RngOptions.ort(7) == RngOptions(seed=7, backend=RngBackend.ORT)
    assert RngOptions.zero().backend is RngBackend.ZERO
    with pytest.raises(CompileError, match=r"BNNS is part of Apple's.*RngOptions.philox\(seed\)"):
        RngOptions.bnns(1)
    with pytest.raises(CompileError, match="BNNS is part of Apple's"):
        RngOptions(backend="bnns")  # type: ignore[arg-type]
    message = r"required a RngBackend \(PHILOX, ORT, ZERO\); got 'philx'. Did you mean 'PHILOX'"
    with pytest.raises(CompileError, match=message):
        RngOptions(backend="philx")  # type: ignore[arg-type]
