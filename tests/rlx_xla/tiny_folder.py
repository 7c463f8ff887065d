"""Tiny models as folders of safetensors, and the same weights as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, SIZE = 32, 48, 2, 4, 2, 8
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ"]
MERGES = ["t h", "th e", "Ġ a", "Ġ the"]
SPECIAL = ["<unk>", "<s>", "<|im_end|>"]
TOKENS = [*SPECIAL, *LETTERS, *(line.replace(" ", "") for line in MERGES)]

CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": LAYERS, "hidden_size": WIDTH,
    "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": SIZE, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "eos_token_id": 2,
}  # fmt: skip

TOKENIZER: dict[str, Any] = {
    "model": {
        "type": "BPE",
        "vocab": {token: i for i, token in enumerate(TOKENS)},
        "merges": MERGES,
    },
    "added_tokens": [{"id": i, "content": t, "special": True} for i, t in enumerate(SPECIAL)],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "decoder": {"type": "ByteLevel"},
}


def weights(rng: np.random.Generator, *, norms: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Random weights of the Llama family under their published names."""

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, 0.2, (rows, columns)).astype(np.float32)

    found = {
        "model.embed_tokens.weight": matrix(len(TOKENS), WIDTH),
        "lm_head.weight": matrix(len(TOKENS), WIDTH),
        "model.norm.weight": rng.normal(1, 0.1, WIDTH).astype(np.float32),
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        shapes = {
            "self_attn.q_proj": (HEADS * SIZE, WIDTH), "self_attn.k_proj": (KV_HEADS * SIZE, WIDTH),
            "self_attn.v_proj": (KV_HEADS * SIZE, WIDTH), "self_attn.o_proj": (WIDTH, HEADS * SIZE),
            "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH),
            "mlp.down_proj": (WIDTH, INNER),
        }  # fmt: skip
        found |= {f"{layer}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm", *norms):
            size = SIZE if name.startswith("self_attn") else WIDTH
            found[f"{layer}{name}.weight"] = rng.normal(1, 0.1, size).astype(np.float32)
    return found


def write(
    folder: Path,
    tensors: dict[str, np.ndarray],
    *,
    config: dict[str, Any] | None = None,
    tokenizer: dict[str, Any] | None = None,
    parts: int = 1,
) -> Path:
    """Write a folder; `parts` files with an index where it is more than one."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER | (tokenizer or {})))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": "{{ messages[0]['content'] }}"})
    )
    if parts == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = list(tensors)
    table: dict[str, str] = {}
    for part in range(parts):
        file = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        mine = names[part::parts]
        save_file({n: tensors[n] for n in mine}, folder / file)
        table |= dict.fromkeys(mine, file)
    index = json.dumps({"metadata": {}, "weight_map": table})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def write_as_gguf(path: Path, tensors: dict[str, np.ndarray], numbers: dict[str, Any]) -> Path:
    """Write the same model as llama.cpp's converter does: rotated pairs lie side by side."""
    writer = gguf.GGUFWriter(path, "llama")
    sizes: dict[str, Any] = {
        "block_count": LAYERS, "context_length": 256, "embedding_length": WIDTH,
        "feed_forward_length": INNER, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "attention.key_length": SIZE,
        "attention.value_length": SIZE, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10_000.0,
    }  # fmt: skip
    for key, value in (sizes | numbers).items():
        if isinstance(value, str):
            writer.add_string(f"llama.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"llama.{key}", value)
        else:
            writer.add_uint32(f"llama.{key}", value)
    names = {
        "model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm", "model.layers": "blk",
    }  # fmt: skip
    for source, array in tensors.items():
        if "q_proj" in source or "k_proj" in source:
            heads = array.shape[0] // SIZE
            array = array.reshape(heads, 2, SIZE // 2, WIDTH).swapaxes(1, 2).reshape(array.shape)
        name = source
        for old, new in names.items():
            name = name.replace(old, new)
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
