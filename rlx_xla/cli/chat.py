"""``rlx-xla chat``: a conversation with the model of a GGUF file."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from rlx_xla.cli.generate import (
    Inputs,
    MaxTokens,
    Model,
    Seed,
    Temperature,
    TopP,
    Weights,
    show,
    speed,
)
from rlx_xla.cli.group import Device, Traceback
from rlx_xla.cli.progress import Steps
from rlx_xla.cli.threads import Threads, use_threads


def chat(
    model: Model = None,
    system: Annotated[
        str | None,
        typer.Option("--system", help="What the model is told first.", show_default=False),
    ] = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    seed: Seed = 0,
    inputs: Inputs = None,
    weights: Weights = None,
    device: Device = "cpu",
    threads: Threads = None,
    traceback: Traceback = False,
) -> None:
    """Talk with a language model, in its own chat format; an empty line ends.

    Example: rlx-xla chat --system "You answer in one sentence."
    """
    from rlx_xla.generation.conversation import Conversation
    from rlx_xla.generation.model import LanguageModel
    from rlx_xla.generation.sampling import SamplingOptions

    options = SamplingOptions(temperature=temperature, top_p=top_p, seed=seed)
    use_threads(threads)
    steps = Steps()
    opened = steps.run(
        "open", lambda: LanguageModel(model, device=device, inputs=inputs, weights=weights)
    )
    talk = Conversation(opened, system=system, sampling=options, max_tokens=max_tokens)
    source = typer.get_text_stream("stdin")
    while True:
        steps.console.print("> ", end="")
        line = source.readline().strip()
        if not line:
            return
        forgotten = talk.forgotten
        answer = talk.say(line)
        try:
            show(answer)
        except KeyboardInterrupt:  # ends the answer; at the prompt it ends the conversation
            answer.close()
            typer.echo()
        if talk.forgotten > forgotten:
            note = f"{talk.forgotten} older messages no longer fit the model's context"
            steps.console.print(Text(note), style="dim", soft_wrap=True)
        steps.console.print(Text(speed(opened)), style="dim", soft_wrap=True)
