"""Models as folders: ``config.json``, ``model.safetensors`` (or an index of parts), tokenizer.

Matrices may be quantised as MLX does: codes in ``weight``, ``scales`` and ``biases`` beside it.

What a folder says is put into the words of GGUF metadata and tensor names, so that one reader of
sizes, weights and vocabulary serves both. Nothing is believed before it is checked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, final

import numpy as np

from rlx.dtypes import DType
from rlx.errors import FormatError
from rlx.quant import QuantScheme, SafetensorsFile, open_gguf, open_safetensors
from rlx.quant.packed import unpack
from rlx.types import TensorType
from rlx_xla.models.json_vocabulary import vocabulary_metadata
from rlx_xla.models.mlx_tensors import MlxSchemes, quantised_shape

MAX_JSON = 1 << 26
"""Bytes of a JSON file; the largest tokenizers have half of that."""

_KINDS = {
    "gemma3_text": "gemma3", "llama": "llama", "mistral": "llama", "qwen2": "qwen2",
    "qwen3": "qwen3",
}  # fmt: skip
"""``model_type`` of a config, and what GGUF files call such a model."""

_SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_MAY_BE = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.query_size": "query_pre_attn_scalar",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "rope.freq_base": "rope_theta",
    "rope.local.freq_base": "rope_local_base_freq",
    "final_logit_softcapping": "final_logit_softcapping",
}
_ROPE = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
}

_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_GEMMA_PARTS = _PARTS | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_LAYER = re.compile(r"model\.layers\.([0-9]{1,5})\.(.+)\.(weight|bias)")
_UNUSED = "rotary_emb.inv_freq"


class ModelTensor(Protocol):
    """What is known of a tensor before it is read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, outermost first."""
        ...

    @property
    def scheme(self) -> QuantScheme | None:
        """How it is quantised, or None."""
        ...


class ModelFile(Protocol):
    """A model's tensors and metadata under the names that GGUF files use."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Values by key."""
        ...

    @property
    def tensors(self) -> Mapping[str, ModelTensor]:
        """What there is, by name."""
        ...

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor as it is stored."""
        ...

    def numbers(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor's numbers."""
        ...

    def release(self) -> None:
        """Give the memory of pages that were read back."""
        ...


@final
@dataclass(frozen=True)
class FolderTensor:
    """A tensor of a folder.

    Attributes:
        shape: sizes, outermost first.
        source: its name in the files.
        file: the file that holds it.
        offset: what is added to its numbers: Gemma's gains are stored less 1.
        scheme: one of MLX's, or None for numbers.
        parts: names and files of scales and biases, of quantised ones.
    """

    shape: tuple[int, ...]
    source: str
    file: SafetensorsFile
    offset: float = 0.0
    scheme: QuantScheme | None = None
    parts: tuple[tuple[str, SafetensorsFile], ...] = ()


@final
class ModelFolder:
    """An open folder; see `ModelFile`."""

    def __init__(self, metadata: Mapping[str, Any], tensors: Mapping[str, FolderTensor]) -> None:
        """Hold what ``open_model`` has checked."""
        self.metadata = metadata
        self.tensors: Mapping[str, ModelTensor] = tensors
        self._tensors = tensors

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor as it is stored; a view of the file unless something is added to it."""
        tensor = self._tensors[name]
        stored = tensor.file.array(tensor.source)
        return stored.astype(np.float32) + np.float32(tensor.offset) if tensor.offset else stored

    def parts(self, name: str) -> tuple[np.ndarray[Any, Any], ...]:
        """Codes, scales and, where there are any, biases of a quantised tensor."""
        tensor = self._tensors[name]
        return (self.array(name), *(file.array(source) for source, file in tensor.parts))

    def numbers(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor's numbers: f32 when it is quantised, else as they are stored."""
        scheme = self._tensors[name].scheme
        return self.array(name) if scheme is None else unpack(scheme, *self.parts(name))

    def release(self) -> None:
        """Give the memory of pages that were read back."""
        for file in {id(t.file): t.file for t in self._tensors.values()}.values():
            file.release()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)


def open_model(path: str | os.PathLike[str]) -> ModelFile:
    """Open a GGUF file, or a folder with ``config.json`` and safetensors.

    Args:
        path: the file; the folder, or one of its ``.safetensors`` files or its index.

    Raises:
        FormatError: it is damaged, or of an unknown family.
    """
    place = Path(path)
    if place.name.endswith((".safetensors", ".safetensors.index.json")):
        place = place.parent
    return _Folder(place).model() if place.is_dir() else open_gguf(path)


