"""Weights of a decoder from a model file: packed ones stay as the file has them."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from rlx.errors import FormatError
from rlx.quant import QuantScheme, encode
from rlx_xla.models.decoder_config import DecoderConfig
from rlx_xla.models.model_folder import ModelFile, ModelFolder
from rlx_xla.models.packed import MlxWeight, PackedWeight

EMBEDDING = "token_embd.weight"
_MATRICES = {
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_VECTORS = {"attention_norm": "attn_norm.weight", "feed_norm": "ffn_norm.weight"}
_OPTIONAL = {
    "query_norm": "attn_q_norm.weight",
    "key_norm": "attn_k_norm.weight",
    "attention_post_norm": "post_attention_norm.weight",
    "feed_post_norm": "post_ffw_norm.weight",
    "query_bias": "attn_q.bias",
    "key_bias": "attn_k.bias",
    "value_bias": "attn_v.bias",
}


def load_params(
    file: ModelFile,
    config: DecoderConfig,
    *,
    inputs: str = "exact",
    scheme: QuantScheme | None = None,
) -> dict[str, Any]:
    """Return the params tree of a file's weights; quantised ones are views of the file.

    Args:
        file: an open file.
        config: what the file's metadata describes.
        inputs: what products take in, ``"exact"`` or ``"int8"``; see `PackedWeight`.
        scheme: a GGUF scheme that matrices of numbers are packed in, where their rows are whole
            blocks; None leaves them as they are.

    Raises:
        FormatError: tensors are missing or have other shapes; all of them at once.
    """
    return _Loader(file, config, inputs, scheme).tree()


def vocabulary_size(file: ModelFile) -> int:
    """Return the rows of the embedding.

    Raises:
        FormatError: the file has no embedding.
    """
    tensor = file.tensors.get(EMBEDDING)
    if tensor is None or len(tensor.shape) != 2:
        found = "none" if tensor is None else f"shape {list(tensor.shape)}"
        raise FormatError(
            f"gguf model [tensors]: {EMBEDDING} [vocabulary, width] is required; got {found}. "
            "Use a file of a language model."
        )
    return tensor.shape[0]


@final
class _Loader:
    """Reads the tensors of one file and collects what is wrong with them."""

    def __init__(
        self, file: ModelFile, config: DecoderConfig, inputs: str, scheme: QuantScheme | None
    ) -> None:
        self._file = file
        self._inputs = inputs
        self._scheme = scheme
        self._config = config
        self._faults: list[str] = []
        self._used: set[str] = set()

    def tree(self) -> dict[str, Any]:
        c = self._config
        tree: dict[str, Any] = {
            "embedding": self._matrix(EMBEDDING, c.vocabulary, c.width),
            "norm": self._vector("output_norm.weight", c.width),
        }
        if "output.weight" in self._file.tensors:
            tree["head"] = self._matrix("output.weight", c.vocabulary, c.width)
        if "rope_freqs.weight" in self._file.tensors:
            tree["rope_factors"] = self._vector("rope_freqs.weight", c.rope_size // 2)
        blocks = sum(name.startswith("blk.") for name in self._file.tensors)
        if c.layers * len(_MATRICES) > blocks:
            wanted = f"{c.layers} layers of at least {len(_MATRICES)} tensors"
            self._faults.append(f"{wanted} do not fit {blocks} tensors")
        else:
            tree["layers"] = [self._layer(f"blk.{i}.") for i in range(c.layers)]
        unused = [name for name in self._file.tensors if name not in self._used]
        self._faults += [f"unexpected: {name}" for name in unused]
        if self._faults:
            shown = "".join(f"\n  {fault}" for fault in self._faults[:20])
            raise FormatError(
                f"gguf model [tensors]: the tensors of {c.architecture!r} are required; found "
                f"{len(self._faults)} fault{'s' if len(self._faults) != 1 else ''}. Use a whole "
                f"file of a known family.{shown}"
            )
        return tree

    def _layer(self, prefix: str) -> dict[str, Any]:
        c = self._config
        inner = c.heads * c.value_size
        shapes = {
            "query": (c.heads * c.head_size, c.width),
            "key": (c.kv_heads * c.head_size, c.width),
            "value": (c.kv_heads * c.value_size, c.width),
            "output": (c.width, inner),
            "gate": (c.inner, c.width),
            "up": (c.inner, c.width),
            "down": (c.width, c.inner),
        }
        sizes = {
            "query_norm": c.head_size,
            "key_norm": c.head_size,
            "query_bias": c.heads * c.head_size,
            "key_bias": c.kv_heads * c.head_size,
            "value_bias": c.kv_heads * c.value_size,
        }
        layer: dict[str, Any] = {
            key: self._matrix(f"{prefix}{name}.weight", *shapes[key])
            for key, name in _MATRICES.items()
        }
        for key, name in _VECTORS.items():
            layer[key] = self._vector(prefix + name, c.width)
        for key, name in _OPTIONAL.items():
            if prefix + name in self._file.tensors:
                layer[key] = self._vector(prefix + name, sizes.get(key, c.width))
        return layer

    def _matrix(self, name: str, rows: int, columns: int) -> Any:
        if not self._has(name, (rows, columns)):
            return None
        tensor = self._file.tensors[name]
        array = self._file.array(name)
        if tensor.scheme is None:
            if self._scheme is None or columns % self._scheme.block_size:
                return array
            codes = encode(self._scheme, array.astype(np.float32))
            return PackedWeight(codes, str(self._scheme), self._inputs)
        if isinstance(self._file, ModelFolder):
            codes, scales, *biases = self._file.parts(name)
            return MlxWeight(codes, scales, biases[0] if biases else None, str(tensor.scheme))
        return PackedWeight(array, str(tensor.scheme), self._inputs)

    def _vector(self, name: str, size: int) -> Any:
        if not self._has(name, (size,)):
            return None
        return self._file.numbers(name).astype(np.float32, copy=False)

    def _has(self, name: str, shape: tuple[int, ...]) -> bool:
        self._used.add(name)
        tensor = self._file.tensors.get(name)
        if tensor is None:
            self._faults.append(f"missing: {name} {list(shape)}")
            return False
        if tensor.shape != shape:
            self._faults.append(f"{name} must be {list(shape)}; got {list(tensor.shape)}")
            return False
        return True
