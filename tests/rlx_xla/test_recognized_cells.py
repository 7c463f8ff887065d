"""Recurrent cells on CPUs: one op where its kernel wins, and the loop as it stands elsewhere."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.passes import Canonicalize, InlineCalls, Recognize
from rlx.passes.base import PassContext
from rlx.recognition_report import RecognitionReport
from rlx_xla.kernels import ffi
from tests.rlx_xla.recognize_cells import H, lstm, plain, state_only
from tests.rlx_xla.recognize_loops import delta_rule
from tests.rlx_xla.recognize_recurrences import mamba
from tests.rlx_xla.recognize_sequences import _lstm, masked, zeros

LEFT = "no kernel takes it, or XLA's CPU runs the loop as fast as it stands"


@pytest.fixture(autouse=True)
def _library() -> None:
    if isinstance(ffi.load(), ffi.Unavailable):
        pytest.skip("built without a C++ compiler")


def _draw(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng()
    return [jnp.asarray(rng.standard_normal(s).astype(np.float32) / 2) for s in shapes]


TREES = rlx.CompileOptions(fusion_opts=rlx.FusionOptions(scan_trees=True))


def _compiled(fn: Any, arguments: list[Any], options: rlx.CompileOptions | None = None) -> Any:
    """Compiled for the CPU; its results are those of JAX."""
    with jax.numpy_rank_promotion("allow"):
        compiled = rlx.Session("cpu").compile(rlx_xla.trace(fn, *arguments), options=options)
        wanted = jax.jit(fn)(*arguments)
    np.testing.assert_allclose(np.asarray(compiled(*arguments)), wanted, rtol=1e-4, atol=1e-5)
    return compiled


@pytest.mark.parametrize("form", ["plain", "backwards", "before", "one"])
def test_small_cells_run_by_the_kernel(form: str) -> None:
    function = {
        "plain": lstm(plain),
        "backwards": lstm(plain, reverse=True),
        "before": lstm(state_only, before=lambda x, w, u, b: x @ w + b),
        "one": lstm(plain, shown=False),
    }[form]
    shape = (7, 3) if form == "one" else (7, 5, 3)
    report = _compiled(function, _draw(shape, (3, 16), (4, 16), (16,))).report()
    assert report.recognition.of("lstm") == 1
    assert "lstm.cpu.ffi" in str(report)


def test_loops_run_by_the_kernels() -> None:
    """Two cells in one loop by numbers of steps, GRUs that reset first, and a delta rule."""

    def two(x: Any, w: Any, u: Any, b: Any, v: Any, c: Any) -> Any:
        def step(t: Any, carry: Any) -> Any:
            one, two, ys = carry
            one = jnp.tanh(plain(x[t], one, w, u, b))
            r, z = jnp.split(jax.nn.sigmoid(one @ v + two @ v), 2, -1)
            two = z * two + (1 - z) * jnp.tanh(one @ c + (r * two) @ c)
            return one, two, ys.at[t].set(two)

        start = jnp.zeros((5, 4))
        return jax.lax.fori_loop(0, 7, step, (start, start, jnp.zeros((7, 5, 4))))[2]

    arguments = _draw((7, 5, 3), (3, 4), (4, 4), (4,), (4, 8), (4, 4))
    report = _compiled(two, arguments).report()
    assert report.recognition.counts == {"gru": 1, "rnn": 1}
    assert {"gru.cpu.ffi", "rnn.cpu.ffi"} <= {c.implementation for c in report.kernels}
    report = _compiled(delta_rule, _draw((9, H), (9, H), (9, H), (9,))).report()
    assert "gated_delta_net.cpu.ffi" in {c.implementation for c in report.kernels}


def test_masked_cells_run_by_the_kernel() -> None:
    """Sequences of several lengths in both directions: no step of one that has ended counts."""

    def both(x: Any, lengths: Any, *weights: Any) -> Any:
        goes = jnp.arange(7)[:, None] < lengths
        made = [masked(_lstm, reverse=back, shown=zeros)(x, goes, *weights)[1]
                for back in (False, True)]  # fmt: skip
        return jnp.concatenate(made, -1)

    x, *weights = _draw((7, 5, 3), (3, 16), (4, 16), (16,))
    lengths = jnp.asarray(np.random.default_rng().integers(0, 8, 5))
    report = _compiled(both, [x, lengths, *weights]).report()
    assert report.recognition.counts == {"lstm": 2}
    assert "lstm.cpu.ffi" in {c.implementation for c in report.kernels}


@pytest.mark.parametrize(
    ("dtype", "start", "step", "length"),
    [("uint8", 0, 1, 0), ("int8", 127, 127, 0), ("int8", 127, -128, 1), ("int8", 100, -100, 2),
     ("uint32", 6, 3, 4)],
)  # fmt: skip
@pytest.mark.parametrize("reverse", [False, True])
def test_masks_of_steps_counted_in_narrow_numbers(
    dtype: str, start: int, step: int, length: int, reverse: bool
) -> None:
    def function(x: Any, w: Any) -> Any:
        def advance(carry: Any, row: Any) -> Any:
            t, h = carry
            new, t = h * 0.5 + row @ w, t + jnp.asarray(step, dtype)
            return (t, jnp.where((t < 7)[..., None], h, new)), new

        first = jnp.asarray(start, dtype), jnp.ones((2, 4))
        return jax.lax.scan(advance, first, x, reverse=reverse)[1]

    _compiled(function, _draw((length, 2, 3), (3, 4)))


def test_a_tree_of_products_runs_by_the_kernel() -> None:
    arguments = _draw((2, 33, 5), (2, 33, 5), (5, 3), (2, 33, 3), (2, 33, 3))
    assert _compiled(mamba(), arguments).report().recognition.of("selective_scan") == 0
    report = _compiled(mamba(), arguments, TREES).report()
    assert report.recognition.of("selective_scan") == 1
    assert "selective_scan.cpu.ffi" in {c.implementation for c in report.kernels}


def test_a_tree_of_products_stays_without_a_kernel() -> None:
    arguments = _draw((2, 9, 5), (2, 9, 5), (5, 3), (2, 9, 3), (2, 9, 3))
    with jax.numpy_rank_promotion("allow"):
        graph = rlx_xla.trace(mamba(), *arguments).graph
    ctx = PassContext(platform="cpu", has_kernel=lambda node: False)
    strict = PassContext(options=rlx.CompileOptions(strict=True, fusion_opts=TREES.fusion_opts))
    for step in (InlineCalls(), Canonicalize()):
        graph = step.run(graph, ctx)
    Recognize().run(graph, strict)
    assert isinstance(strict.found, RecognitionReport)
    assert strict.found.of("selective_scan") == 0
    Recognize().run(graph, ctx)
    assert isinstance(ctx.found, RecognitionReport)
    assert [(m.pattern, m.reason) for m in ctx.found.misses] == [
        ("selective_scan", "no kernel takes it in place of its tree of products")
    ]


def _found(batch: int, width: int, **options: Any) -> RecognitionReport:
    """What recognition says of a plain network; nothing is compiled."""

    def rnn(x: Any, u: Any) -> Any:
        def step(h: Any, now: Any) -> Any:
            h = jnp.tanh(now @ u + h @ u)
            return h, h

        return jax.lax.scan(step, jnp.zeros((batch, width)), x)[1]

    graph = rlx_xla.trace(rnn, *_draw((8, batch, width), (width, width))).graph
    ctx = PassContext(platform="cpu", **options)
    for step in (InlineCalls(), Canonicalize(), Recognize()):
        graph = step.run(graph, ctx)
    found = ctx.found
    assert isinstance(found, RecognitionReport)
    return found


def test_the_loop_stays_where_the_kernel_gains_nothing() -> None:
    """Measured on two cores: XLA shares large products of a step out among threads."""
    for batch, width, gains in ((1, 192, True), (1, 193, False), (2, 90, True), (2, 91, False)):
        found = _found(batch, width, has_kernel=lambda node: True)
        assert found.of("rnn") == gains
        assert gains or [m.reason for m in found.misses] == [LEFT]


def test_the_loop_stays_without_a_kernel() -> None:
    for options in ({"has_kernel": lambda node: False}, {}):
        (miss,) = _found(2, 4, **options).misses
        assert (miss.pattern, miss.reason) == ("rnn", LEFT)
