"""Conversations: turns feed what is new, and answer as whole prompts do."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from rlx.errors import RunError
from rlx_xla.generation.chat import chat_prompt
from rlx_xla.generation.conversation import Conversation
from rlx_xla.generation.held import Held, rest, shared
from rlx_xla.generation.model import Generation, LanguageModel
from rlx_xla.generation.sampling import SamplingOptions
from tests.rlx_xla import tiny_gguf

PENALTY = SamplingOptions(repetition_penalty=1.5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder = tmp_path_factory.mktemp("model")
    return LanguageModel(tiny_gguf.write(folder / "m.gguf", np.random.default_rng()))


def whole(model: LanguageModel, talk: Conversation, most: int) -> Generation:
    """The last answer, from a prompt of its own."""
    prompt = chat_prompt(model.tokenizer, talk.messages[:-1])
    (found,) = model.generate(prompt, max_tokens=most, special=True, sampling=PENALTY, capacity=512)
    return found


def test_turns_feed_what_is_new(model: LanguageModel) -> None:
    talk = Conversation(model, system="a b", sampling=PENALTY, max_tokens=12)
    said: list[tuple[list[int], list[float]]] = []
    prompts: list[list[dict[str, str]]] = []
    fed: list[int] = []
    for text in ("the sea the sun a bee", "cat", "a" * 90, "dog the"):
        tokens = [t for t in talk.say(text) if t.id >= 0]
        said.append(([t.id for t in tokens], [t.logprob for t in tokens]))
        prompts.append(talk.messages[:-1])
        fed.append(model.timings.prompt_tokens)
    assert talk.forgotten == 0
    for turn, ((ids, logprobs), messages) in enumerate(zip(said, prompts, strict=True)):
        prompt = chat_prompt(model.tokenizer, messages)
        (alone,) = model.generate(
            prompt, max_tokens=12, special=True, sampling=PENALTY, capacity=512
        )
        assert ids == alone.tokens
        np.testing.assert_allclose(logprobs, alone.logprobs, atol=1e-3)
        whole_prompt = len(model.tokenizer.encode(prompt, special=True))
        assert fed[turn] == whole_prompt if turn == 0 else fed[turn] <= whole_prompt
    assert fed[3] <= 64 < whole_prompt


def test_an_answer_may_be_ended(model: LanguageModel) -> None:
    talk = Conversation(model, sampling=PENALTY, max_tokens=12)
    answer = talk.say("the sea")
    first = next(answer)
    answer.close()
    assert talk.messages[-1] == {"role": "assistant", "content": first.text.strip()}
    ids = [t.id for t in talk.say("a") if t.id >= 0]
    assert ids == whole(model, talk, 12).tokens


@pytest.mark.slow
def test_caches_grow(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx_xla.generation.conversation.LEAST", 256)
    talk = Conversation(model, sampling=PENALTY, max_tokens=8)
    sizes: list[int] = []
    left: list[int] = []  # tokens that were not fed
    for text in ("b" * 150, "cd" * 20, "a"):
        ids = [t.id for t in talk.say(text) if t.id >= 0]
        held = model._held
        assert held is not None
        sizes.append(held.size)
        prompt = chat_prompt(model.tokenizer, talk.messages[:-1])
        tokens = len(model.tokenizer.encode(prompt, special=True))
        left.append(tokens - model.timings.prompt_tokens)
    assert sizes[0] == 256
    assert sizes[-1] == 512
    assert left[0] == 0
    assert left[sizes.index(512)] > 0  # what the smaller caches held
    assert ids == whole(model, talk, 8).tokens


def test_the_oldest_messages_are_forgotten(model: LanguageModel) -> None:
    talk = Conversation(model, system="a", sampling=PENALTY, max_tokens=8)
    for letter in "bcdef":
        list(talk.say(letter * 100))
    assert talk.forgotten >= 2
    assert talk.forgotten % 2 == 0
    assert talk.messages[0] == {"role": "system", "content": "a"}
    assert talk.messages[1]["role"] == "user"
    message = (
        f"chat [context]: a text of fewer than {model.config.context} tokens, the model's context, "
        "is required; got "
    )
    before = list(talk.messages[:1])
    with pytest.raises(RunError, match=f"^{re.escape(message)}[0-9]+ with the format. Shorten it"):
        list(talk.say("a" * 600))
    assert talk.messages == before


def test_what_caches_hold_of_a_prompt() -> None:
    def held(ids: tuple[int, ...], start: int) -> Held:
        state = None
        return Held(ids, start, 128, state)  # pyright: ignore[reportArgumentType]

    assert shared(held((1, 2, 3), 5), [1, 2, 3, 4]) == 3
    assert shared(held((1, 2, 3), 5), [1, 2, 3]) == 2  # the last one is fed
    assert shared(held((1, 2, 3), 5), [1, 9]) == 1
    assert shared(held((1, 2, 3), 5), [9]) == 0
    assert shared(held((), 5), [9]) == 0
    feed = rest(held((1, 2, 3), 5), [1, 2, 7, 8, 9, 6], 2, 128)
    assert feed is not None
    assert (feed.ids.tolist(), feed.begin, feed.start.tolist()) == ([[7, 8, 9, 6]], 7, [5])
    feed = rest(held((1, 2, 3), 5), [1, 2, 7], 4, 128)
    assert feed is not None
    assert (feed.ids.tolist(), feed.begin) == ([[0, 1, 2, 7]], 4)
    assert rest(held((1,), 0), [1, 2], 16, 128) is None


def test_other_calls_leave_no_caches(model: LanguageModel) -> None:
    list(model.stream("the", max_tokens=2, reuse=True, capacity=512))
    assert model._held is not None
    list(model.stream("the", max_tokens=2, capacity=512))
    assert model._held is None


def test_an_interrupt_ends_the_answer_alone(
    tmp_path: Path,
    rng: np.random.Generator,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("typer")
    from rlx_xla.cli import chat

    path = str(tiny_gguf.write(tmp_path / "m.gguf", rng))
    said: list[str] = []

    def say(self: Conversation, text: str) -> Iterator[object]:
        said.append(text)
        if len(said) == 1:
            raise KeyboardInterrupt
        yield from ()

    monkeypatch.setattr(Conversation, "say", say)
    monkeypatch.setattr("typer.get_text_stream", lambda name: io.StringIO("the\na\n\n"))
    chat.chat(model=path, max_tokens=3)
    assert said == ["the", "a"]
    assert capsys.readouterr().out == "\n\n"