@final
class _Folder:
    """Reads one folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = path.absolute().name  # '.' has none of its own

    def model(self) -> ModelFolder:
        config = self._json("config.json")
        kind = config.get("model_type")
        if not isinstance(kind, str) or kind not in _KINDS:
            self._fail(
                f"config.json: model_type is required to be one of {', '.join(_KINDS)}", kind
            )
        name = _KINDS[kind]
        metadata = _metadata(config, name, self._fail)
        metadata |= vocabulary_metadata(
            self._json("tokenizer.json"), self._maybe("tokenizer_config.json"),
            config | self._maybe("generation_config.json"), self._template(),
        )  # fmt: skip
        tensors = self._tensors(name, MlxSchemes(config, self._fail))
        if config.get("tie_word_embeddings", name == "gemma3"):
            tensors.pop("output.weight", None)
        elif "output.weight" not in tensors:
            self._fail("lm_head.weight is required, since config.json does not tie it", "none")
        return ModelFolder(metadata, tensors)

    def _fail(self, wanted: str, found: object) -> NoReturn:
        raise FormatError(
            f"model folder {self._name!r}: {wanted}; got {found!r}. "
            "The folder is damaged or of another kind."
        )

    def _read(self, name: str) -> str:
        place = self._path / name
        if not place.is_file():
            self._fail(f"{name} is required", "no such file")
        size = place.stat().st_size
        if size > MAX_JSON:
            self._fail(f"{name} is required to have at most {MAX_JSON} bytes", size)
        try:
            return place.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(
                f"model folder {self._name!r}: {name} is required to be UTF-8; {error}. "
                "The folder is damaged or of another kind."
            ) from error

    def _json(self, name: str) -> dict[str, Any]:
        text = self._read(name)
        try:
            found = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise FormatError(
                f"model folder {self._name!r}: {name} is required to be JSON; {error}. "
                "The folder is damaged or of another kind."
            ) from error
        if not isinstance(found, dict):
            self._fail(f"{name} is required to be a JSON object", type(found).__name__)
        return found

    def _maybe(self, name: str) -> dict[str, Any]:
        return self._json(name) if (self._path / name).is_file() else {}

    def _template(self) -> str | None:
        name = "chat_template.jinja"
        return self._read(name) if (self._path / name).is_file() else None

    def _tensors(self, kind: str, schemes: MlxSchemes) -> dict[str, FolderTensor]:
        found: dict[str, FolderTensor] = {}
        parts = _GEMMA_PARTS if kind == "gemma3" else _PARTS
        held: dict[str, SafetensorsFile] = {}
        for file in self._files():
            for source in file.tensors:
                if source in held:
                    self._fail("names of tensors are required to be unique", source)
                held[source] = file
        beside = {source: schemes.parts(source, held) for source in held}
        inside = {name for names in beside.values() for name in names}
        for source, file in held.items():
            if source.endswith(_UNUSED) or source in inside:
                continue
            name = _renamed(source, parts)
            if name in found:
                self._fail("names of tensors are required to be unique", source)
            type_ = file.tensors[source]
            if beside[source]:
                scheme = schemes.scheme(source)
                types = [held[part].tensors[part] for part in beside[source]]
                shape = quantised_shape(source, scheme, type_, types, self._fail)
                sources = tuple((part, held[part]) for part in beside[source])
                found[name] = FolderTensor(shape, source, file, 0.0, scheme, sources)
                continue
            if type_.dtype not in (DType.F32, DType.F16, DType.BF16):
                self._fail(f"{source} is required to be f32, f16 or bf16", str(type_))
            less = kind == "gemma3" and name.endswith("norm.weight")
            found[name] = FolderTensor(_sizes(type_), source, file, 1.0 if less else 0.0)
        return found

    def _files(self) -> list[SafetensorsFile]:
        single, index = "model.safetensors", "model.safetensors.index.json"
        if (self._path / single).is_file():
            return [open_safetensors(self._path / single)]
        if not (self._path / index).is_file():
            self._fail(f"{single} or {index} is required", "neither")
        table = self._json(index).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
            self._fail(f"{index}: weight_map is required to name a file for each tensor", table)
        names = sorted(set(table.values()))
        wrong = [n for n in names if Path(n).name != n or not n.endswith(".safetensors")]
        if wrong:
            self._fail(f"{index}: names of safetensors files beside it are required", wrong[0])
        files = [open_safetensors(self._path / n) for n in names]
        held = {name for file in files for name in file.tensors}
        missing = sorted(set(table).difference(held))
        if missing:
            self._fail(f"{index}: its files are required to hold {missing[0]}", "none of them does")
        return files


def _sizes(type_: TensorType) -> tuple[int, ...]:
    return tuple(int(d) for d in type_.shape if isinstance(d, int))


def _renamed(source: str, parts: Mapping[str, str]) -> str:
    """GGUF's name of a tensor; an unknown one stays, and the loader says that it is unexpected."""
    match = _LAYER.fullmatch(source)
    if match is None:
        return _WHOLE.get(source, source)
    part = parts.get(match[2])
    return source if part is None else f"blk.{int(match[1])}.{part}.{match[3]}"


def _metadata(
    config: Mapping[str, Any], name: str, fail: Callable[[str, object], NoReturn]
) -> dict[str, Any]:
    """The sizes of a config in GGUF's words; their values are checked by who reads them."""
    found: dict[str, Any] = {"general.architecture": name, f"{name}.rope.pairs": False}
    for key, source in _SIZES.items():
        if config.get(source) is None:
            fail(f"config.json: {source} is required", config.get(source))
        found[f"{name}.{key}"] = config[source]
    for key, source in _MAY_BE.items():
        if config.get(source) is not None:
            found[f"{name}.{key}"] = config[source]
    kinds = config.get("layer_types")
    if name == "gemma3" and isinstance(kinds, list) and "full_attention" in kinds:
        found[f"{name}.attention.sliding_window_pattern"] = kinds.index("full_attention") + 1
    scaling = config.get("rope_parameters", config.get("rope_scaling"))
    if name == "gemma3" and isinstance(scaling, dict) and "full_attention" in scaling:
        local = scaling.get("sliding_attention")
        if isinstance(local, dict) and "rope_theta" in local:
            found[f"{name}.rope.local.freq_base"] = local["rope_theta"]
        scaling = scaling["full_attention"]
    if isinstance(scaling, dict):
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        found[f"{name}.rope.scaling.type"] = "none" if kind == "default" else kind
        for key, source in _ROPE.items():
            if scaling.get(source) is not None:
                found[f"{name}.rope.scaling.{key}"] = scaling[source]
        if scaling.get("rope_theta") is not None:
            found[f"{name}.rope.freq_base"] = scaling["rope_theta"]
    elif scaling is not None:
        fail("config.json: rope_scaling is required to be an object", scaling)
    return found
