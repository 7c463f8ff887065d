"""Sizes and kinds of a decoder-only language model, read from a GGUF file's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, final

from rlx.errors import FormatError, did_you_mean
from rlx_xla.models.rope import KINDS, RopeScaling

ARCHITECTURES = ("gemma3", "llama", "qwen2", "qwen3")
"""Values of ``general.architecture`` that are known; Mistral and SmolLM files say ``llama``."""

MAX_SIZE = 1 << 24
"""No size of a model is larger: a file that says so is damaged."""

GEMMA_PATTERN = 6  # of so many layers in a row the last one sees everything
GEMMA_LOCAL_BASE = 10_000.0


@final
@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What the model function needs to know.

    Attributes:
        architecture: one of ``ARCHITECTURES``.
        layers: blocks one after another.
        width: features of a token.
        inner: features inside the feed-forward half.
        heads: query heads.
        kv_heads: key and value heads; divides ``heads``.
        head_size: features of a head's queries and keys.
        value_size: features of a head's values.
        vocabulary: rows of the embedding.
        context: most positions that the model was trained for.
        eps: added to mean squares.
        rope_base: base of the rotation's wavelengths.
        rope_local_base: the same in layers with a window.
        rope: how the rotation is stretched, in layers without a window.
        rope_size: features of a head that rotate.
        rope_pairs: rotate neighbours (2i, 2i + 1) instead of halves (i, i + size / 2).
        window: positions that a windowed layer sees, itself included; 0 for none.
        window_pattern: of so many layers in a row all but the last have the window.
        gelu: the feed-forward gate is GELU (tanh form) instead of SiLU.
        embedding_scale: embeddings are multiplied by it.
        query_scale: scores are multiplied by it.
        final_softcap: logits become cap · tanh(logits / cap); 0 for none.
        wide: norms, rotations, attention and gates are computed in f64 and rounded to f32 once, so
            that their last bit does not depend on the order of sums, nor what is rounded to
            integers after them.
        span: most positions of the caches that attention looks at at once (`decoder.span_for`).
        sums: a step over one token is written for devices that run it as one graph: attention is
            sums of products (`decoder_step`), values have positions last in the caches
            (`decoder.cache_shapes`), and means are taken after products (`decoder.Normed`).
    """

    architecture: str
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    vocabulary: int
    context: int
    eps: float
    rope_base: float
    rope_local_base: float
    rope: RopeScaling
    rope_size: int
    rope_pairs: bool
    window: int
    window_pattern: int
    gelu: bool
    embedding_scale: float
    query_scale: float
    final_softcap: float
    wide: bool = False
    span: int = 128
    sums: bool = False

    def has_window(self, layer: int) -> bool:
        """Tell whether a layer sees only the last ``window`` positions."""
        return self.window > 0 and (layer + 1) % self.window_pattern != 0


