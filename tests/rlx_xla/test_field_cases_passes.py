"""Field cases about passes: folding, precision, loops, and where a NaN comes from."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rlx
import rlx_xla
from rlx.ops.io import Constant
from rlx.passes import PassContext, UnrollScans, mir_pipeline

MIXED = (
    rlx.PrecisionPolicy.AUTO_MIXED,
    rlx.PrecisionPolicy.AUTO_MIXED_CONSERVATIVE,
    rlx.PrecisionPolicy.AUTO_MIXED_BF16,
    rlx.PrecisionPolicy.AUTO_MIXED_BF16_SAFE,
)


def constant_bytes(graph: rlx.Graph) -> int:
    return sum(
        n.types[0].nbytes
        for g in graph.all_graphs()
        for n in g.nodes()
        if isinstance(n.op, Constant)
    )


@pytest.mark.parametrize("policy", MIXED, ids=str)
def test_d11_mixed_precision_is_safe(policy: rlx.PrecisionPolicy, rng: np.random.Generator) -> None:
    def fn(x: Any, logits: Any, ones: Any) -> Any:
        norm = nn.LayerNorm().apply({"params": {"scale": jnp.ones(1024), "bias": jnp.zeros(1024)}},
                                    x)  # fmt: skip
        return norm, jax.nn.softmax(logits), jnp.sum(ones)

    x = np.full((4, 1024), 300.0, np.float32)
    x[1:] += rng.uniform(-100, 100, (3, 1024)).astype(np.float32)
    logits = rng.uniform(-1e4, 1e4, (4, 64)).astype(np.float32)
    arguments = (x, logits, np.ones(65536, np.float32))
    compiled = rlx.Session("cpu", policy=policy).compile(rlx_xla.trace(fn, *arguments))
    found, wanted = compiled(*arguments), jax.jit(fn)(*arguments)
    for got, want in zip(found, wanted, strict=True):
        assert np.isfinite(np.asarray(got)).all()
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), atol=1e-2)
    assert float(found[2]) == 65536.0


def test_d11_f16_everywhere_overflows_and_says_where() -> None:
    x = np.full((4, 1024), 300.0, np.float32)
    traced = rlx_xla.trace(lambda x: jnp.sum(x * x, axis=-1), x)
    session = rlx.Session("cpu", policy=rlx.PrecisionPolicy.ALWAYS_F16)
    compiled = session.compile(traced)
    assert np.isposinf(np.asarray(compiled(x))).all()
    found = rlx.debug.localize_nan(compiled, x, infinities=True)
    assert found is not None
    assert found.node.op.op_name in ("mul", "square", "integer_pow")
    assert "overflow: the largest f16 is 65504" in str(found)
    assert "test_field_cases_passes.py" in str(found)


def test_f1_a_captured_index_array_is_a_param() -> None:
    index = np.random.default_rng(0).integers(0, 1000, 2_000_000).astype(np.int32)
    x = np.arange(1000, dtype=np.float32)
    traced = rlx_xla.trace(lambda x: x[index].sum(), x)
    compiled = rlx.Session("cpu").compile(traced)
    assert constant_bytes(compiled.report().lir.graph) < 10_000
    count, size = compiled.report().params
    assert size >= 8_000_000
    assert f"params: {count}, {size:,} bytes" in str(compiled.report())
    np.testing.assert_allclose(np.asarray(compiled(x)), x[index].sum(dtype=np.float64), rtol=1e-4)


def test_f2_large_constants_are_not_made_while_folding() -> None:
    for fn in (
        lambda: jnp.ones((500, 500, 500)).at[100, 100, 100].set(2),
        lambda: jnp.ones((200000, 10, 10)).sum(axis=(1, 2)),
    ):
        graph = rlx_xla.trace(fn).graph
        folded, _ = mir_pipeline(rlx.CompileOptions()).run(graph, PassContext())
        assert constant_bytes(folded) < 10_000


def test_j3_the_scan_policy_is_honoured(rng: np.random.Generator) -> None:
    def fn(c: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: (c * 0.9 + jnp.sin(x), c), c, xs)

    c, xs = np.float32(1), rng.standard_normal(50).astype(np.float32)
    traced = rlx_xla.trace(fn, c, xs)
    wanted = jax.jit(fn)(c, xs)
    for longest, loops in ((0, True), (49, True), (50, False)):
        options = rlx.CompileOptions(scan_unroll_max_length=longest)
        compiled = rlx.Session("cpu").compile(traced, options=options)
        ops = {n.op.op_name for n in compiled.report().lir.graph.nodes()}
        assert ("scan" in ops) is loops
        for got, want in zip(compiled(c, xs), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6, atol=1e-6)


def test_j3_a_long_scan_of_tiny_steps_is_told_on_gpus() -> None:
    def fn(c: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: (c * 0.5 + x * 2.0, None), c, xs)[0]

    spec = jax.ShapeDtypeStruct((10_000_000,), jnp.float32)
    graph = rlx_xla.trace(fn, np.float32(0), spec).graph
    ctx = PassContext(platform="cuda")
    assert UnrollScans().run(graph, ctx) is graph
    (line,) = ctx.notes
    assert line.startswith("scan of 10,000,000 steps with 3 flops per step at test_field_cases_p")
    assert line.endswith("run it on the CPU?")


def test_h1_a_traced_function() -> None:
    def f(x: Any, y: Any) -> Any:
        inner = jnp.sin(x) - y**2
        made = jnp.log(inner)  # this line
        return made * 2

    first = f.__code__.co_firstlineno
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(f, np.float32(-2), np.float32(5)))
    assert np.isnan(np.asarray(compiled(np.float32(-2), np.float32(5))))
    found = rlx.debug.localize_nan(compiled, np.float32(-2), np.float32(5))
    assert found is not None
    assert str(found).startswith(
        f"log at test_field_cases_passes.py:{first + 2} makes the first NaN"
    )
    assert "is -25.909" in str(found)
    assert rlx.debug.localize_nan(compiled, np.float32(2), np.float32(0)) is None


def test_h1_inside_a_scan_the_step_is_named() -> None:
    def f(xs: Any) -> Any:
        return lax.scan(lambda c, x: (c + jnp.log(x), c), jnp.float32(0), xs)

    xs = np.array([1, 2, 3, -4, 5], np.float32)
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(f, xs))
    found = rlx.debug.localize_nan(compiled, xs)
    assert found is not None
    assert found.node.op.op_name == "log"
    assert found.path[0].startswith("step 3 of 5 of scan")
    assert found.operands[0].value == -4


def test_bisect_finds_the_pair_that_xla_rewrites(rng: np.random.Generator) -> None:
    def f(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = jnp.tanh(x @ w) + x
        y = jnp.log(jnp.exp(x * 0 + 89)) * 2
        return jnp.sin(y) + x

    arguments = (rng.standard_normal((2, 4)).astype(np.float32), np.eye(4, dtype=np.float32))
    graph = rlx_xla.trace(f, *arguments).graph
    feeds = {v.name: a for v, a in zip(graph.inputs, arguments, strict=True)}
    if np.isinf(jax.jit(lambda x: jnp.log(jnp.exp(x)))(np.float32(89))):
        pytest.skip("this XLA leaves log(exp(x)) as it is")
    found = rlx.debug.bisect(graph, feeds, session=rlx.Session("cpu"))
    assert {n.op.op_name for n in found.nodes} >= {"exp", "log"}
    assert len(found.nodes) <= 5
    assert found.reason.startswith("cpu")
    strict = rlx.CompileOptions(strict=True)
    with pytest.raises(rlx.errors.PassError, match="nothing is wrong"):
        rlx.debug.bisect(graph, feeds, session=rlx.Session("cpu"), options=strict)


def test_jit_takes_a_policy(rng: np.random.Generator) -> None:
    options = rlx.CompileOptions(policy=rlx.PrecisionPolicy.AUTO_MIXED_BF16)
    x, w = (rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    fast = rlx_xla.jit(lambda x, w: jnp.tanh(x @ w) @ w, options=options)
    got, want = np.asarray(fast(x, w)), np.tanh(x @ w) @ w
    assert got.dtype == np.float32
    assert 1e-6 < np.abs(got - want).max() < 0.2


def test_h1_with_a_key() -> None:
    def f(key: Any, x: Any) -> Any:
        return jnp.log(x - 1e3 + jax.random.uniform(key, x.shape))

    key, x = jax.random.key(0), np.ones(3, np.float32)
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(f, key, x))
    with pytest.raises(rlx.errors.RunError) as caught:
        rlx.debug.localize_nan(compiled, key, x)
    name = compiled.signature.inputs[0]
    assert str(caught.value) == (
        f"localize_nan: the numbers of key {name!r} are required, u32[2]; got a key array. "
        "Pass jax.random.key_data(key)."
    )
    found = rlx.debug.localize_nan(compiled, jax.random.key_data(key), x)
    assert found is not None
    assert found.node.op.op_name == "log"
