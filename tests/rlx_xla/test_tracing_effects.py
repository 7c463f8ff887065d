"""Effects of JAX functions: counted and ordered as under ``jax.jit``, wherever they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import io_callback

import rlx
import rlx_xla
from rlx.ir.interpret import run
from rlx.options.compile import CompileOptions
from rlx.passes.pipelines import mir_pipeline
from rlx_xla.tracing import registry

X = jnp.arange(4.0)
LOG: list[tuple[str, str, float]] = []


def note(chain: str, name: str, x: Any) -> None:
    LOG.append((chain, name, float(np.asarray(x).sum())))


def ordered(name: str, x: Any) -> None:
    jax.debug.callback(lambda v: note("debug", name, v), x, ordered=True)


def unordered(name: str, x: Any) -> None:
    jax.debug.callback(lambda v: note("unordered", name, v), x)


def through_io(name: str, x: jax.Array) -> jax.Array:
    def host(v: Any) -> np.ndarray[Any, Any]:
        note("io", name, v)
        return np.asarray(v) * np.float32(2)

    return io_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)


def pure(name: str, x: jax.Array) -> jax.Array:
    def host(v: Any) -> np.ndarray[Any, Any]:
        note("pure", name, v)
        return np.asarray(v) + np.float32(1)

    return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def logged(call: Callable[[], Any]) -> tuple[dict[str, Any], list[Any]]:
    """What was noted by each ordered chain, how often what was noted by others, and results."""
    LOG.clear()
    results = [np.asarray(leaf) for leaf in jax.tree.leaves(call())]
    jax.effects_barrier()
    noted: dict[str, Any] = {}
    for chain in ("debug", "io"):
        noted[chain] = [(name, value) for kind, name, value in LOG if kind == chain]
    for chain in ("unordered", "pure"):
        noted[chain] = Counter((name, value) for kind, name, value in LOG if kind == chain)
    return noted, results


def in_scan(x: jax.Array) -> Any:
    def body(c: jax.Array, v: jax.Array) -> Any:
        ordered("a", v)
        ordered("b", c)
        return c + through_io("io", v), c

    return lax.scan(body, jnp.float32(0), x)


def in_reverse_unrolled_scan(x: jax.Array) -> Any:
    def body(c: jax.Array, v: jax.Array) -> Any:
        ordered("v", v)
        return c + v, None

    return lax.scan(body, jnp.float32(0), x, reverse=True, unroll=3)[0]


def in_while(x: jax.Array) -> Any:
    def body(c: jax.Array) -> jax.Array:
        ordered("body", c)
        return c + 1

    ordered("before", x)
    result = lax.while_loop(lambda c: c < 3, body, x[0])
    ordered("after", result)
    return result


def in_condition(x: jax.Array) -> Any:
    def condition(c: jax.Array) -> jax.Array:
        ordered("condition", c)
        return c < 3

    def body(c: jax.Array) -> jax.Array:
        ordered("body", c)
        return through_io("io", c) + 1

    return lax.while_loop(condition, body, x[0])


def in_fori(x: jax.Array) -> Any:
    def body(i: jax.Array, c: jax.Array) -> jax.Array:
        ordered("i", i)
        return c + i

    return lax.fori_loop(0, 5, body, x)


def in_cond(x: jax.Array) -> Any:
    def yes(x: jax.Array) -> jax.Array:
        ordered("yes", x)
        return through_io("io", x)

    def no(x: jax.Array) -> jax.Array:
        ordered("no", x)
        return x

    first = lax.cond(x[1] > 0, yes, no, x)
    ordered("between", first)
    return lax.cond(x[1] > 5, yes, no, first)


def in_one_branch(x: jax.Array) -> Any:
    def yes(x: jax.Array) -> jax.Array:
        ordered("yes", x)
        return x

    def body(c: jax.Array, v: jax.Array) -> Any:
        return lax.cond(v > 1, yes, lambda x: x + 1, c), None

    return lax.scan(body, jnp.float32(0), x)[0]


def in_switch_over_big_arrays(x: jax.Array) -> Any:
    big = jnp.arange(1000.0)

    def one(x: jax.Array) -> jax.Array:
        ordered("one", x)
        return x + big[:4]

    def two(x: jax.Array) -> jax.Array:
        return through_io("two", x) + jnp.flip(big)[:4]

    return [lax.switch(i, [one, two, lambda x: x], x) for i in x.astype(int)]


def in_jit(x: jax.Array) -> Any:
    @jax.jit
    def inner(v: jax.Array) -> jax.Array:
        ordered("inner", v)
        ordered("inner again", v)
        return jnp.sin(v) * 2

    first = inner(x)
    ordered("between", first)
    return inner(first) + inner(first)


def in_remat(x: jax.Array) -> Any:
    @jax.checkpoint
    def inner(v: jax.Array) -> jax.Array:
        ordered("inner", v)
        return jnp.sin(v) * 2

    def loss(v: jax.Array) -> jax.Array:
        return inner(inner(v)).sum()

    return loss(x), jax.grad(loss)(x)


def in_custom_jvp(x: jax.Array) -> Any:
    @jax.custom_jvp
    def f(x: jax.Array) -> jax.Array:
        ordered("f", x)
        return jnp.sin(x)

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return f(*primals), jnp.cos(primals[0]) * tangents[0]

    return f(x), jax.grad(lambda x: f(x).sum())(x)


def nested(x: jax.Array) -> Any:
    def outer(c: jax.Array, v: jax.Array) -> Any:
        ordered("outer", v)
        return lax.cond(v > 1, in_while, lambda y: in_fori(y).sum(), x + c), None

    return lax.scan(outer, jnp.float32(0), x)[0]


def two_kinds(x: jax.Array) -> Any:
    y = through_io("io 1", x)
    ordered("debug 1", y)
    z = through_io("io 2", y)
    ordered("debug 2", z)
    return z


ORDERED = [
    in_scan, in_reverse_unrolled_scan, in_while, in_condition, in_fori, in_cond, in_one_branch,
    in_switch_over_big_arrays, in_jit, in_remat, in_custom_jvp, nested, two_kinds,
]  # fmt: skip


def unordered_everywhere(x: jax.Array) -> Any:
    def body(c: jax.Array, v: jax.Array) -> Any:
        unordered("scan", v)
        c = lax.cond(v > 1, lambda c: [unordered("yes", c), c + 1][1], lambda c: c, c)
        return lax.while_loop(lambda c: c < 3, lambda c: [unordered("turn", c), c + 1][1], c), None

    return jax.jit(lambda x: lax.scan(body, jnp.float32(0), x)[0])(x)


def mapped(x: jax.Array) -> Any:
    """Under vmap a condition has one truth for each member."""

    def one(v: jax.Array) -> jax.Array:
        def body(c: jax.Array) -> jax.Array:
            unordered("body", c)
            return c * 2 + 1

        return lax.while_loop(lambda c: c < 9, body, v)

    return jax.vmap(one)(x)


def pure_everywhere(x: jax.Array) -> Any:
    def body(c: jax.Array, v: jax.Array) -> Any:
        return c + pure("scan", v), lax.cond(v > 1, lambda v: pure("yes", v), lambda v: v, v)

    return lax.scan(body, pure("outside", x[0]), x)


UNORDERED = [unordered_everywhere, mapped, pure_everywhere]


@pytest.mark.parametrize("fn", [*ORDERED, *UNORDERED])
def test_effects_are_those_of_jit(fn: Callable[..., Any]) -> None:
    traced = rlx_xla.trace(fn, X)
    wanted_log, wanted = logged(lambda: jax.jit(fn)(X))
    compiled = rlx.Session("cpu").compile(traced)
    leaves = [np.asarray(X), *(np.asarray(traced.params[p.name]) for p in traced.graph.params)]
    for call in (
        lambda: compiled(X),
        lambda: compiled(X),
        lambda: run(traced.graph, leaves),
    ):
        log, results = logged(call)
        assert log == wanted_log
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
    assert {"cond", "while", "scan"}.isdisjoint(traced.opaque)


def mapped_condition(x: jax.Array) -> Any:
    def one(v: jax.Array) -> jax.Array:
        def condition(c: jax.Array) -> jax.Array:
            unordered("condition", c)
            return c < 9

        return lax.while_loop(condition, lambda c: c * 2 + 1, v)

    return jax.vmap(one)(x)


def test_a_condition_over_a_batch_is_asked_once_a_turn() -> None:
    """JAX asks it twice, since it writes the condition into the body as well."""
    traced = rlx_xla.trace(mapped_condition, X)
    compiled = rlx.Session("cpu").compile(traced)
    noted, (found,) = logged(lambda: compiled(X))
    wanted_noted, (wanted,) = logged(lambda: jax.jit(mapped_condition)(X))
    np.testing.assert_array_equal(found, wanted)
    assert set(noted["unordered"]) == set(wanted_noted["unordered"])
    assert set(traced.opaque) == {"debug_callback"}


def test_control_flow_with_effects_is_differentiated() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return unordered_everywhere_in_scan(x).sum()

    def unordered_everywhere_in_scan(x: jax.Array) -> jax.Array:
        def body(c: jax.Array, v: jax.Array) -> Any:
            unordered("scan", v)
            return c * v + 1, None

        return lax.scan(body, jnp.float32(1), x)[0]

    grad = jax.grad(loss)
    traced = rlx_xla.trace(grad, X)
    noted, (found,) = logged(lambda: rlx.Session("cpu").compile(traced)(X))
    wanted_noted, (wanted,) = logged(lambda: jax.jit(grad)(X))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert noted == wanted_noted


def test_an_opaque_node_may_have_effects_of_several_kinds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("jit", "pjit"):
        monkeypatch.setitem(registry._RULES, name, lambda *_: NotImplemented)

    def several(x: jax.Array) -> Any:
        unordered("inside", x)
        return two_kinds(x)

    def fn(x: jax.Array) -> Any:
        ordered("before", x)
        y = jax.jit(several)(through_io("before", x))
        unordered("between", y)
        ordered("after", y)
        return through_io("after", y)

    traced = rlx_xla.trace(fn, X)
    opaque = [n for n in traced.graph.nodes() if n.op.op_name == "external"]
    assert sum(t.dtype is rlx.DType.TOKEN for n in opaque for t in n.types) == len(opaque) + 2
    wanted_noted, (wanted,) = logged(lambda: jax.jit(fn)(X))
    compiled = rlx.Session("cpu").compile(traced)
    for call in (lambda: compiled(X), lambda: run(traced.graph, [np.asarray(X)])):
        noted, (found,) = logged(call)
        assert noted == wanted_noted
        np.testing.assert_array_equal(found, wanted)


def test_a_called_body_with_effects_prints_once() -> None:
    text = str(rlx_xla.trace(in_jit, X).graph)
    assert text.count("debug_callback") == 3


BACK = [in_scan, in_cond, in_while, in_condition, nested, in_jit, in_remat, in_custom_jvp]


@pytest.mark.parametrize("function", BACK)
def test_effects_survive_the_way_back_to_jax(function: Callable[..., Any]) -> None:
    traced = rlx_xla.trace(function, X)
    wanted_noted, wanted = logged(lambda: jax.jit(function)(X))
    noted, found = logged(lambda: jax.jit(rlx_xla.to_jax(traced))(X))
    assert noted == wanted_noted
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("fn", [*ORDERED, *UNORDERED])
def test_passes_drop_and_merge_nothing(fn: Callable[..., Any]) -> None:
    traced = rlx_xla.trace(fn, X)
    pipeline = mir_pipeline(CompileOptions())
    after = rlx.passes.run(traced.graph, list(pipeline.passes), quiet=True)
    rlx.verify(after)
    params = [np.asarray(traced.params[p.name]) for p in traced.graph.params]
    before_log, before = logged(lambda: run(traced.graph, [np.asarray(X), *params]))
    after_log, results = logged(lambda: run(after, [np.asarray(X), *params]))
    assert before_log == after_log
    for got, want in zip(results, before, strict=True):
        np.testing.assert_array_equal(got, want)


EFFECTS = {"debug": ordered, "unordered": unordered}
STATEMENTS = st.recursive(
    st.sampled_from(["debug", "unordered", "io", "pure", "add"]),
    lambda inner: st.tuples(
        st.sampled_from(["scan", "while", "cond", "jit", "remat"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


def program(statements: list[Any]) -> Callable[[jax.Array], jax.Array]:
    """A function of f32[] that does what the statements say, one after another."""

    def do(x: jax.Array) -> jax.Array:
        for number, statement in enumerate(statements):
            x = _done(statement, str(number), x)
        return x

    return do


def _done(statement: Any, label: str, x: jax.Array) -> jax.Array:
    if isinstance(statement, str):
        if statement in EFFECTS:
            EFFECTS[statement](label, x)
            return x
        return {"io": through_io, "pure": pure}.get(statement, lambda _, x: x + 1)(label, x)
    kind, inner = statement
    body = program(inner)
    if kind == "scan":
        return lax.scan(lambda c, v: (body(c) * v, None), x, jnp.array([1.0, 0.5]))[0]
    if kind == "while":
        start = (jnp.int32(0), x)
        return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, body(c[1])), start)[1]
    if kind == "cond":
        return lax.cond(x > 1, body, lambda x: x - 1, x)
    if kind == "remat":
        return jax.jit(body)(x) + jax.checkpoint(jnp.sin)(x)
    return jax.jit(body)(body(x))


@given(st.lists(STATEMENTS, min_size=1, max_size=4))
@settings(max_examples=12)
def test_random_programs_keep_their_effects(statements: list[Any]) -> None:
    fn = program(statements)
    x = jnp.float32(1.5)
    traced = rlx_xla.trace(fn, x)
    after = rlx.passes.run(traced.graph, list(mir_pipeline(CompileOptions()).passes), quiet=True)
    wanted_noted, (wanted,) = logged(lambda: jax.jit(fn)(x))
    compiled = rlx.Session("cpu").compile(traced)
    array = [np.asarray(x)]
    for call in (
        lambda: compiled(x),
        lambda: run(traced.graph, array),
        lambda: run(after, array),
    ):
        noted, (found,) = logged(call)
        assert _names(noted) == _names(wanted_noted)
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


def _names(noted: dict[str, Any]) -> dict[str, Any]:
    """Names only: values may differ in their last bits, and are compared in the results."""
    found: dict[str, Any] = {}
    for chain, entries in noted.items():
        names = [name for name, _ in _listed(entries)]
        found[chain] = names if chain in ("debug", "io") else Counter(names)
    return found


def _listed(entries: Any) -> list[tuple[str, float]]:
    return list(entries.elements()) if isinstance(entries, Counter) else entries
