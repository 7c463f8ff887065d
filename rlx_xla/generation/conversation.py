"""Conversations: each turn feeds what is new, since the caches hold the turns before it."""

from __future__ import annotations

from collections.abc import Generator
from typing import final

from rlx.errors import RunError
from rlx_xla.generation.chat import chat_prompt
from rlx_xla.generation.model import LanguageModel, Token
from rlx_xla.generation.sampling import SamplingOptions

LEAST = 512
"""Positions of the caches at first; they double, so that few programs are compiled."""


@final
class Conversation:
    """A conversation with a model, in its own chat format.

    Attributes:
        messages: what was said, ``{"role": …, "content": …}``.
        forgotten: messages that no longer fit the model's context; the oldest go first, the
            system's stays.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        system: str | None = None,
        sampling: SamplingOptions | None = None,
        max_tokens: int = 256,
    ) -> None:
        """Begin one.

        Args:
            model: who answers; other calls of it in between cost the caches.
            system: what the model is told first.
            sampling: how tokens are chosen.
            max_tokens: of an answer, at most.

        Raises:
            RunError: the model has no chat format.
        """
        self._model = model
        self._sampling = sampling
        self._max_tokens = max_tokens
        self.messages = [] if system is None else [{"role": "system", "content": system}]
        self._fixed = len(self.messages)
        self.forgotten = 0
        self._prompt([*self.messages, {"role": "user", "content": "?"}])  # may refuse

    def say(self, text: str) -> Generator[Token, None, None]:
        """Say something; yield the answer as it comes.

        Whoever stops looking ends the answer: what came of it is a part of the conversation.

        Raises:
            RunError: the text alone does not fit the model's context.
        """
        self.messages.append({"role": "user", "content": text})
        prompt, room = self._fitting()
        needed = self._model.config.context - room + min(room, self._max_tokens)
        said: list[str] = []
        try:
            for token in self._model.stream(
                prompt,
                max_tokens=min(room, self._max_tokens),
                sampling=self._sampling,
                special=True,
                capacity=self._capacity(needed),
                reuse=True,
            ):
                said.append(token.text)
                yield token
        finally:
            self.messages.append({"role": "assistant", "content": "".join(said).strip()})

    def _fitting(self) -> tuple[str, int]:
        """The prompt of what fits, and tokens that are left of the context."""
        while True:
            prompt = self._prompt(self.messages)
            tokens = len(self._model.tokenizer.encode(prompt, special=True))
            room = self._model.config.context - tokens
            old = len(self.messages) - self._fixed - 1
            if room >= min(self._max_tokens, self._model.config.context // 4):
                return prompt, room
            if old < 1:
                if room >= 1:
                    return prompt, room
                self.messages.pop()
                raise RunError(
                    f"chat [context]: a text of fewer than {self._model.config.context} tokens, "
                    f"the model's context, is required; got {tokens} with the format. Shorten it."
                )
            gone = min(old, 2)  # a question with its answer
            del self.messages[self._fixed : self._fixed + gone]
            self.forgotten += gone

    def _capacity(self, needed: int) -> int:
        """Positions for prompt and answer, and for the padding of a first prompt."""
        size = LEAST
        while size < needed + 64:
            size *= 2
        return size

    def _prompt(self, messages: list[dict[str, str]]) -> str:
        return chat_prompt(self._model.tokenizer, messages)