def read_config(metadata: Mapping[str, Any], *, vocabulary: int) -> DecoderConfig:
    """Return the config that a file's metadata describes.

    Args:
        metadata: of the file.
        vocabulary: rows of the embedding tensor.

    Raises:
        FormatError: an unknown architecture, or a size that is missing or impossible.
    """
    keys = _Keys(metadata)
    name = keys.architecture
    heads = keys.size("attention.head_count")
    width = keys.size("embedding_length")
    kv_heads = keys.size("attention.head_count_kv", heads)
    head_size = keys.size("attention.key_length", max(1, width // heads))
    rope_size = keys.size("rope.dimension_count", head_size)
    gemma = name == "gemma3"
    if heads % kv_heads:
        keys.fail("attention.head_count", f"a multiple of {kv_heads}, the key heads", heads)
    if rope_size > head_size or rope_size % 2:
        keys.fail("rope.dimension_count", f"even and at most {head_size}", rope_size)
    return DecoderConfig(
        architecture=name,
        layers=keys.size("block_count"),
        width=width,
        inner=keys.size("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        value_size=keys.size("attention.value_length", head_size),
        vocabulary=vocabulary,
        context=keys.size("context_length"),
        eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_base=keys.number("rope.freq_base", 10_000.0),
        rope_local_base=keys.number("rope.local.freq_base", GEMMA_LOCAL_BASE),
        rope=keys.rope(),
        rope_size=rope_size,
        rope_pairs=keys.flag("rope.pairs", name == "llama"),
        window=keys.size("attention.sliding_window", 0) if gemma else 0,
        window_pattern=keys.size("attention.sliding_window_pattern", GEMMA_PATTERN),
        gelu=gemma,
        embedding_scale=math.sqrt(width) if gemma else 1.0,
        query_scale=_query_scale(keys, head_size, heads, width),
        final_softcap=keys.number("final_logit_softcapping", 0.0),
    )


def _query_scale(keys: _Keys, head_size: int, heads: int, width: int) -> float:
    # The 27-billion model of Gemma 3, which 62 layers tell, divides by another size.
    big = keys.architecture == "gemma3" and keys.size("block_count") == 62
    size = float(width // heads if big else head_size)
    return 1.0 / math.sqrt(keys.number("attention.query_size", size) or size)


@final
class _Keys:
    """The metadata of one architecture."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        name = metadata.get("general.architecture")
        if name not in ARCHITECTURES:
            hint = did_you_mean(name, ARCHITECTURES) if isinstance(name, str) else ""
            raise FormatError(
                "gguf model [architecture]: general.architecture is required to be one of "
                f"{', '.join(ARCHITECTURES)}; got {name!r}.{hint} Use a file of a known family."
            )
        self.architecture: str = name

    def fail(self, key: str, wanted: str, found: object) -> NoReturn:
        """Raise for a value that no model has."""
        raise FormatError(
            f"gguf model [metadata]: {self.architecture}.{key} is required to be {wanted}; got "
            f"{found!r}. The file is damaged or of another kind."
        )

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number ≥ 1 (≥ 0 where the default is 0)."""
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        least = 0 if default == 0 else 1
        if type(value) is not int or not least <= value <= MAX_SIZE:
            self.fail(key, f"a whole number from {least} to {MAX_SIZE}", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, bool):
            self.fail(key, "true or false", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number ≥ 0."""
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            self.fail(key, "a finite number ≥ 0", value)
        return float(value)

    def rope(self) -> RopeScaling:
        """How the rotation is stretched."""
        kind = self._metadata.get(f"{self.architecture}.rope.scaling.type", "linear")
        if kind not in KINDS:
            self.fail("rope.scaling.type", f"one of {', '.join(map(repr, KINDS))}", kind)
        if kind == "none":
            return RopeScaling()
        factor = self.number("rope.scaling.factor", 1.0) or 1.0
        if kind == "linear":
            return RopeScaling(kind="none" if factor == 1.0 else "linear", factor=factor)
        original = self.size("rope.scaling.original_context_length")
        low = self.number("rope.scaling.low_freq_factor", 1.0)
        high = self.number("rope.scaling.high_freq_factor", 4.0)
        if high <= low:
            self.fail("rope.scaling.high_freq_factor", f"more than {low:g}, the low one", high)
        fast = self.number("rope.scaling.yarn_beta_fast", 32.0)
        slow = self.number("rope.scaling.yarn_beta_slow", 1.0)
        if not 0 < slow < fast:
            self.fail("rope.scaling.yarn_beta_slow", f"more than 0 and less than {fast:g}", slow)
        return RopeScaling(
            kind=kind, factor=factor, original=original, low=low, high=high, beta_fast=fast,
            beta_slow=slow, magnitude=self._magnitude(factor),
        )  # fmt: skip

    def _magnitude(self, factor: float) -> float:
        whole = self.number("rope.scaling.attention_factor", 0.0)
        if whole:
            return whole
        # GGUF files give a factor of YaRN's own magnitude.
        more = self.number("rope.scaling.attn_factor", 1.0) or 1.0
        return more * (0.1 * math.log(max(factor, 1.0)) + 1.0)
