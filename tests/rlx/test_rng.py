"""The policy of random numbers at run time: seeds are bound, generators are compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx import RngBackend, RngOptions
from rlx.errors import RunError
from rlx.hidden import SEED
from rlx.ops.control_flow import Call, Cond, Scan, While
from rlx.ops.random import RngNormal, RngUniform, Sample

DEVICES = [d for d in ("interpret", "cpu") if d in rlx.registered_devices()]


@pytest.fixture(params=DEVICES)
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return rlx.Session(request.param)


def _noise(shape: str = "5") -> rlx.Graph:
    b = rlx.GraphBuilder("noise")
    x = b.input("x", f"f32[{shape}]")
    uniform = RngUniform(dtype=rlx.DType.F32, shape=x.shape, key=3)()
    normal = RngNormal(dtype=rlx.DType.F32, shape=x.shape, key=4)()
    return b.build(x + uniform, normal)


def _policies(rng: np.random.Generator) -> list[RngOptions]:
    seed = int(rng.integers(2**63, dtype=np.int64)) * 2 + 1
    return [RngOptions(), RngOptions(seed=seed), RngOptions.zero(), RngOptions.ort(seed % 2**31)]


def test_every_device_draws_what_interpret_draws(
    session: rlx.Session, rng: np.random.Generator
) -> None:
    graph, x = _noise(), np.zeros(5, np.float32)
    for policy in _policies(rng):
        compiled = session.compile(graph, options=rlx.CompileOptions(rng=policy))
        wanted = rlx.interpret(graph, {"x": x}, rng=policy)
        for _ in range(2):  # every run starts from the seed again
            found = compiled.run({"x": x})
            np.testing.assert_array_equal(found[0], wanted[0])
            np.testing.assert_allclose(found[1], wanted[1], rtol=3e-7)


def test_another_seed_is_bound(session: rlx.Session, rng: np.random.Generator) -> None:
    graph, x = _noise(), np.zeros(5, np.float32)
    compiled = session.compile(graph)
    assert compiled.rng == RngOptions(seed=42)
    first = compiled.run({"x": x})[0]
    policy = RngOptions(seed=int(rng.integers(2**62)))
    compiled.set_rng(policy)
    assert compiled.rng == policy
    np.testing.assert_array_equal(
        compiled.run({"x": x})[0], rlx.interpret(graph, {"x": x}, rng=policy)[0]
    )
    assert compiled.specializations().misses == 1
    compiled.set_rng(RngOptions(seed=42))
    np.testing.assert_array_equal(compiled.run({"x": x})[0], first)


def test_the_seed_is_hidden(session: rlx.Session) -> None:
    compiled = session.compile(_noise())
    assert compiled.graph.params == ()
    assert compiled.params() == {}
    assert [v.name for v in compiled.report().lir.graph.params] == [SEED]
    compiled.finalize_params()
    with pytest.raises(RunError, match=f"unknown param '{SEED}'; params are none"):
        compiled.set_param(SEED, np.zeros(2, np.uint32))


def test_another_generator_is_compiled(session: rlx.Session) -> None:
    graph, x = _noise(), np.zeros(5, np.float32)
    compiled = session.compile(graph)
    compiled.set_rng(RngOptions.zero())
    assert not compiled.run({"x": x})[0].any()
    assert compiled.specializations()[-1].reason == "rng: philox → zero"
    compiled.set_rng(RngOptions.ort(7))
    np.testing.assert_array_equal(
        compiled.run({"x": x})[0], rlx.interpret(graph, {"x": x}, rng=RngOptions.ort(7))[0]
    )
    compiled.set_rng(RngOptions.ort(8))
    assert compiled.specializations()[-1].reason == "rng seed: 7 → 8"
    np.testing.assert_array_equal(
        compiled.run({"x": x})[0], rlx.interpret(graph, {"x": x}, rng=RngOptions.ort(8))[0]
    )


def test_sizes_draw_by_the_policy_of_now(session: rlx.Session) -> None:
    graph = _noise("n")
    compiled = session.compile(graph)
    compiled.run({"x": np.zeros(2, np.float32)})
    policy = RngOptions(seed=11)
    compiled.set_rng(policy)
    for n in (2, 6):
        x = np.zeros(n, np.float32)
        np.testing.assert_array_equal(
            compiled.run({"x": x})[0], rlx.interpret(graph, {"x": x}, rng=policy)[0]
        )
    assert compiled.specializations().misses == 2


def _body(*types: str, draw: bool = True) -> rlx.Graph:
    """First input + noise; the others pass through."""
    b = rlx.GraphBuilder("body")
    first, *rest = (b.input(f"c{i}", t) for i, t in enumerate(types))
    noise = RngUniform(dtype=rlx.DType.F32, shape=(3,), key=1)() if draw else first
    return b.build(first + noise, *rest)


def _scan(x: rlx.Value) -> rlx.Value:
    return Scan(body=_body("f32[3]"), length=4, num_carry=1)(x)


def _while(x: rlx.Value) -> rlx.Value:
    """Loops until the drawn number of the condition is large beside the carry."""
    b = rlx.GraphBuilder("cond")
    c = b.input("c", "f32[3]")
    limit = RngUniform(dtype=rlx.DType.F32, shape=(), key=2)() + 2.0
    cond = b.build(c.sum() < limit)
    return While(cond=cond, body=_body("f32[3]"))(x)


def _branches(x: rlx.Value) -> rlx.Value:
    branches = (_body("f32[3]", draw=False), _body("f32[3]"))
    return Cond(branches=branches)(x.sum() < 1.0, x)


def _calls(x: rlx.Value) -> rlx.Value:
    body = _body("f32[3]")
    return Call(body=body, name="f")(Call(body=body, name="f")(x))


def _nested(x: rlx.Value) -> rlx.Value:
    b = rlx.GraphBuilder("outer")
    inner = b.build(_branches(_scan(b.input("y", "f32[3]"))))
    return Scan(body=inner, length=2, num_carry=1)(x)


@pytest.mark.parametrize("inside", [_scan, _while, _branches, _calls, _nested])
def test_the_seed_reaches_inner_graphs(
    session: rlx.Session, inside: Callable[[rlx.Value], rlx.Value]
) -> None:
    b = rlx.GraphBuilder("outside")
    x = b.input("x", "f32[3]")
    noise = RngUniform(dtype=rlx.DType.F32, shape=(3,), key=1)()
    graph = b.build(inside(x), x + noise)
    options = rlx.CompileOptions(validate=True)
    compiled = session.compile(graph, options=options)
    zeros = np.zeros(3, np.float32)
    seen: list[float] = []
    for seed in (42, 9, 2**40 + 1):
        policy = RngOptions(seed=seed)
        compiled.set_rng(policy)
        wanted = rlx.interpret(graph, {"x": zeros}, rng=policy)
        for got, want in zip(compiled.run({"x": zeros}), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
        seen.append(float(wanted[0].sum()))
    assert compiled.specializations().misses == 1
    assert len(set(seen)) == 3


def test_a_seed_elsewhere_is_part_of_the_program() -> None:
    """The graph of a reduction takes no more operands, so the seed in it is a constant."""
    from rlx.ops.reduction import Reduce

    b = rlx.GraphBuilder("add")
    p, q = b.input("p", "f32[]"), b.input("q", "f32[]")
    body = b.build(p + q + RngUniform(dtype=rlx.DType.F32, shape=())())
    b = rlx.GraphBuilder("sum")
    x = b.input("x", "f32[3]")
    graph = b.build(Reduce(body=body, axes=(0,))(x, rlx.constant(0.0)))
    compiled = rlx.Session("interpret").compile(graph)
    zeros = np.zeros(3, np.float32)
    compiled.set_rng(RngOptions(seed=9))
    wanted = rlx.interpret(graph, {"x": zeros}, rng=RngOptions(seed=9))[0]
    np.testing.assert_array_equal(compiled.run({"x": zeros})[0], wanted)
    assert compiled.specializations()[-1].reason == "rng seed: 42 → 9"


def test_samples_follow_the_policy(session: rlx.Session, rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("pick")
    logits = b.input("logits", "f32[4, 9]")
    graph = b.build(Sample(temperature=1.0)(logits), Sample(temperature=1.0, seed=5)(logits))
    compiled = session.compile(graph)
    value = rng.standard_normal((4, 9)).astype(np.float32)
    for seed in (42, 1, 2):
        policy = RngOptions(seed=seed)
        compiled.set_rng(policy)
        wanted = rlx.interpret(graph, {"logits": value}, rng=policy)
        for got, want in zip(compiled.run({"logits": value}), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
    assert compiled.specializations().misses == 1


def test_a_clone_draws_by_its_own_policy(session: rlx.Session) -> None:
    x = np.zeros(5, np.float32)
    compiled = session.compile(_noise())
    twin = compiled.clone()
    before = compiled.run({"x": x})[0]
    twin.set_rng(RngOptions(seed=77))
    np.testing.assert_array_equal(compiled.run({"x": x})[0], before)
    assert not np.array_equal(twin.run({"x": x})[0], before)
    assert (compiled.rng.seed, twin.rng.seed) == (42, 77)


def test_a_graph_without_random_ops_takes_any_policy(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("plain")
    compiled = session.compile(b.build(b.input("x", "f32[2]") + 1.0))
    compiled.set_rng(RngOptions(seed=3, backend=RngBackend.ORT))
    assert compiled.run({"x": [1.0, 2.0]})[0].tolist() == [2.0, 3.0]
    assert compiled.specializations().misses == 1
    assert not compiled.capabilities().random
    with pytest.raises(RunError, match="set_rng: an RngOptions is required; got int"):
        compiled.set_rng(3)  # type: ignore[arg-type]


def test_threads_see_one_seed_or_the_other(session: rlx.Session) -> None:
    """Both random ops of one run are drawn from the same seed."""
    b = rlx.GraphBuilder("pair")
    shape = (4,)
    first = RngUniform(dtype=rlx.DType.F32, shape=shape, key=5)()
    second = RngUniform(dtype=rlx.DType.F32, shape=shape, key=6)()
    compiled = session.compile(b.build(first, second))
    policies = [RngOptions(seed=s) for s in (1, 2)]
    pairs = [tuple(a.tobytes() for a in rlx.interpret(compiled.graph, rng=p)) for p in policies]
    compiled.set_rng(policies[0])
    wrong: list[object] = []

    def call() -> None:
        for _ in range(50):
            found = tuple(a.tobytes() for a in compiled.run())
            if found not in pairs:
                wrong.append(found)

    thread = threading.Thread(target=call)
    thread.start()
    for k in range(50):
        compiled.set_rng(policies[k % 2])
    thread.join()
    assert not wrong
