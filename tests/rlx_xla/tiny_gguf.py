"""Tiny GGUF files of language models, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from rlx.quant import QuantScheme, encode

WIDTH, INNER, LAYERS = 64, 96, 2
TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ"]
MERGES = ["t h", "th e", "Ġ a", "Ġ the"]
PIECES = ["▁", *"abcdefghijklmnopqrstuvwxyz", "th", "the", "▁a", "▁the"]


def write(
    path: Path,
    rng: np.random.Generator,
    *,
    architecture: str = "llama",
    vocabulary: str = "gpt2",
    template: str | None = TEMPLATE,
    scheme: str = "Q8_0",
    window: int = 0,
    changes: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    layers: int = LAYERS,
    downs: tuple[str, ...] = (),
) -> Path:
    """Write a model; `changes` replaces metadata, `without` leaves tensors out.

    `downs` are schemes of the feed-forward halves' last matrices, by layer, over and over.
    """
    writer = gguf.GGUFWriter(path, architecture)
    heads, kv_heads, size = 4, 2, 32 if architecture == "gemma3" else 16
    numbers: dict[str, Any] = {
        "block_count": layers,
        "context_length": 512,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10_000.0,
    }
    if window:
        numbers |= {"attention.sliding_window": window, "attention.sliding_window_pattern": 2}
    for key, value in (numbers | (changes or {})).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        if isinstance(value, str):
            writer.add_string(f"{architecture}.{key}", value)
        else:
            add(f"{architecture}.{key}", value)
    count = _vocabulary(writer, vocabulary)
    if template is not None:
        writer.add_chat_template(template)

    def matrix(name: str, rows: int, columns: int, as_: str = scheme) -> None:
        if name in without:
            return
        kind = QuantScheme.gguf(as_)
        w = rng.normal(0, 0.3, (rows, columns)).astype(np.float32)
        writer.add_tensor(name, encode(kind, w), raw_dtype=gguf.GGMLQuantizationType[as_])

    def vector(name: str, size: int) -> None:
        if name not in without:
            writer.add_tensor(name, rng.normal(1, 0.1, size).astype(np.float32))

    matrix("token_embd.weight", count, WIDTH)
    vector("output_norm.weight", WIDTH)
    for i in range(layers):
        block = f"blk.{i}."
        matrix(f"{block}attn_q.weight", heads * size, WIDTH)
        matrix(f"{block}attn_k.weight", kv_heads * size, WIDTH)
        matrix(f"{block}attn_v.weight", kv_heads * size, WIDTH)
        matrix(f"{block}attn_output.weight", WIDTH, heads * size)
        matrix(f"{block}ffn_gate.weight", INNER, WIDTH)
        matrix(f"{block}ffn_up.weight", INNER, WIDTH)
        down = downs[i % len(downs)] if downs else scheme
        matrix(f"{block}ffn_down.weight", WIDTH, INNER, down)
        vector(f"{block}attn_norm.weight", WIDTH)
        vector(f"{block}ffn_norm.weight", WIDTH)
        if architecture in ("gemma3", "qwen3"):
            vector(f"{block}attn_q_norm.weight", size)
            vector(f"{block}attn_k_norm.weight", size)
        if architecture == "gemma3":
            vector(f"{block}post_attention_norm.weight", WIDTH)
            vector(f"{block}post_ffw_norm.weight", WIDTH)
        if architecture == "qwen2":
            vector(f"{block}attn_q.bias", heads * size)
            vector(f"{block}attn_k.bias", kv_heads * size)
            vector(f"{block}attn_v.bias", kv_heads * size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vocabulary(writer: gguf.GGUFWriter, kind: str) -> int:
    special = ["<unk>", "<s>", "<|end|>", "<|user|>"]
    kinds = [2, 3, 3, 3]
    if kind == "gpt2":
        merged = [line.replace(" ", "") for line in MERGES]
        tokens = [*special, *LETTERS, *merged]
        kinds += [1] * (len(tokens) - 4)
        writer.add_token_merges(MERGES)
        writer.add_add_bos_token(False)
    else:
        tokens = [*special, *(f"<0x{i:02X}>" for i in range(256)), *PIECES, "<b>"]
        kinds += [6] * 256 + [1] * len(PIECES) + [4]
        scores = [0.0] * 260 + [-float(i) for i in range(len(PIECES))] + [0.0]
        writer.add_token_scores(scores)
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(False)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return len(tokens)
