"""Conversations as prompts: the file's own Jinja template, rendered in a sandbox."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rlx.errors import FormatError, RunError
from rlx_xla.models.gguf_tokenizer import GgufTokenizer

MAX_TEMPLATE = 1 << 18
"""Characters of a template; published ones have some thousands."""


def chat_prompt(tokenizer: GgufTokenizer, messages: Sequence[Mapping[str, str]]) -> str:
    """Return the prompt that asks for the next answer of a conversation, to be read as special.

    The template is a program of the file: it is rendered without access to anything but the
    messages and the start and end tokens. Control tokens that a message spells stay letters: they
    are marked with ``GUARD``, which the tokenizer takes out again.

    Args:
        tokenizer: of the file.
        messages: ``{"role": "user", "content": "…"}`` one after another.

    Raises:
        RunError: the file has no template, the template refuses the messages, they are no such
            dicts, or the library jinja2 is missing.
        FormatError: the template is damaged or reaches for what it must not have.
    """
    _check(messages)
    if tokenizer.chat_template is None:
        raise RunError(
            "chat [template]: a file with a chat template is required; this one has none, since "
            "its model was not trained for conversations. Use generate, or an instruct model."
        )
    if importlib.util.find_spec("jinja2") is None:
        raise RunError(
            "chat [library]: chat templates require jinja2, which is not installed. "
            "Run: pip install jinja2"
        )
    if len(tokenizer.chat_template) > MAX_TEMPLATE:
        raise FormatError(
            f"chat [template]: at most {MAX_TEMPLATE} characters are required; got "
            f"{len(tokenizer.chat_template)}. The file is damaged."
        )
    import jinja2
    from jinja2 import sandbox

    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(message: str) -> NoReturn:
        raise RunError(f"chat [messages]: the model's template refuses them: {message}")

    def piece(token: int | None) -> str:
        return "" if token is None else tokenizer.pieces[token]

    environment.globals["raise_exception"] = refuse
    try:
        template = environment.from_string(tokenizer.chat_template)
        return template.render(
            messages=[
                {**message, "content": tokenizer.guarded(message["content"])}
                for message in messages
            ],
            add_generation_prompt=True,
            bos_token=piece(tokenizer.first),
            eos_token=piece(tokenizer.last),
        )
    except (jinja2.TemplateError, TypeError, OverflowError, RecursionError) as error:
        raise FormatError(
            f"chat [template]: a template that renders the messages is required; it gave: {error}. "
            "Use another file, or generate."
        ) from error


def _check(messages: Any) -> None:
    listed = isinstance(messages, Sequence) and not isinstance(messages, str | bytes)
    for message in messages if listed else [messages]:
        texts = (
            listed
            and isinstance(message, Mapping)
            and all(isinstance(message.get(key), str) for key in ("role", "content"))
        )
        if not texts:
            raise RunError(
                "chat [messages]: a list of dicts with the texts 'role' and 'content' is required; "
                f"got {message!r}. Pass for example [{{'role': 'user', 'content': 'Hello'}}]."
            )
