"""Container files from anywhere: refused cleanly and quickly, and nothing claimed is allocated."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.dtypes import DType
from rlx.errors import FormatError, ParseError, RlxError
from rlx.ir.container import MAGIC
from rlx.ir.graph import Graph, same
from rlx.ir.serialize import load, load_params, save
from rlx.ops.arithmetic import Add
from rlx.ops.io import Param

W = np.arange(20, dtype=np.float32)
V = np.ones(3, np.int8)


def model() -> Graph:
    w = Param(name="w", dtype=DType.F32, shape=(20,))()
    v = Param(name="v", dtype=DType.I8, shape=(3,))()
    return Graph((), [w, v], [Add()(w, w), v])


def saved(tmp_path: Path) -> bytes:
    save(model(), tmp_path / "good.rlx", {"w": W, "v": V}, locations=False)
    return (tmp_path / "good.rlx").read_bytes()


def outcome(path: Path, data: bytes) -> RlxError | None:
    """Load changed bytes: a clean error, or exactly what was saved."""
    path.write_bytes(data)
    try:
        graph = load(path)
        params = load_params(path)
    except (FormatError, ParseError) as error:
        return error
    assert same(graph, model())
    np.testing.assert_array_equal(params["w"], W)
    np.testing.assert_array_equal(params["v"], V)
    return None


def test_cut_at_any_byte(tmp_path: Path) -> None:
    data = saved(tmp_path)
    for length in range(len(data)):
        assert outcome(tmp_path / "f.rlx", data[:length]) is not None
    assert outcome(tmp_path / "f.rlx", data + b"\0") is not None
    assert outcome(tmp_path / "f.rlx", data) is None


def test_any_changed_byte(tmp_path: Path) -> None:
    data = saved(tmp_path)
    chance = random.Random(0)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << chance.randrange(8)
        assert outcome(tmp_path / "f.rlx", bytes(changed)) is not None, at


def test_random_damage(tmp_path: Path) -> None:
    data = saved(tmp_path)
    chance = random.Random(1)
    start = time.perf_counter()
    for _ in range(500):
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 5)):
            at, length = chance.randrange(len(changed)), chance.randrange(12)
            changed[at : at + length] = chance.randbytes(chance.randrange(12))
        outcome(tmp_path / "f.rlx", bytes(changed))
    assert time.perf_counter() - start < 60  # seconds; it takes about one


def forged(header: Any, sections: bytes, *, raw: bytes | None = None) -> bytes:
    """A container whose checksums are right, whatever the header says."""
    encoded = json.dumps(header).encode() if raw is None else raw
    prefix = struct.pack("<8sIIQ32s8x", MAGIC, 1, 0, len(encoded), hashlib.sha256(encoded).digest())
    start = prefix + encoded
    return start + b"\0" * (-len(start) % 64) + sections


def parts(tmp_path: Path) -> tuple[dict[str, Any], bytes]:
    data = saved(tmp_path)
    (length,) = struct.unpack("<Q", data[16:24])
    return json.loads(data[64 : 64 + length]), data[-(-(64 + length) // 64) * 64 :]


def test_forging_works(tmp_path: Path) -> None:
    assert outcome(tmp_path / "f.rlx", forged(*parts(tmp_path))) is None


def _set(*keys: Any) -> Callable[[Any, Any], None]:
    def change(header: Any, value: Any) -> None:
        for key in keys[:-1]:
            header = header[key]
        header[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("text",), 3),
        (("text", "length"), 2**60),
        (("text", "length"), -1),
        (("text", "length"), 1.5),
        (("text", "length"), True),
        (("text", "length"), 10),
        (("text", "sha256"), "0" * 64),
        (("text", "sha256"), None),
        (("tensors",), {}),
        (("tensors",), [3]),
        (("tensors",), []),
        (("tensors", 0, "name"), "v"),
        (("tensors", 0, "name"), "unknown"),
        (("tensors", 0, "name"), 3),
        (("tensors", 0, "dtype"), "f64"),
        (("tensors", 0, "dtype"), "f31"),
        (("tensors", 0, "dtype"), "token"),
        (("tensors", 0, "dtype"), []),
        (("tensors", 0, "shape"), [2**60]),
        (("tensors", 0, "shape"), [2**40, 2**40]),
        (("tensors", 0, "shape"), [10**1000]),
        (("tensors", 0, "shape"), [-20]),
        (("tensors", 0, "shape"), [20.0]),
        (("tensors", 0, "shape"), [[20]]),
        (("tensors", 0, "shape"), [1] * 1000),
        (("tensors", 0, "shape"), [0, 2**61]),
        (("tensors", 0, "offset"), 0),
        (("tensors", 0, "offset"), 1),
        (("tensors", 0, "offset"), 2**61),
        (("tensors", 0, "offset"), -64),
        (("tensors", 1, "offset"), 320),
        (("tensors", 0, "crc32"), 2**40),
        (("tensors", 0, "crc32"), 1),
        (("tensors", 0, "more"), 1),
        (("tensors", 0, "file"), "/etc/passwd"),
        (("tensors", 0, "file"), "../secret"),
        (("tensors", 0, "file"), "sub/../../secret"),
        (("tensors", 0, "file"), "sub\\..\\..\\secret"),
        (("tensors", 0, "file"), "C:\\secret"),
        (("tensors", 0, "file"), "with\0zero"),
        (("tensors", 0, "file"), "."),
        (("tensors", 0, "file"), "x" * 100_000),
        (("tensors", 0, "tensor"), "w"),
        (("more",), 1),
    ],
    ids=str,
)
def test_forged_headers(tmp_path: Path, keys: tuple[Any, ...], value: Any) -> None:
    header, sections = parts(tmp_path)
    _set(*keys)(header, value)
    data = forged(header, sections)
    tracemalloc.start()
    error = outcome(tmp_path / "f.rlx", data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(error, FormatError)
    assert len(str(error)) < 2000
    assert peak < 50e6  # bytes


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"\xff\xfe{}",
        b"[" * 1_000_000,
        b'{"text":' * 100_000,
        b"1" * 1_000_000,
        b'{"text": NaN, "tensors": []}',
        b'{"text": {}, "text": {}, "tensors": []}',
        b'{"text": {"length": 1e999, "sha256": ""}, "tensors": []}',
    ],
    ids=range(9),
)
def test_headers_that_are_no_json(tmp_path: Path, raw: bytes) -> None:
    assert isinstance(outcome(tmp_path / "f.rlx", forged(None, b"", raw=raw)), FormatError)


def test_a_header_that_is_too_long(tmp_path: Path) -> None:
    prefix = struct.pack("<8sIIQ32s8x", MAGIC, 1, 0, 2**60, bytes(32))
    assert isinstance(outcome(tmp_path / "f.rlx", prefix + bytes(1000)), FormatError)


def test_too_many_params(tmp_path: Path) -> None:
    header, sections = parts(tmp_path)
    entry = b'{"name":"w","dtype":"f32","shape":[0],"crc32":0,"offset":0}'
    text = json.dumps(header["text"]).encode()
    raw = b'{"text":' + text + b',"tensors":[' + b",".join([entry] * 200_000) + b"]}"
    error = outcome(tmp_path / "f.rlx", forged(None, sections, raw=raw))
    assert "at most 100000 tensors" in str(error)
    raw = b'{"text":' + text + b',"tensors":[' + b",".join([entry] * 600_000) + b"]}"
    error = outcome(tmp_path / "f.rlx", forged(None, sections, raw=raw))
    assert "claims a header" in str(error)


def with_text(tmp_path: Path, text: bytes) -> RlxError | None:
    header = {"text": {"length": len(text), "sha256": hashlib.sha256(text).hexdigest()}}
    return outcome(tmp_path / "f.rlx", forged({**header, "tensors": []}, text))


def test_graph_texts(tmp_path: Path) -> None:
    assert isinstance(with_text(tmp_path, b"\xff"), FormatError)
    error = with_text(tmp_path, b"format 1\n\ngraph 3")
    assert isinstance(error, ParseError)
    assert (error.line, error.column) == (3, 7)
    assert isinstance(with_text(tmp_path, b"format 2\n"), ParseError)


def test_bools_are_checked(tmp_path: Path) -> None:
    p = Param(name="p", dtype=DType.BOOL, shape=(4,))()
    array = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    save(Graph((), [p], [p]), tmp_path / "b.rlx", {"p": array})
    with pytest.raises(FormatError, match="a bool of 0 or 1"):
        load_params(tmp_path / "b.rlx")


def test_messages_say_what_is_wrong(tmp_path: Path) -> None:
    data = saved(tmp_path)
    assert "an RLX container is required; " in str(outcome(tmp_path / "f", b"PK" + data))
    newer = data[:8] + struct.pack("<I", 2) + data[12:]
    assert "version 1; got version 2. Read it with a newer" in str(outcome(tmp_path / "f", newer))
    assert "It is cut or damaged" in str(outcome(tmp_path / "f", data[:-1]))
    assert "the checksum of 'v' is wrong" in str(outcome(tmp_path / "f", data[:-1] + b"\7"))
