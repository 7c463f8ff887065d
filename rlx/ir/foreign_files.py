"""What a file is that is not what was asked for, told by its first bytes."""

from __future__ import annotations

import re

from rlx.errors import FormatError

START = 4096
"""Bytes from the beginning of a file that are looked at."""

_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"\x89RLX", "a graph of rlx.save", "rlx.load reads it."),
    (b"GGUF", "a GGUF file", "rlx_xla.generation.LanguageModel reads it."),
    (b"\x93NUMPY", "an array of numpy.save", "numpy.load reads it."),
    (b"ML\xefR", "MLIR bytecode", "rlx_xla.from_stablehlo reads its bytes."),
    (b"\x1f\x8b", "packed by gzip", "Unpack it first."),
    (b"\x28\xb5\x2f\xfd", "packed by zstd", "Unpack it first."),
    (b"\xfd7zXZ", "packed by xz", "Unpack it first."),
    (b"BZh", "packed by bzip2", "Unpack it first."),
    (b"\x7fELF", "a program or library of Linux", ""),
    (b"\x89HDF", "an HDF5 file", "Read its arrays with h5py, and save them by rlx.save."),
    (b"\x89PNG", "a PNG image", ""),
    (b"version https://git-lfs", "a pointer of Git LFS in place of the file", "Run git lfs pull."),
)
_OLD_MODELS = (b"lmgg", b"fmgg", b"tjgg", b"algg")
"""What llama.cpp wrote before GGUF."""

_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_PAGE = re.compile(rb"\s*<(?:!doctype|html|\?xml)", re.IGNORECASE)
_GRAPH = re.compile(rb"\s*(?:format \d+\s+)?graph \"")
_MODULE = re.compile(rb"\s*(?:(?:#|//).*\n\s*)*(?:module|func\.func|\"builtin\.module\")")
_ZIPPED: tuple[tuple[bytes, str, str], ...] = (
    (b"artifact.json", "an artifact of rlx_xla.aot", "rlx_xla.load_artifact reads it."),
    (b".npy", "an archive of numpy.savez", "numpy.load reads it."),
    (b"data.pkl", "a checkpoint of PyTorch", "Save its tensors as safetensors."),
)


def kind_of(start: bytes) -> tuple[str, str]:
    """What a file is, and who reads it; empty texts where that is not known.

    Args:
        start: its first bytes, ``START`` of them or fewer.
    """
    for magic, kind, advice in _MAGIC:
        if start.startswith(magic):
            return kind, advice
    if start[:4] in _OLD_MODELS:
        return "a model of llama.cpp from before GGUF", "Convert it to GGUF."
    if start.startswith(b"PK\x03\x04"):
        name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
        found = ((kind, advice) for part, kind, advice in _ZIPPED if name.endswith(part))
        return next(found, ("a zip archive of something else", ""))
    if not start:
        return "empty", "It is cut: write it again."
    if not any(start):
        return "nothing but zeros", "It was not written to its end: write it again."
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return "a safetensors file", "rlx_xla.generation.LanguageModel reads a folder of them."
    if _PICKLE.match(start):
        return "a pickle, which may run code", "Save its arrays by rlx.save."
    if b"StableHLO_v" in start:
        return "an exported program", "rlx_xla.load_export reads it."
    return _kind_of_text(start)


def _kind_of_text(start: bytes) -> tuple[str, str]:
    if _PAGE.match(start):
        return "a web page", "Download the file itself."
    if _GRAPH.match(start):
        return "the text of a graph", "rlx.parse reads its text."
    if _MODULE.match(start):
        return "StableHLO text", "rlx_xla.from_stablehlo reads its text."
    text = start.lstrip()
    if text[:1] in (b"{", b"["):
        return "JSON", ""
    return "", ""


def wrong_file(where: str, wanted: str, what: str, start: bytes, advice: str) -> FormatError:
    """An error that says what a file is instead of what was wanted.

    Args:
        where: the function that was called, for the message.
        wanted: what it reads, with its article.
        what: the file, in words.
        start: its first bytes.
        advice: what to do where nobody reads such a file.
    """
    kind, reader = kind_of(start[:START])
    if not kind:
        kind = f"of a kind that is not known, and begins with {start[:8]!r}"
    return FormatError(
        f"{where} [file]: {wanted} is required; {what} is {kind}. {reader or advice}", label="file"
    )
