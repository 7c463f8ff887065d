"""GGUF and safetensors files: what good ones hold, and that bad ones are refused."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.errors import FormatError, RlxError
from rlx.quant import (
    GgufFile,
    QuantScheme,
    decode,
    encode,
    open_gguf,
    open_safetensors,
    write_gguf,
)

Array = np.ndarray[Any, Any]
Q4_0, Q8_0 = QuantScheme.gguf("Q4_0"), QuantScheme.gguf("Q8_0")


def string(text: bytes, width: str = "Q") -> bytes:
    return struct.pack(f"<{width}", len(text)) + text


def key(name: bytes, kind: int, value: bytes, width: str = "Q") -> bytes:
    return string(name, width) + struct.pack("<I", kind) + value


def tensor(name: bytes, dims: list[int], kind: int, offset: int, width: str = "Q") -> bytes:
    sizes = struct.pack(f"<I{len(dims)}{width}", len(dims), *dims)
    return string(name, width) + sizes + struct.pack("<IQ", kind, offset)


def file_of(
    keys: list[bytes],
    tensors: list[bytes],
    data: bytes,
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """A file from its parts; counts are those of the lists unless given."""
    told = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<III" if version == 1 else "<IQQ", version, *told)
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


KEYS = [
    key(b"general.architecture", 8, string(b"llama")),
    key(b"a.count", 4, struct.pack("<I", 7)),
    key(b"a.scale", 6, struct.pack("<f", 0.5)),
    key(b"a.flag", 7, b"\1"),
    key(b"a.small", 1, struct.pack("<b", -3)),
    key(b"a.list", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
    key(b"a.words", 9, struct.pack("<IQ", 8, 2) + string("é".encode()) + string(b"\xff")),
    key(b"a.flags", 9, struct.pack("<IQ2B", 7, 2, 1, 0)),
]
TENSORS = [
    tensor(b"w", [32, 2], 8, 0),
    tensor(b"v", [3], 0, 96),
    tensor(b"b", [2], 30, 128),
]
WEIGHT = encode(Q8_0, np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32))
DATA = WEIGHT.tobytes() + bytes(28) + np.float32([1, 2, 3]).tobytes() + bytes(20) + bytes(4)
GOOD = file_of(KEYS, TENSORS, DATA)


def opened(tmp_path: Path, data: bytes) -> GgufFile:
    (tmp_path / "m.gguf").write_bytes(data)
    return open_gguf(tmp_path / "m.gguf")


def check(found: GgufFile) -> None:
    assert found.metadata["general.architecture"] == "llama"
    assert found.metadata["a.count"] == 7
    assert found.metadata["a.flag"] is True
    assert found.metadata["a.list"].tolist() == [1, -2, 3]
    assert found.metadata["a.words"] == ["é", "\udcff"]
    assert found.metadata["a.flags"].tolist() == [True, False]
    assert list(found) == ["w", "v", "b"]
    assert found.tensors["w"].shape == (2, 32)
    assert found.tensors["w"].scheme == Q8_0
    np.testing.assert_array_equal(found.array("w"), WEIGHT)
    np.testing.assert_array_equal(found.numbers("w"), decode(Q8_0, WEIGHT))
    np.testing.assert_array_equal(found.numbers("v"), np.float32([1, 2, 3]))
    assert str(found.tensors["b"].type) == "bf16[2]"


def test_a_good_file(tmp_path: Path) -> None:
    found = opened(tmp_path, GOOD)
    check(found)
    assert found.version == 3
    assert not found.array("w").flags.writeable
    with pytest.raises(RlxError) as caught:
        found.array("ww")
    assert str(caught.value) == (
        "gguf: a tensor of the file is required; got 'ww'. Did you mean 'w'?"
    )


def test_older_versions(tmp_path: Path) -> None:
    check(opened(tmp_path, file_of(KEYS, TENSORS, DATA, version=2)))
    keys = [key(b"x", 9, struct.pack("<II2H", 2, 2, 5, 6), "I")]
    first = file_of(keys, [tensor(b"v", [3], 0, 0, "I")], bytes(12), version=1)
    found = opened(tmp_path, first)
    assert found.metadata["x"].tolist() == [5, 6]
    assert found.array("v").tolist() == [0, 0, 0]


def test_another_alignment(tmp_path: Path) -> None:
    keys = [key(b"general.alignment", 4, struct.pack("<I", 64))]
    data = np.float32([5]).tobytes()
    found = opened(tmp_path, file_of(keys, [tensor(b"v", [1], 0, 0)], data, alignment=64))
    assert found.array("v").tolist() == [5]
    assert found.tensors["v"].offset % 64 == 0


def test_written_files_read_back(tmp_path: Path, rng: np.random.Generator) -> None:
    wide = rng.normal(size=(2, 3, 64)).astype(np.float32)
    tensors: dict[str, tuple[Array, QuantScheme | None]] = {
        "q": (encode(Q4_0, wide), Q4_0),
        "f": (wide, None),
        "i": (np.arange(5, dtype=np.int16), None),
        "empty": (np.zeros((0, 4), np.float32), None),
    }
    metadata = {"s": "text", "n": 3, "m": -(2**40), "x": 0.25, "b": False}
    write_gguf(tmp_path / "w.gguf", tensors, metadata)
    found = open_gguf(tmp_path / "w.gguf")
    assert dict(found.metadata) == metadata
    for name, (array, scheme) in tensors.items():
        assert found.tensors[name].scheme == scheme
        np.testing.assert_array_equal(found.array(name), array)
    assert found.tensors["q"].shape == (2, 3, 64)


def test_a_file_is_replaced_in_one_step_or_not_at_all(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.gguf"
    wide = rng.normal(size=(4, 64)).astype(np.float32)
    write_gguf(path, {"v": (wide, None)})
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FormatError) as caught:
            write_gguf(path, {"v": (wide * 2, None)})
    assert str(caught.value) == (
        f"write_gguf: {str(path)!r} cannot be written: [Errno 28] No space left on device."
    )
    assert path.read_bytes() == before
    with pytest.raises(FormatError, match="cannot be written"):
        write_gguf(tmp_path / "nowhere" / "w.gguf", {"v": (wide, None)})
    assert [file.name for file in tmp_path.iterdir()] == ["w.gguf"]
    # Arrays that lie in the file itself, in another order in memory too.
    mapped = open_gguf(path).array("v")
    write_gguf(path, {"w": (mapped.T, None), "v": (mapped, None)})
    found = open_gguf(path)
    np.testing.assert_array_equal(found.array("w"), wide.T)
    np.testing.assert_array_equal(found.array("v"), wide)


def test_a_model_in_two_files(tmp_path: Path) -> None:
    for number, name in enumerate("ab", 1):
        array = np.float32([number])
        write_gguf(
            tmp_path / f"m-{number:05}-of-00002.gguf", {name: (array, None)}, {"split.count": 2}
        )
    found = open_gguf(tmp_path / "m-00001-of-00002.gguf")
    assert {name: found.array(name).tolist() for name in found} == {"a": [1.0], "b": [2.0]}
    with pytest.raises(FormatError, match="the first of 2 files is required to be named"):
        open_gguf(tmp_path / "m-00002-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(FormatError, match="m-00002-of-00002"):
        open_gguf(tmp_path / "m-00001-of-00002.gguf")


def one(dims: list[int], kind: int = 0, offset: int = 0, name: bytes = b"v") -> bytes:
    return file_of([], [tensor(name, dims, kind, offset)], bytes(64))


BAD: dict[str, tuple[bytes, str]] = {
    "magic": (b"GGML" + GOOD[4:], "the magic 'GGUF' is required; got b'GGML'"),
    "version": (GOOD[:4] + b"\4" + GOOD[5:], "version 1, 2 or 3 is required; got 4"),
    "big endian": (
        GOOD[:4] + struct.pack(">I", 3) + GOOD[8:],
        "got 50331648 (a big-endian file; convert it)",
    ),
    "tensor count": (
        file_of(KEYS, TENSORS, DATA, counts=(2**60, 8)),
        f"tensors of at least 24 bytes each are required to fit; got {2**60} of them in",
    ),
    "key count": (
        file_of(KEYS, TENSORS, DATA, counts=(3, 2**63)),
        f"metadata keys of at least 12 bytes each are required to fit; got {2**63} of them in",
    ),
    "string": (
        file_of([key(b"k", 8, struct.pack("<Q", 2**50))], [], bytes(64)),
        f"bytes of a string of at least 1 bytes each are required to fit; got {2**50}",
    ),
    "name": (
        file_of([struct.pack("<Q", 2**17) + bytes(2**17 + 64)], [], b""),
        "a name of at most 65536 bytes is required; got 131072",
    ),
    "array": (
        file_of([key(b"k", 9, struct.pack("<IQ", 6, 2**61))], [], bytes(64)),
        "numbers of 'k' of at least 4 bytes each are required to fit",
    ),
    "strings": (
        file_of([key(b"k", 9, struct.pack("<IQ", 8, 2**59))], [], bytes(64)),
        "strings of 'k' of at least 8 bytes each are required to fit",
    ),
    "string in array": (
        file_of([key(b"k", 9, struct.pack("<IQQ", 8, 1, 2**60))], [], bytes(64)),
        "strings are required to end within the file",
    ),
    "nested array": (
        file_of([key(b"k", 9, struct.pack("<IQ", 9, 1))], [], bytes(64)),
        "numbers or strings are required in 'k'; got type 9",
    ),
    "type": (
        file_of([key(b"k", 13, bytes(8))], [], bytes(64)),
        "a known type of 'k' is required; got 13",
    ),
    "bool": (
        file_of([key(b"k", 7, b"\2")], [], bytes(64)),
        "'k' is required to be 0 or 1; got 2",
    ),
    "keys twice": (
        file_of([key(b"k", 7, b"\1")] * 2, [], b""),
        "metadata keys are required to be unique; got 'k'",
    ),
    "tensors twice": (
        file_of([], [tensor(b"v", [1], 0, 0), tensor(b"v", [1], 0, 32)], bytes(64)),
        "names of tensors are required to be unique; got 'v'",
    ),
    "axes": (one([1] * 5), "at most 4 axes of 'v' are required; got 5"),
    "sizes": (one([2**32, 2**31]), "fewer than 2^62 elements of 'v' are required"),
    "bytes": (one([2**61]), "fewer than 2^62 bytes of 'v' are required"),
    "empty and huge": (one([2**61, 4, 0]), "fewer than 2^62 elements of 'v' are required"),
    "tensor type": (one([32], kind=9), "gguf type: one of Q4_0"),
    "block": (one([33], kind=8), "rows of 'v' (gguf_q8_0) are required to be whole blocks of 32"),
    "end": (one([17]), "'v' is required to end within 128 bytes; got 132"),
    "offset": (one([1], offset=2**62), "'v' is required to end within 128 bytes"),
    "offset not aligned": (one([1], offset=4), "'v' is required to start at a multiple of 32"),
    "overlap": (
        file_of([], [tensor(b"v", [9], 0, 0), tensor(b"w", [1], 0, 32)], bytes(64)),
        "tensors are required not to overlap; 'v' ends at 132; got 'w' at 128",
    ),
    "alignment": (
        file_of([key(b"general.alignment", 4, struct.pack("<I", 48))], [], bytes(64)),
        "general.alignment is required to be a power of two ≤ 65536; got 48",
    ),
    "alignment zero": (
        file_of([key(b"general.alignment", 4, struct.pack("<I", 0))], [], bytes(64)),
        "general.alignment is required to be a power of two ≤ 65536; got 0",
    ),
    "alignment text": (
        file_of([key(b"general.alignment", 8, string(b"32"))], [], bytes(64)),
        "general.alignment is required to be a power of two ≤ 65536; got 32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case: str, tmp_path: Path) -> None:
    data, message = BAD[case]
    tracemalloc.start()
    with pytest.raises(FormatError) as caught:
        opened(tmp_path, data)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in str(caught.value)
    assert str(caught.value).startswith("gguf: 'm.gguf': ")
    assert most < 1 << 20  # nothing that is claimed is allocated


def test_cut_anywhere(tmp_path: Path) -> None:
    whole = len(GOOD)
    for length in range(whole):
        with pytest.raises(FormatError):
            opened(tmp_path, GOOD[:length])
    check(opened(tmp_path, GOOD))


def test_changed_anywhere(tmp_path: Path) -> None:
    """A changed byte gives an error, or another file whose every tensor can be read."""
    draw = random.Random(5)
    header = len(GOOD) - len(DATA)
    for place in range(header):
        for value in {GOOD[place] ^ (1 << draw.randrange(8)), draw.randrange(256), 0, 255}:
            data = GOOD[:place] + bytes([value]) + GOOD[place + 1 :]
            try:
                found = opened(tmp_path, data)
            except FormatError:
                continue
            with np.errstate(all="ignore"):
                for name in found:
                    assert found.numbers(name).size <= len(GOOD) * 2


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(FormatError, match="is empty"):
        opened(tmp_path, b"")


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        (
            {"v": (np.zeros(3, np.uint32), None)},
            {},
            "write_gguf: 'v' is required to be one of f32, f16, i8, i16, i32, i64, f64, bf16; "
            "got uint32. Convert it.",
        ),
        (
            {"v": (np.zeros(35, np.uint8), Q8_0)},
            {},
            "write_gguf: 'v' is required to be u8 rows of whole blocks of a GGUF scheme; got "
            "uint8[35] of gguf_q8_0. Encode it first.",
        ),
        (
            {},
            {"k": [1]},
            "write_gguf: 'k' is required to be a bool, int, float or str; got list. Leave it out.",
        ),
    ],
)
def test_what_cannot_be_written(tensors: Any, metadata: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(RlxError) as caught:
        write_gguf(tmp_path / "w.gguf", tensors, metadata)
    assert str(caught.value) == message
    assert not (tmp_path / "w.gguf").exists()


def safetensors(entries: dict[str, Any], data: bytes) -> bytes:
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def test_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    entries = {"w": {"dtype": "F32", "shape": [3], "data_offsets": [4, 16]}}
    path.write_bytes(safetensors(entries, bytes(4) + np.float32([1, 2, 3]).tobytes()))
    found = open_safetensors(path)
    assert list(found) == ["w"]
    assert found.array("w").tolist() == [1, 2, 3]
    with pytest.raises(RlxError) as caught:
        found.array("x")
    assert str(caught.value) == "safetensors: a tensor of the file is required; got 'x'."
    path.write_bytes(safetensors(entries, bytes(15)))
    with pytest.raises(FormatError, match="'w' is required to end within"):
        open_safetensors(path)
    entries["v"] = {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}
    path.write_bytes(safetensors(entries, bytes(16)))
    with pytest.raises(FormatError, match=r"not to overlap; 'w' ends at \d+; got 'v' at \d+\."):
        open_safetensors(path)
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(FormatError, match="a safetensors header of at most"):
        open_safetensors(path)
