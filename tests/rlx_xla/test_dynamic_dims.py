"""Changing sizes: named dims, buckets, functions that are traced anew, ledgers and warnings."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import (
    CompileError,
    CompileStormWarning,
    DimError,
    ParseError,
    RunError,
    TraceError,
)
from rlx_xla.tracing.template import TemplateTraced

COMPILE = "/jax/core/compile/backend_compile_duration"


class Compiles:
    """Counts XLA compiles of this process while it is entered."""

    def __enter__(self) -> Compiles:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._note)
        return self

    def _note(self, event: str, duration: float, **_: Any) -> None:
        self.count += event == COMPILE

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._note)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).random(shape, np.float32)


def score(x: Any) -> Any:
    return (jnp.log1p(x) ** 2).sum()


def test_a1_every_length_in_one_compile() -> None:
    fast = rlx_xla.jit(score, dims=("f32[n]",), buckets={"n": [64]})
    with Compiles() as compiles:
        for n in range(1, 65):
            x = draw(n)
            wanted = (np.log1p(x.astype(np.float64)) ** 2).sum()
            np.testing.assert_allclose(fast(x), wanted, rtol=1e-5)
    assert compiles.count == 1
    records = fast.specializations()
    assert (records.misses, records.hits) == (1, 63)
    assert f"{records[0].wasted:.0%}" == "49%"
    assert "1 compile, 63 hits, 0 evictions" in str(records)
    assert "up to n = 64" in records._repr_html_()


def test_a3_alternating_shapes_compile_twice() -> None:
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(lambda x: x + 1, "f32[b, s]"))
    with Compiles() as compiles:
        for b in (4, 2) * 5:
            assert compiled(draw(b, 8)).shape == (b, 8)
    assert compiles.count == 2
    small = rlx.Session("cpu").compile(
        rlx_xla.trace(lambda x: x + 1, "f32[n]"),
        options=rlx.CompileOptions(specialization_cache_size=2),
    )
    for n in (5, 6, 7, 5):
        small(draw(n))
    records = small.specializations()
    assert (records.misses, records.evictions) == (4, 2)
    assert records.evicted == [{"n": 5}, {"n": 6}]
    assert "2 evictions (n = 5; n = 6)" in str(records)


@pytest.mark.parametrize("dims", [None, ("f32[n]",)])
def test_a5_reasons_name_the_argument_and_the_axis(dims: Any) -> None:
    fast = rlx_xla.jit(lambda x: x + 1, dims=dims)
    for x in (draw(3), draw(4), np.ones(4, np.int32)):
        np.testing.assert_array_equal(fast(x), x + 1)
    reasons = [record.reason for record in fast.specializations()]
    assert reasons == ["first call", "x axis 0: 3 → 4", "dtype of x: f32 → i32"]


def test_a5_weak_scalars_are_a_record_of_their_own() -> None:
    fast = rlx_xla.jit(lambda x: x + 1)
    for x in (draw(3), draw(4), np.ones(4, np.int32), 2.0):
        fast(x)
    assert len(fast.specializations()) == 4
    assert "strong → weak" in fast.specializations()[-1].reason


def test_a10_lengths_find_the_nearest_bucket() -> None:
    ladder = [16, 32, 64, 96, 128]
    fast = rlx_xla.jit(lambda x: x * 2, dims=("f32[n]",), buckets={"n": ladder})
    for n in (18, 23, 42, 55, 90):
        np.testing.assert_array_equal(fast(draw(n)), draw(n) * 2)
    assert [r.binding["n"] for r in fast.specializations()] == [32, 64, 96]
    assert [r.hits for r in fast.specializations()] == [1, 1, 0]
    with pytest.raises(
        DimError, match="n is required to be at most 128, its last bucket; got n = 129"
    ):
        fast(draw(129))


@pytest.mark.parametrize("buckets", [None, "pow2", "auto"])
def test_a12_outputs_follow_the_call(buckets: Any) -> None:
    flat = rlx_xla.jit(lambda a: (a + 1).T.flatten(), dims=("f32[3, n]",), buckets=buckets)
    for n in (1, 2, 3, 4):
        np.testing.assert_array_equal(flat(draw(3, n)), (draw(3, n) + 1).T.flatten())
    w = draw(64, 17)
    dense = rlx_xla.jit(lambda x, w: x @ w, dims=("f32[1, s, 64]", None), buckets=buckets)
    for s in (40, 248, 623):
        found = dense(draw(1, s, 64), w)
        assert found.shape == (1, s, 17)
        np.testing.assert_allclose(found, draw(1, s, 64) @ w, rtol=1e-4)


@jax.numpy_rank_promotion("allow")
def test_b2_a_slice_of_a_table_by_length() -> None:
    def embed(x: Any, pos: Any) -> Any:
        return x + pos[: x.shape[1]]

    traced = rlx_xla.trace(embed, "f32[1, s, 4]", "f32[512, 4]")
    assert isinstance(traced, TemplateTraced)
    with pytest.raises(AttributeError, match=r"no one graph for all sizes .*Ask for one: .at\(\{'"):
        _ = traced.graph
    compiled = rlx.Session("cpu").compile(traced)
    pos = draw(512, 4)
    for s in (8, 512, 8):
        np.testing.assert_allclose(compiled(draw(1, s, 4), pos), draw(1, s, 4) + pos[:s])
    assert compiled.specializations().misses == 2
    message = (
        r"embed with s=513: s=513 exceeds table size 512 \(pos axis 0\) at .*test_dynamic_dims"
    )
    with pytest.raises(DimError, match=message):
        compiled(draw(1, 513, 4), pos)
    bounded = rlx_xla.jit(embed, dims=("f32[1, s, 4]", None), buckets={"s": [64, 512]})
    for s in (8, 9, 400, 512):
        np.testing.assert_allclose(bounded(draw(1, s, 4), pos), draw(1, s, 4) + pos[:s])
    assert [r.is_padded for r in bounded.specializations()] == [True, True]


@jax.numpy_rank_promotion("allow")
def test_b2_a_table_that_the_function_closes_over() -> None:
    pos = draw(512, 4)

    def embed(x: Any) -> Any:
        return x + pos[: x.shape[1]]

    compiled = rlx.Session("cpu").compile(rlx_xla.trace(embed, "f32[1, s, 4]"))
    np.testing.assert_allclose(compiled(draw(1, 512, 4)), draw(1, 512, 4) + pos)
    with pytest.raises(
        DimError, match=r"s=513 exceeds table size 512 \(pos axis 0\) at .*test_dynamic_dims"
    ):
        compiled(draw(1, 513, 4))
    tables = {"word": draw(300, 4)}
    traced = rlx_xla.trace(lambda x: x + jnp.asarray(tables["word"])[: x.shape[1]], "f32[1, s, 4]")
    with pytest.raises(
        DimError, match=r"s=301 exceeds table size 300 \(tables\['word'\] axis 0\) at "
    ):
        rlx.Session("cpu").compile(traced)(draw(1, 301, 4))


def test_b4_a_reshape_that_needs_a_divisor() -> None:
    def rows(x: Any) -> Any:
        return x.reshape(-1, 4)

    fast = rlx_xla.jit(rows, dims=("f32[b]",))
    assert fast(draw(8)).shape == (2, 4)
    with pytest.raises(DimError, match=r"rows with b=6: b=6 not divisible by 4 at .*\.py:\d+"):
        fast(draw(6))


def test_b6_gathers_of_rows() -> None:
    rows = rlx_xla.jit(lambda x, i: x[i], dims=("f32[b, 3]", "i32[b]"))
    for b in (1, 7):
        index = np.arange(b, dtype=np.int32)[::-1]
        np.testing.assert_array_equal(rows(draw(b, 3), index), draw(b, 3)[index])


def test_b8_statistics_of_a_batch() -> None:
    moments = rlx_xla.jit(lambda x: (jnp.mean(x), x.var(0)), dims=("f32[b, 8]",))
    assert float(moments(np.ones((3, 8), np.float32))[0]) == 1.0
    np.testing.assert_array_equal(moments(draw(1, 8))[1], np.zeros(8))


def test_branches_on_sizes_are_traced_where_they_may_differ() -> None:
    def double_one(x: Any) -> Any:
        return x * 2 if x.shape[0] == 1 else x

    for buckets in (None, {"n": [4]}):
        fast = rlx_xla.jit(double_one, dims=("f32[n]",), buckets=buckets)
        for n in (3, 1, 4, 1):
            np.testing.assert_array_equal(fast(draw(n)), draw(n) * (2 if n == 1 else 1))
        records = fast.specializations()
        assert "another graph at n = 1" in str(records)
        assert all({"trace", "passes", "xla", "total"} <= set(r.seconds) for r in records[:2])
        assert all(r.seconds["total"] >= r.seconds["xla"] for r in records)
        assert [("pad" in r.seconds) for r in records[:2]] == [buckets is not None, False]

    def square(x: Any) -> Any:
        return x @ x if x.shape[0] == x.shape[1] else x.sum(1)

    fast = rlx_xla.jit(square, dims=("f32[a, b]",))
    for a, b in ((3, 2), (3, 3), (2, 3)):
        np.testing.assert_allclose(fast(draw(a, b)), square(draw(a, b)), rtol=1e-5)
    same = rlx_xla.jit(score, dims=("f32[n]",))
    same(draw(1))
    assert same.specializations()[0].reason == "first call"


def test_empty_inputs() -> None:
    for buckets in (None, {"n": [4]}):
        fast = rlx_xla.jit(lambda x: (x + 1, x.sum()), dims=("f32[n]",), buckets=buckets)
        for n in (3, 0):
            row, total = fast(draw(n))
            assert row.shape == (n,)
            assert float(total) == pytest.approx(float(draw(n).sum()), rel=1e-6)


def test_arrays_made_at_trace_time_belong_to_their_size() -> None:
    def weighted(x: Any) -> Any:
        return (x * np.linspace(0, 1, int(x.shape[0]), dtype=np.float32)).sum()

    fast = rlx_xla.jit(weighted, dims=("f32[n]",))
    for n in (3000, 400, 3000):
        np.testing.assert_allclose(fast(draw(n)), weighted(draw(n)), rtol=1e-4)
    assert fast.specializations().misses == 2


def test_a_function_that_never_traces_says_so_at_once() -> None:
    with pytest.raises(TypeError):
        rlx_xla.trace(lambda x: x @ jnp.ones((3, 3)) + undefined(x), "f32[n, 5]")


def undefined(x: Any) -> Any:
    raise TypeError("nothing fits")


def test_contradictions_and_constraints_are_told_apart() -> None:
    both = rlx_xla.jit(lambda x, y: x + y, dims=("f32[n]", "f32[n]"))
    with pytest.raises(DimError, match="symbol n bound to 3 by 'x' axis 0 and 4 by 'y' axis 0"):
        both(draw(3), draw(4))
    options = rlx.CompileOptions(constraints=("n % 4 == 0", "n >= 8"))
    fast = rlx_xla.jit(lambda x: x * 2, dims=("f32[n]",), options=options)
    assert fast(draw(12)).shape == (12,)
    message = (
        "constraint: sizes are required to keep what was promised; got n%4 == 0 with n = 6; "
        "n >= 8 with n = 6. Pad or cut the input, or leave the constraint out."
    )
    with pytest.raises(DimError) as caught:
        fast(draw(6))
    assert str(caught.value) == message
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[n]")
    with pytest.raises(DimError, match=r"constraint m >= 2: symbols of the graph .*\(n\); got 'm'"):
        rlx.Session("cpu").compile(b.build(x), options=rlx.CompileOptions(constraints=("m >= 2",)))


def test_trees_params_and_static_arguments() -> None:
    def layer(params: Any, batch: Any, scale: int = 1) -> Any:
        return {"y": batch["x"] @ params["w"] * scale + batch["bias"][None]}

    fast = rlx_xla.jit(
        layer,
        params=0,
        static_argnames="scale",
        dims={"batch": {"x": "f32[b, 4]", "bias": None}},
        buckets="pow2",
    )
    for w in (draw(4, 5), draw(4, 5) * 3):
        for b in (3, 5, 6):
            batch = {"x": draw(b, 4), "bias": draw(5)}
            for scale in (1, 2):
                found = fast({"w": w}, batch, scale=scale)["y"]
                wanted = batch["x"] @ w * scale + batch["bias"]
                np.testing.assert_allclose(found, wanted, rtol=1e-5)
    records = fast.specializations()
    assert records.misses == 4
    assert {r.binding["b"] for r in records} == {4, 8}
    assert "static scale: 1 → 2" in [r.reason for r in records]


def test_transformations_see_the_function() -> None:
    fast = rlx_xla.jit(score, dims=("f32[n]",), buckets={"n": [8]})
    x = draw(5)
    np.testing.assert_allclose(jax.grad(fast)(x), jax.grad(score)(x), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(fast)(draw(2, 5)), jax.vmap(score)(draw(2, 5)), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(fast)(x), score(x), rtol=1e-5)


def test_keywords_have_dims_too() -> None:
    for fn in (lambda x, *, y: x * y, lambda x, **more: x * more["y"]):
        fast = rlx_xla.jit(fn, dims={"x": "f32[n]", "y": "f32[n]"}, buckets={"n": [8]})
        for n in (3, 5):
            np.testing.assert_array_equal(fast(draw(n), y=draw(n) + 1), draw(n) * (draw(n) + 1))
        assert fast.specializations().misses == 1


def test_masked_arrays_are_refused_before_they_lose_their_mask() -> None:
    masked = np.ma.masked_array(draw(3), [0, 1, 0])
    b = rlx.GraphBuilder()
    graph = b.build(b.input("x", "f32[n]").sum())
    text = (
        "is required to be an array without a mask; got a masked array. Use .filled(value), or "
        "pass its data and its mask."
    )
    for where, call in (
        ("interpret: input 'x'", lambda: rlx.interpret(graph, {"x": masked})),
        ("run: input 'x'", lambda: rlx.Session("cpu").compile(graph).run({"x": masked})),
        ("jit of score: argument 0", lambda: rlx_xla.jit(score, dims=("f32[n]",))(masked)),
    ):
        with pytest.raises(RunError) as caught:
            call()
        assert str(caught.value) == f"{where} {text}"
    for device, where in (("cpu", "call: argument"), ("interpret", "run: input")):
        with pytest.raises(RunError) as caught:
            rlx.Session(device).compile(graph)(masked)
        assert str(caught.value) == f"{where} 'x' {text}"


def test_padded_programs_inside_functions_that_jax_traces() -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[n, 3]")
    graph = b.build(x.softmax(axis=0), x.reshape((3 * x.shape[0],)).sum())
    compiled = rlx.Session("cpu").compile(graph, options=rlx.CompileOptions(buckets={"n": [4, 8]}))
    inside = jax.jit(lambda v: [y * 2 for y in compiled(v + 1)])
    for n in (3, 6, 8):
        rows, total = inside(draw(n, 3))
        np.testing.assert_allclose(rows, 2 * jax.nn.softmax(draw(n, 3) + 1, axis=0), rtol=1e-5)
        np.testing.assert_allclose(total, 2 * (draw(n, 3) + 1).sum(), rtol=1e-5)
    assert [r.binding for r in compiled.specializations()] == [{"n": 4}, {"n": 8}]
    with pytest.raises(TraceError, match=r"stay outside of jax\.grad"):
        jax.grad(lambda v: compiled(v)[1])(draw(3, 3))
    with pytest.raises(TraceError, match=r"stay outside of jax\.vmap"):
        jax.vmap(compiled)(draw(2, 3, 3))


def test_resident_inputs_in_buckets() -> None:
    capacity = 12

    def step(x: Any, cache: Any, length: Any) -> Any:
        cache = jax.lax.dynamic_update_slice(cache, x, (length, 0))
        seen = jnp.arange(capacity)[None] < length + x.shape[0]
        weights = jax.nn.softmax(jnp.where(seen, x @ cache.T, -jnp.inf))
        return weights @ cache, cache, length + x.shape[0]

    live = rlx.Session("cpu").compile(
        rlx_xla.trace(step, "f32[s, 4]", f"f32[{capacity}, 4]", "i32[]"),
        options=rlx.CompileOptions(buckets={"s": [1, 4]}, resident={"cache": 1, "length": 2}),
    )
    cache: Any = np.zeros((capacity, 4), np.float32)
    live.set_kept("cache", cache)
    live.set_kept("length", np.int32(0))
    length: Any = np.int32(0)
    for s in (3, 1, 2, 1, 4):
        wanted, cache, length = step(draw(s, 4), cache, length)
        np.testing.assert_allclose(live(draw(s, 4))[0], wanted, rtol=1e-5, atol=1e-6)
    assert int(live.kept("length")) == 11
    np.testing.assert_allclose(live.kept("cache"), cache, rtol=1e-6)
    assert [r.binding for r in live.specializations()] == [{"s": 4}, {"s": 1}]
    assert all(r.is_padded for r in live.specializations())


def test_resident_inputs_that_are_padded_themselves() -> None:
    traced = rlx_xla.trace(lambda x, s: ((x * s).sum(1), s * 0.5 + x), "f32[b, 3]", "f32[b, 3]")
    live = rlx.Session("cpu").compile(
        traced, options=rlx.CompileOptions(buckets={"b": [4, 8]}, resident={"s": 1})
    )
    for b in (3, 6, 2):
        state = draw(b, 3) + 1
        live.set_kept("s", state)
        for _ in range(2):
            np.testing.assert_allclose(live(draw(b, 3))[0], (draw(b, 3) * state).sum(1), rtol=1e-5)
            state = state * 0.5 + draw(b, 3)
        np.testing.assert_allclose(live.kept("s"), state, rtol=1e-5)
        np.testing.assert_allclose(live.clone().kept("s"), state, rtol=1e-5)
    assert live.specializations().misses == 2
    odd = rlx_xla.trace(
        lambda x, s: (x.sum(), (s.reshape(-1) + 0 * x).reshape(s.shape)), "f32[b*c]", "f32[b, c]"
    )
    strict = rlx.CompileOptions(buckets={"b": [4], "c": [4]}, resident={"s": 1})
    other = rlx.Session("cpu").compile(odd, options=strict)
    other.set_kept("s", draw(2, 3))
    for _ in range(2):
        np.testing.assert_allclose(other(draw(6))[0], draw(6).sum(), rtol=1e-5)
    np.testing.assert_allclose(other.kept("s"), draw(2, 3), rtol=1e-6)


def test_resident_inputs_of_functions_that_branch_on_a_size() -> None:
    traced = rlx_xla.trace(
        lambda x, s: (x * 2 if x.shape[0] == 1 else x, s + x.sum()), "f32[b]", "f32[]"
    )
    options = rlx.CompileOptions(resident={"s": 1}, constraints=("b <= 5",))
    live = rlx.Session("cpu").compile(traced, options=options)
    live.set_kept("s", np.float32(0))
    for b in (3, 1, 3):
        np.testing.assert_allclose(live(draw(b))[0], draw(b) * (2 if b == 1 else 1))
    with pytest.raises(DimError, match="got b <= 5 with b = 6"):
        live(draw(6))


@pytest.mark.parametrize("device", ["cpu", "interpret"])
@pytest.mark.parametrize("buckets", [None, {"n": [4, 8], "m": [4]}])
def test_params_of_any_size(device: str, buckets: Any) -> None:
    b = rlx.GraphBuilder()
    x, w = b.input("x", "f32[m, n]"), b.param("w", "f32[n, 2]")
    graph = b.build(x @ w)
    compiled = rlx.Session(device).compile(graph, options=rlx.CompileOptions(buckets=buckets))
    for n in (3, 5, 3, 4):
        compiled.set_param("w", draw(n, 2))
        np.testing.assert_allclose(compiled(draw(2, n)), draw(2, n) @ draw(n, 2), rtol=1e-5)
    assert compiled.specializations().misses == (3 if buckets is None else 2)
    with pytest.raises(DimError, match="symbol n bound to 7 by 'x' axis 1 and 4 by 'w' axis 0"):
        compiled(draw(2, 7))


def test_wrong_dims_are_explained() -> None:
    with pytest.raises(TraceError, match="jit: buckets round named dims up, so dims is required"):
        rlx_xla.jit(score, buckets="pow2")
    with pytest.raises(TraceError, match="dims is required to be one spec per argument"):
        rlx_xla.jit(score, dims="f32[n]")
    with pytest.raises(TraceError, match=r"names in dims .* \(x\); got 'y'"):
        rlx_xla.jit(score, dims={"y": "f32[n]"})
    many = (
        "jit of score: dims is required to hold at most one spec per argument (x); got 2 specs. "
        "Leave out what is too much, or use a mapping (argument name → spec) for keyword-only "
        "arguments."
    )
    with pytest.raises(TraceError) as caught:
        rlx_xla.jit(score, dims=("f32[n]", None))
    assert str(caught.value) == many
    with pytest.raises(TraceError) as caught:
        rlx_xla.jit(lambda x, k: x * k, static_argnums=1, dims=("f32[n]", "i32[m]"))
    assert str(caught.value) == (
        "jit of <lambda>: dims is required to be None for static arguments, which are Python "
        "values; got a spec for argument k. Leave it out."
    )
    with pytest.raises(TraceError) as caught:
        rlx_xla.jit(score, dims=(3,))(draw(3))
    assert str(caught.value) == (
        "jit of score: dims of argument 0 is required to be a spec such as 'f32[n, 3]', or None; "
        "got 3."
    )
    with pytest.raises(ParseError, match=r"jit of score: dims of argument 0: type: .*'f32\[n'"):
        rlx_xla.jit(score, dims=("f32[n",))(draw(3))
    with pytest.raises(CompileError, match=r"Correct 'n': \[8, 4\]: a list of ints ≥ 1, each"):
        rlx_xla.jit(score, dims=("f32[n]",), buckets={"n": [8, 4]})
    with pytest.raises(TraceError, match="dims of argument 0 are required in its structure"):
        rlx_xla.jit(score, dims=(("f32[n]", None),))(draw(3))
    with pytest.raises(
        DimError, match=r"CompileOptions.buckets: names of symbols .*\(n\); got 'm'"
    ):
        rlx_xla.jit(score, dims=("f32[n]",), buckets={"m": [4]})(draw(3))
    with pytest.raises(CompileError, match="on_unsafe: required 'exact' or 'error'"):
        rlx_xla.jit(score, dims=("f32[n]",), on_unsafe="never")
    with pytest.raises(RunError, match="dims and one call are required"):
        rlx_xla.jit(score).warm()


def test_storms_of_compiles_are_told_once() -> None:
    plain = rlx_xla.jit(lambda x: x + 1)
    named = rlx_xla.jit(lambda x: x + 1, dims=("f32[n, 2]",))
    for fn, told in ((plain, "dims={'x': 'f32[n, 2]'}"), (named, "n (x axis 0) had 12 sizes")):
        with pytest.warns(CompileStormWarning) as caught:
            [fn(draw(n, 2)) for n in range(1, 15)]
        (warning,) = caught
        assert told in str(warning.message)
        assert "12 programs were compiled and 0 calls found theirs" in str(warning.message)
        assert "buckets={'n': [2, 4, 8, 16]}" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few = rlx_xla.jit(lambda x: x + 1, dims=("f32[n]",), buckets="pow2")
        for n in range(1, 40):
            few(draw(n))


def test_warm_compiles_buckets_in_threads(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = rlx.Session("cpu").compile(
        rlx_xla.trace(score, "f32[n]"), options=rlx.CompileOptions(buckets={"n": [4, 8, 16]})
    )
    compiled.warm(threads=2, progress=True)
    assert capsys.readouterr().err.endswith("3/3\n")
    with Compiles() as compiles:
        for n in (3, 7, 9, 16):
            wanted = (np.log1p(draw(n)) ** 2).sum()
            np.testing.assert_allclose(compiled(draw(n)), wanted, rtol=1e-5)
    assert compiles.count == 0
    assert compiled.specializations().misses == 3
    with pytest.raises(DimError, match="warm: a list of bindings is required where no buckets"):
        rlx.Session("cpu").compile(rlx_xla.trace(score, "f32[n]")).warm()


def test_run_by_name_and_clones_of_padded_programs() -> None:
    b = rlx.GraphBuilder()
    x, w = b.input("x", "f32[n, 3]"), b.param("w", "f32[3, 2]")
    graph = b.build((x @ w).softmax(axis=-1), x.sum(0))
    options = rlx.CompileOptions(buckets={"n": [8]})
    for device in ("cpu", "interpret"):
        compiled = rlx.Session(device).compile(graph, options=options)
        weights = draw(3, 2)
        compiled.set_param("w", weights)
        for n in (2, 8, 5):
            given = draw(n, 3)
            wanted = rlx.interpret(rlx.bind(graph, {"n": n}), {"x": given}, params={"w": weights})
            for found, right in zip(compiled.run({"x": given}), wanted, strict=True):
                np.testing.assert_allclose(found, right, rtol=1e-5)
        twin = compiled.clone()
        twin.set_param("w", weights * 2)
        for one, scale in ((twin, 2), (compiled, 1)):
            (found,) = one.run({"x": draw(4, 3)}, outputs=[0])
            right = jax.nn.softmax(draw(4, 3) @ weights * scale)
            np.testing.assert_allclose(found, right, rtol=1e-5)
        assert twin.specializations().misses == 0
        assert compiled.specializations().misses == 1


def test_weights_are_shared_by_all_sizes() -> None:
    w = jnp.asarray(draw(64, 64))
    compiled = rlx.Session("cpu").compile(
        rlx_xla.trace(lambda w, x: x @ w, w, "f32[n, 64]", params=0)
    )
    for n in (2, 3, 5):
        compiled(draw(n, 64))
    held = {
        id(p.executable.loaded.bound_buffers()[1])  # type: ignore[attr-defined]
        for p in compiled.specializations()
    }
    assert len(held) == 1


def test_buckets_of_functions_without_one_graph_say_why() -> None:
    fast = rlx_xla.jit(lambda x: x.reshape(-1, 4).sum(1), dims=("f32[b]",), buckets={"b": [16]})
    np.testing.assert_allclose(fast(draw(8)), draw(8).reshape(-1, 4).sum(1), rtol=1e-6)
    (record,) = fast.specializations().exact
    assert record.unsafe.startswith("the function is traced anew for every size: ")
    assert f"not padded: {record.unsafe}" in str(fast.specializations())
    whole = rlx_xla.jit(
        lambda x: x.reshape(-1, 4).sum(1), dims=("f32[4*m]",), buckets={"m": [4, 16]}
    )
    for n in (8, 12, 20):
        np.testing.assert_allclose(whole(draw(n)), draw(n).reshape(-1, 4).sum(1), rtol=1e-6)
    assert [r.binding for r in whole.specializations()] == [{"m": 4}, {"m": 16}]
    assert all(r.is_padded for r in whole.specializations())


def test_templates_with_sizes_given_ahead() -> None:
    traced = rlx_xla.trace(lambda x: x.reshape(-1, 4).sum(0), "f32[b]")
    assert "traced anew for every size" in repr(traced)
    assert str(traced.at({"b": 8}).graph.outputs[0].type) == "f32[4]"
    compiled = rlx.Session("cpu").compile(traced, options=rlx.CompileOptions(dim_binding={"b": 8}))
    np.testing.assert_allclose(compiled(draw(8)), draw(8).reshape(-1, 4).sum(0), rtol=1e-6)
    (found,) = rlx.Session("cpu").compile(traced).run({"x": draw(12)})
    np.testing.assert_allclose(found, draw(12).reshape(-1, 4).sum(0), rtol=1e-6)
    with pytest.raises(CompileError, match="lower: one graph for all sizes is required"):
        rlx.Session("cpu").lower(traced)


def test_soak_of_two_thousand_calls_drops_what_it_evicts() -> None:
    b = rlx.GraphBuilder()
    graph = b.build(b.input("x", "f32[n, m]").sum(1))
    compiled = rlx.Session("interpret").compile(
        graph, options=rlx.CompileOptions(specialization_cache_size=8)
    )
    seen: set[Any] = set()
    wrong: list[Any] = []

    def calls(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(500):
            x = rng.random((int(rng.integers(1, 7)), int(rng.integers(1, 7))), np.float32)
            if not np.allclose(compiled(x), x.sum(1), rtol=1e-5):
                wrong.append(x)
            if rng.random() < 0.1:
                seen.update(weakref.ref(r.executable) for r in compiled.specializations())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileStormWarning)
        threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = compiled.specializations()
    assert not wrong
    assert len(records) == 8
    assert records.misses == records.evictions + 8
    assert records.hits + records.misses == 2_000
    gc.collect()
    assert len(seen) > 36
    assert sum(ref() is not None for ref in seen) <= 8


@pytest.mark.slow
def test_soak_ten_thousand_calls_from_threads_keep_memory_flat() -> None:
    import resource

    fast = rlx_xla.jit(
        score,
        dims=("f32[n]",),
        options=rlx.CompileOptions(specialization_cache_size=8),
        buckets={"n": [8, 16, 24, 32, 40, 48, 56, 64, 512]},
    )
    wrong: list[int] = []

    def calls(seed: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(count):
            largest = 513 if rng.random() < 0.01 else 65
            x = rng.random(int(rng.integers(1, largest)), np.float32)
            if abs(float(fast(x)) - float((np.log1p(x) ** 2).sum())) > 1e-3:
                wrong.append(len(x))

    def resident() -> int:
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def run(count: int) -> None:
        threads = [threading.Thread(target=calls, args=(i, count // 4)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run(2_000)
    before = resident()
    run(8_000)
    assert not wrong
    assert len(fast.specializations()) <= 8
    assert resident() - before < 64 << 20


def test_padded_outputs_keep_weak_types() -> None:
    def doubled(x: Any) -> Any:
        return jnp.full(x.shape, 2.0)

    fast = rlx_xla.jit(doubled, dims=("f32[n]",), buckets={"n": [4]})
    for n in (2, 3, 4):
        got = fast(draw(n))
        assert got.weak_type
        assert (got + jnp.ones(n, jnp.bfloat16)).dtype == jnp.bfloat16


def test_typed_keys_have_no_named_sizes() -> None:
    fast = rlx_xla.jit(lambda k: k, dims=("f32[n]",))
    with pytest.raises(
        TraceError,
        match=r"arrays of numbers are required where dims names sizes; got key<fry>\[3\]",
    ):
        fast(jax.random.split(jax.random.key(0), 3))


@pytest.mark.parametrize(
    ("spec", "size"), [("n*n", 9), ("2*n//3", 2), ("(n+1)//2", 2), ("n**2%5 + 1", 5)]
)
def test_sizes_are_written_as_in_python(spec: str, size: int) -> None:
    fast = rlx_xla.jit(lambda x, y: x.sum() + y, dims=(f"f32[{spec}]", "f32[n]"))
    x, y = draw(size), draw(3)
    np.testing.assert_allclose(fast(x, y), x.sum() + y, rtol=1e-5)


def test_promises_reach_the_trace_whole() -> None:
    def told(x: Any) -> Any:
        return x * 2 if x.shape[1] % 4 == 0 else x

    options = rlx.CompileOptions(constraints=("b*c % 4 == 0",))
    fast = rlx_xla.jit(told, dims=("f32[b, c]",), options=options)
    np.testing.assert_array_equal(fast(draw(4, 3)), draw(4, 3))


def test_warming_is_no_call() -> None:
    live = rlx.Session("cpu").compile(
        rlx_xla.trace(lambda x: x + 1, "f32[n]"), options=rlx.CompileOptions(buckets={"n": [4]})
    )
    for _ in range(2):
        live.warm()
    assert (live.specializations().misses, live.specializations().hits) == (1, 0)
    for wrong in (-1, 1.5, True):
        with pytest.raises(
            DimError, match=f"warm: sizes are required to be ints ≥ 0; got n = {wrong}"
        ):
            live.warm([{"n": wrong}])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("buckets", [None, {"n": [16]}])
def test_questions_that_jax_denies_are_asked_again(buckets: Any) -> None:
    def asked(x: Any) -> Any:
        n = x.shape[0]
        x = x * 2 if n == 5 else x
        x = x * 3 if n % 2 else x
        x = x + 1 if n in (3, 8) else x
        return x - 1 if x.shape != (12,) and n * n != 36 else x

    fast = rlx_xla.jit(asked, dims=("f32[n]",), buckets=buckets)
    for n in (2, 3, 4, 5, 6, 7, 8, 10, 12):
        np.testing.assert_allclose(fast(draw(n)), asked(draw(n)), rtol=1e-6)
    # A symbol is odd in JAX's eyes, so that even sizes are traced anew, and 3 and 5 for themselves.
    exact = {r.binding["n"] for r in fast.specializations() if not r.is_padded}
    assert exact == {2, 3, 4, 5, 6, 8, 10, 12, *(() if buckets else (7,))}


def test_questions_about_two_sizes() -> None:
    def asked(x: Any) -> Any:
        b, s = x.shape
        return x * 2 if b == 2 * s else x + 1 if x.size == 12 else x

    fast = rlx_xla.jit(asked, dims=("f32[b, s]",), buckets={"b": [8], "s": [8]})
    for shape in ((4, 2), (3, 4), (5, 4), (6, 3), (2, 6), (5, 5)):
        np.testing.assert_allclose(fast(draw(*shape)), asked(draw(*shape)), rtol=1e-6)
    padded = [r.hits for r in fast.specializations() if r.is_padded]
    assert padded == [1]  # 5 × 4, and 5 × 5 through it


def test_sizes_that_are_looked_up_are_asked_again() -> None:
    def keyed(x: Any) -> Any:
        n = x.shape[0]
        return x * {3: 2.0, 4: 3.0}.get(n, 1.0) + (1 if n in {4, 6} else 0)

    fast = rlx_xla.jit(keyed, dims=("f32[n]",))
    for n in (2, 3, 4, 5, 6):
        x = draw(n)
        np.testing.assert_allclose(fast(x), keyed(x), rtol=1e-6)
    reasons = [record.reason for record in fast.specializations()]
    assert ["n as a key" in reason for reason in reasons] == [False, True, True, False, True]


def _asks(x: Any) -> Any:
    n = x.shape[0]
    return x * 2 if n == 5 else x * 3 if n % 3 else x


@pytest.mark.parametrize("buckets", [None, {"n": [16]}])
def test_a_saved_graph_refuses_sizes_whose_answer_is_another(tmp_path: Any, buckets: Any) -> None:
    traced = rlx_xla.trace(_asks, "f32[n]")
    rlx.save(traced.graph, tmp_path / "asks.rlx")
    loaded = rlx.load(tmp_path / "asks.rlx")
    assert traced.template is not None
    assert list(map(str, loaded.asked)) == list(map(str, traced.template.asked)) == ["n - 5", "n%3"]
    options = rlx.CompileOptions(buckets=buckets)
    fresh = rlx.Session("cpu").compile(traced, options=options)
    for graph in (loaded, traced.graph):
        saved = rlx.Session("cpu").compile(graph, options=options)
        for n in (2, 4, 5, 6, 7, 9, 11):
            x = draw(n)
            np.testing.assert_allclose(fresh(x), _asks(x), rtol=1e-6)
            if n not in (5, 6, 9):
                np.testing.assert_allclose(saved.run({"x": x})[0], _asks(x), rtol=1e-6)
                continue
            with pytest.raises(DimError) as caught:
                saved.run({"x": x})
            assert str(caught.value) == (
                "DimError [asked]: sizes are required for which the graph is what the traced "
                f"function does; the function was told that {'n - 5' if n == 5 else 'n%3'} is not "
                f"0; got n = {n}. Trace it for these sizes, or bind them (rlx.bind) to take the "
                "graph as it is."
            )
    bound = rlx.Session("cpu").compile(rlx.bind(loaded, {"n": 5}))
    np.testing.assert_allclose(bound.run({"x": draw(5)})[0], draw(5) * 3, rtol=1e-6)


def test_a_graph_of_some_sizes_refuses_the_others() -> None:
    def asks(x: Any) -> Any:
        b, n = x.shape
        return x * 2 if b * n == 12 else x + 1 if b == 2 else x

    graph = rlx.bind(rlx_xla.trace(asks, "f32[b, n]").graph, {"b": 2})
    assert [str(dim) for dim in graph.asked] == ["2*n - 12"]
    compiled = rlx.Session("cpu").compile(graph)
    np.testing.assert_array_equal(compiled.run({"x": draw(2, 5)})[0], draw(2, 5))
    with pytest.raises(DimError, match=r"told that 2\*n - 12 is not 0; got n = 6\."):
        compiled.run({"x": draw(2, 6)})


def test_a_saved_graph_refuses_sizes_that_were_looked_up(tmp_path: Any) -> None:
    traced = rlx_xla.trace(lambda x: x * {3: 2.0}.get(x.shape[0], 1.0), "f32[n]")
    rlx.save(traced.graph, tmp_path / "keyed.rlx")
    loaded = rlx.load(tmp_path / "keyed.rlx")
    assert [str(dim) for dim in loaded.keyed] == ["n"]
    with pytest.raises(DimError, match="told that n is no key of what it looks sizes up in; got n"):
        rlx.Session("cpu").compile(loaded).run({"x": draw(4)})


def test_what_jax_itself_looks_up_is_no_question() -> None:
    def plain(x: Any) -> Any:
        y = jnp.einsum("bn,bn->b", jnp.sin(x), jnp.zeros(x.shape))
        return jax.vmap(jax.jit(lambda row: row * 2))(x) + y.reshape(x.shape[0], -1)

    traced = rlx_xla.trace(plain, "f32[b, n]")
    assert traced.template is not None
    assert not traced.template.asked
    assert not traced.template.keyed


@pytest.mark.parametrize("spec", ["f32[n, 3]", "jax"])
def test_sizes_of_jax_are_asked_again_too(spec: str) -> None:
    sizes = jax.export.symbolic_shape("n, 3")
    given = jax.ShapeDtypeStruct(sizes, np.float32) if spec == "jax" else spec

    def asks(x: Any) -> Any:
        n = x.shape[0]
        return x * (2.0 if n in {3, 5} else 1.0) + (1.0 if n == 4 else 0.0)

    def only(x: Any) -> Any:  # has no answer where it is not a key
        return x * {3: 2.0, 5: 4.0}[x.shape[0]]

    compiled = rlx.Session("cpu").compile(rlx_xla.trace(asks, given))
    chosen = rlx.Session("cpu").compile(rlx_xla.trace(only, given))
    for n in (2, 3, 4, 5):
        x = draw(n, 3)
        np.testing.assert_allclose(compiled(x), asks(x), rtol=1e-6)
        if n in (3, 5):
            np.testing.assert_allclose(chosen(x), only(x), rtol=1e-6)
    with pytest.raises(DimError, match=r"only with n=4 .*sizes that the function can have"):
        chosen(draw(4, 3))


def test_symbols_of_jax_alone_are_traced_as_they_are() -> None:
    sizes = jax.export.symbolic_shape("n, 2*n")
    traced = rlx_xla.trace(lambda x: x.sum(axis=1), jax.ShapeDtypeStruct(sizes, np.float32))
    assert [str(v.type) for v in traced.graph.inputs] == ["f32[n, 2*n]"]
    x = draw(3, 6)
    found = rlx.Session("cpu").compile(traced)(x)
    np.testing.assert_allclose(found, x.sum(axis=1), rtol=1e-5)
