"""Recognition of traced sources: what is found, what is not, and that the meaning stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.ir.graph import Graph
from rlx.passes import (
    Canonicalize,
    EliminateCommonSubexpressions,
    EliminateDeadCode,
    InlineCalls,
    Recognize,
)
from rlx.passes.base import PassContext
from rlx.passes.stream_loops import StreamLoops
from rlx.recognition_report import RecognitionReport
from rlx_xla.tracing.traced import Traced
from tests.rlx_xla.recognize_attention import LOOKALIKES as ATTENTION_LOOKALIKES
from tests.rlx_xla.recognize_attention import WAYS as ATTENTION_WAYS
from tests.rlx_xla.recognize_cells import LOOKALIKES as CELL_LOOKALIKES
from tests.rlx_xla.recognize_cells import WAYS as CELL_WAYS
from tests.rlx_xla.recognize_heads import LOOKALIKES as HEAD_LOOKALIKES
from tests.rlx_xla.recognize_heads import WAYS as HEAD_WAYS
from tests.rlx_xla.recognize_layers import LOOKALIKES as LAYER_LOOKALIKES
from tests.rlx_xla.recognize_layers import UNITS
from tests.rlx_xla.recognize_layers import WAYS as LAYER_WAYS
from tests.rlx_xla.recognize_libraries import LOOKALIKES as LIBRARY_LOOKALIKES
from tests.rlx_xla.recognize_libraries import WAYS as LIBRARY_WAYS
from tests.rlx_xla.recognize_loops import LOOKALIKES as LOOP_LOOKALIKES
from tests.rlx_xla.recognize_loops import WAYS as LOOP_WAYS
from tests.rlx_xla.recognize_losses import LOOKALIKES as LOSS_LOOKALIKES
from tests.rlx_xla.recognize_losses import WAYS as LOSS_WAYS
from tests.rlx_xla.recognize_masked import LOOKALIKES as MASKED_LOOKALIKES
from tests.rlx_xla.recognize_masked import WAYS as MASKED_WAYS
from tests.rlx_xla.recognize_models import LOOKALIKES as MODEL_LOOKALIKES
from tests.rlx_xla.recognize_models import WAYS as MODEL_WAYS
from tests.rlx_xla.recognize_recurrences import LOOKALIKES as RECURRENCE_LOOKALIKES
from tests.rlx_xla.recognize_recurrences import WAYS as RECURRENCE_WAYS
from tests.rlx_xla.recognize_sequences import LOOKALIKES as SEQUENCE_LOOKALIKES
from tests.rlx_xla.recognize_sequences import WAYS as SEQUENCE_WAYS
from tests.rlx_xla.recognize_users import LOOKALIKES as USER_LOOKALIKES
from tests.rlx_xla.recognize_users import WAYS as USER_WAYS
from tests.rlx_xla.recognize_ways import LOOKALIKES, WAYS, Way

ALL_WAYS = [
    *WAYS,
    *MODEL_WAYS,
    *LAYER_WAYS,
    *CELL_WAYS,
    *ATTENTION_WAYS,
    *MASKED_WAYS,
    *LOSS_WAYS,
    *HEAD_WAYS,
    *USER_WAYS,
    *LOOP_WAYS,
    *SEQUENCE_WAYS,
    *RECURRENCE_WAYS,
    *LIBRARY_WAYS,
    *UNITS,
]
ALL_LOOKALIKES = [
    *LOOKALIKES,
    *MODEL_LOOKALIKES,
    *LAYER_LOOKALIKES,
    *CELL_LOOKALIKES,
    *ATTENTION_LOOKALIKES,
    *MASKED_LOOKALIKES,
    *LOSS_LOOKALIKES,
    *HEAD_LOOKALIKES,
    *USER_LOOKALIKES,
    *LOOP_LOOKALIKES,
    *SEQUENCE_LOOKALIKES,
    *RECURRENCE_LOOKALIKES,
    *LIBRARY_LOOKALIKES,
]
CELLS = ("lstm", "gru", "rnn")
LOOPS = ("selective_scan", "gated_delta_net", *CELLS)
STEPS_BEFORE = (
    InlineCalls(),
    Canonicalize(),
    EliminateCommonSubexpressions(),
    StreamLoops(),
    EliminateDeadCode(),
)
STEPS = 6
"""Steps of the loops among the ways, whose roundings add up."""

DRAWN = 8.0
"""Above what is drawn: numbers beyond were made large."""


def _arguments(way: Way, rng: np.random.Generator) -> list[Any]:
    made: list[Any] = []
    for shape in way.shapes:
        if shape and shape[0] == "ints":
            made.append(rng.integers(0, shape[2], shape[1]).astype(np.int32))
        elif shape and shape[0] == "bools":
            made.append(rng.integers(0, 2, shape[1]).astype(bool))
        else:
            made.append(rng.standard_normal(shape).astype(way.dtype))
    return made


def _draws(way: Way, rng: np.random.Generator) -> list[list[Any]]:
    """Inputs: plain, logits of 1e4, means of 300; where hostile, rows of −Inf, +Inf and NaN.

    Those lie in the first argument, and in one of the others.
    """
    draws = [_arguments(way, rng) for _ in range(2)]
    floats = [i for i, a in enumerate(draws[0]) if a.dtype.kind not in "iub"]
    for change in (lambda a: a * 1e4, lambda a: a + 300):
        made = _arguments(way, rng)
        for index in floats[:1]:
            made[index] = change(made[index].astype(np.float64)).astype(way.dtype)
        draws.append(made)
    for bad in (-np.inf, np.inf, np.nan) if way.hostile else ():
        # A gain of Inf meets zeros that only a rounding to 16 bits makes.
        others = floats[1:] if np.dtype(way.dtype).itemsize > 2 else []
        for index in (*floats[:1], *(others and [int(rng.choice(others))])):
            made = _arguments(way, rng)
            array = made[index]
            rows = array.reshape(-1, array.shape[-1])
            rows[0] = bad  # a whole row: fully masked for −Inf
            rows[-1, array.shape[-1] // 2] = bad
            draws.append(made)
    return draws


def _traced(way: Way, arguments: list[Any], *, x64: bool) -> Traced:
    with jax.enable_x64(x64), jax.numpy_rank_promotion("allow"):
        return rlx_xla.trace(way.function, *map(jnp.asarray, arguments))


def _source(traced: Traced) -> Graph:
    graph: Graph = traced.graph
    for step in STEPS_BEFORE:
        graph = step.run(graph, PassContext())
    return graph


def _found(graph: Graph, way: Way) -> tuple[Graph, RecognitionReport]:
    fusion = rlx.FusionOptions(scan_trees=way.trees)
    ctx = PassContext(options=rlx.CompileOptions(fusion_opts=fusion))
    made = Recognize().run(graph, ctx)
    report = ctx.found
    assert isinstance(report, RecognitionReport)
    assert [n for n in ctx.notes if "loops are taken apart" not in n] == report.lines()
    return made, report


@dataclass(frozen=True)
class _Program:
    """A graph with values of its params."""

    graph: Graph
    params: dict[str, Any]

    def __call__(self, arguments: list[Any]) -> list[np.ndarray[Any, Any]]:
        feed = dict(zip([v.name for v in self.graph.inputs], arguments, strict=True))
        made = rlx.interpret(self.graph, feed, params=self.params)
        return [np.asarray(a).astype(np.float64) for a in made]


def _in_float64(way: Way, arguments: list[Any]) -> _Program:
    """The function in float64, as far as it does not ask for f32 itself."""
    wide = [a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in arguments]
    traced = _traced(way, wide, x64=True)
    return _Program(traced.graph, _params(traced))


def _params(traced: Traced) -> dict[str, Any]:
    return {name: np.asarray(value) for name, value in traced.params.items()}


@pytest.mark.parametrize("way", ALL_WAYS, ids=str)
def test_ways(way: Way) -> None:
    rng = np.random.default_rng()
    draws = _draws(way, rng)
    traced = _traced(way, draws[0], x64=way.x64)
    graph = _source(traced)
    made, report = _found(graph, way)
    assert report.counts == way.counts
    assert way.units is None or report.units == way.units
    again, more = _found(made, way)
    assert not more.counts, again
    assert more.units == report.units
    params = _params(traced)
    source, found, exact = (
        _Program(graph, params),
        _Program(made, params),
        _in_float64(way, draws[0]),
    )
    for arguments in draws:
        wide = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in arguments]
        scores = _size_of_scores(way, arguments)
        for results in zip(source(arguments), found(arguments), exact(wide), strict=True):
            _assert_as_good(*results, way, scores)


def _size_of_scores(way: Way, arguments: list[Any]) -> float:
    """How much larger than a result the sums are whose ulp counts: scores of attention, gates."""
    if any(name in way.counts for name in CELLS):  # large inputs meet in gates that may be near 0
        x = np.abs(arguments[0][np.isfinite(arguments[0])].astype(np.float64))
        return max(1.0, float(x.max(initial=0.0)) / DRAWN)
    if not way.scores:
        return 1.0
    q, k = (np.abs(a[np.isfinite(a)].astype(np.float64)) for a in arguments[:2])
    return max(1.0, float(q.max() * k.max()) * arguments[0].shape[-1] ** 0.5)


def _assert_as_good(source: Any, found: Any, exact: Any, way: Way, scores: float) -> None:
    """The same NaN and Inf, and no larger error but for 2 ulp of the result or of the scores."""
    dtype = way.dtype
    np.testing.assert_array_equal(np.isnan(found), np.isnan(source))
    np.testing.assert_array_equal(np.where(np.isinf(found), found, 0.0),
                                  np.where(np.isinf(source), source, 0.0))  # fmt: skip
    finite = np.isfinite(source) & np.isfinite(exact)
    if not finite.any():
        return
    exact = exact[finite]
    largest = np.abs(exact).max()
    ulp = float(jnp.finfo(dtype).eps) * max(largest, float(jnp.finfo(dtype).tiny))
    errors = (np.abs(values[finite] - exact).max() for values in (source, found))
    from_source, from_found = errors
    steps = max(way.depth, STEPS if any(name in way.counts for name in LOOPS) else 1)
    if any("norm" in name for name in way.counts):  # mean, root, gain and offset each round
        steps = max(steps, 2)
    if np.dtype(dtype) == np.float64:  # what stands for exact is rounded as often
        steps *= 2
    if any(name in way.counts for name in CELLS):  # small states come of sums that are not
        ulp = max(ulp, float(jnp.finfo(dtype).eps))
    assert from_found <= from_source + 2 * ulp * scores * steps


IN_LAYERS = (
    "layer_norm by hand", "layer_norm inside a gradient", "jax.nn.log_softmax", "jax.nn.softplus",
    "softmax in jit", "attention, −1e9", "jax.nn attention, window", "linen attention",
    "linen.GroupNorm", "loss by take_along_axis", "optax, labels", "one-hot of a table",
)  # fmt: skip
"""Ways that go through functions of JAX that are jitted by themselves."""


@pytest.mark.parametrize("way", [w for w in ALL_WAYS if w.name in IN_LAYERS], ids=str)
def test_each_of_many_layers_is_found(way: Way) -> None:
    """A function that is called often is no wall."""
    rng = np.random.default_rng()
    layers = [_arguments(way, rng) for _ in range(4)]
    with jax.numpy_rank_promotion("allow"):
        traced = rlx_xla.trace(lambda *given: [way.function(*one) for one in given], *layers)
    _, report = _found(_source(traced), way)
    assert report.counts == {name: 4 * count for name, count in way.counts.items()}


@pytest.mark.parametrize("way", ALL_LOOKALIKES, ids=str)
def test_lookalikes(way: Way) -> None:
    arguments = _arguments(way, np.random.default_rng())
    graph = _source(_traced(way, arguments, x64=way.x64))
    made, report = _found(graph, way)
    assert report.counts == way.counts
    assert way.units is None or report.units == way.units
    if not report.counts:
        assert made is graph
    misses = [str(miss) for miss in report.misses]
    for text in way.misses:
        assert any(text in miss for miss in misses), misses
        assert all(" at " in miss for miss in misses), misses


def test_there_are_enough() -> None:
    assert len({w.name for w in ALL_WAYS}) == len(ALL_WAYS)
    assert {*IN_LAYERS} <= {w.name for w in ALL_WAYS}
    assert len([w for w in ALL_WAYS if w.counts]) >= 60
    assert len(ALL_LOOKALIKES) >= 30


@pytest.mark.parametrize("kind", ["softmax", "layer_norm", "gelu"])
def test_strict_keeps_what_rounds_each_step(kind: str) -> None:
    functions = {
        "softmax": jax.nn.softmax,
        "layer_norm": lambda x: (
            (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        ),
        "gelu": jax.nn.gelu,
    }
    for dtype, expected in ((jnp.bfloat16, False), (jnp.float32, True)):
        graph = rlx_xla.trace(functions[kind], jnp.ones((4, 8), dtype)).graph
        ctx = PassContext(options=rlx.CompileOptions(strict=True))
        for step in (InlineCalls(), Canonicalize(), Recognize()):
            graph = step.run(graph, ctx)
        assert any(f"{kind}" in n and "×" in n for n in ctx.notes) is expected


def test_compiled_as_jax_computes() -> None:
    """A block of a transformer: found in the report, right on the CPU, and fused from there."""
    rng = np.random.default_rng()
    weights = [rng.standard_normal(s).astype(np.float32) / 4 for s in ((16, 48), (16, 16))]
    gain, offset = (rng.standard_normal(16).astype(np.float32) for _ in range(2))

    def block(x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        y = (x - mean) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * gain + offset
        q, k, v = jnp.split((y @ weights[0]).reshape(2, 6, 12, 4), 3, 2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
        scores = jnp.where(jnp.tril(jnp.ones((6, 6), bool)), scores, -jnp.inf)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
        return jax.nn.gelu(x + mixed @ weights[1])

    x = rng.standard_normal((2, 6, 16)).astype(np.float32)
    with jax.numpy_rank_promotion("allow"):
        compiled = rlx.Session("cpu").compile(rlx_xla.trace(block, jnp.asarray(x)))
        wanted = jax.jit(block)(x)
    np.testing.assert_allclose(np.asarray(compiled(x)), wanted, rtol=1e-5, atol=1e-5)
    (record,) = [r for r in compiled.report().passes if r.name == "recognize"]
    assert record.notes == ("attention (causal) × 1", "gelu_tanh × 1", "layer_norm × 1")
    assert compiled.report().recognition.of("attention") == 1


def test_recognised_attention_is_what_cudnn_takes() -> None:
    """Causal attention of one long sequence in bf16 needs no mask tensor."""
    from rlx.ops.attention import Attention
    from rlx_xla.kernels.library.cuda import attention as cudnn

    sequence = jnp.ones((1, 128, 2, 64), jnp.bfloat16)
    graph = rlx_xla.trace(
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), *(sequence,) * 3
    ).graph
    for step in (InlineCalls(), Canonicalize(), EliminateCommonSubexpressions(), Recognize()):
        graph = step.run(graph, PassContext(platform="cuda"))
    (node,) = [n for n in graph.nodes() if isinstance(n.op, Attention)]
    verdict = cudnn._check(node.op, [v.type for v in node.inputs])
    reasons = ("no GPU is attached whose cuDNN could be asked", None)
    assert getattr(verdict, "reason", None) in reasons
