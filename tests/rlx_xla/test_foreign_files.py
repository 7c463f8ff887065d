"""Files that are not what was asked for: every loader says what they are and what to do."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import FormatError
from rlx.quant.gguf import open_gguf
from rlx.quant.safetensors import open_safetensors
from rlx_xla.generation import LanguageModel
from rlx_xla.runtime.program_cache import SUFFIX, ProgramCache, ProgramKey


def _graph() -> rlx.Graph:
    b = rlx.GraphBuilder("mlp")
    return b.build(b.input("x", "f32[2, 8]") @ b.param("w", "f32[8, 4]"))


def _zipped(parts: Mapping[str, Any]) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in parts.items():
            file.writestr(name, data)
    return whole.getvalue()


def _numpy(save: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    whole = io.BytesIO()
    save(whole, *args, **kwargs)
    return whole.getvalue()


def _safetensors() -> bytes:
    head = json.dumps({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}).encode()
    return struct.pack("<Q", len(head)) + head + b"\0\0"


EXPORTED = bytes(jax.export.export(jax.jit(lambda x: x + 1))(jnp.ones(3)).serialize())
FILES: dict[str, tuple[bytes, str]] = {
    "array": (_numpy(np.save, np.ones(3)), "an array of numpy.save. numpy.load reads it."),
    "arrays": (_numpy(np.savez, a=np.ones(3)), "an archive of numpy.savez. numpy.load reads it."),
    "checkpoint": (_zipped({"m/data.pkl": b""}), "a checkpoint of PyTorch. Save its tensors as "),
    "archive": (_zipped({"a.txt": b""}), "a zip archive of something else. "),
    "pickle": (pickle.dumps({"a": 1}), "a pickle, which may run code. Save its arrays by "),
    "gzip": (gzip.compress(b"hi"), "packed by gzip. Unpack it first."),
    "library": (b"\x7fELF\2\1\1" + bytes(99), "a program or library of Linux. "),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(99), "an HDF5 file. Read its arrays with h5py, "),
    "image": (b"\x89PNG\r\n\x1a\n" + bytes(99), "a PNG image. "),
    "page": (b"\n<!DOCTYPE html><html>404</html>", "a web page. Download the file itself."),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS in place "),
    "old model": (b"lmgg" + bytes(50), "a model of llama.cpp from before GGUF. Convert it to "),
    "text of a graph": (str(_graph()).encode(), "the text of a graph. rlx.parse reads its text."),
    "json": (b'{"model_type": "llama"}', "JSON. "),
    "zeros": (bytes(5000), "nothing but zeros. It was not written to its end: write it again."),
    "bytecode": (b"ML\xefR\x0dMLIR" + bytes(9), "MLIR bytecode. rlx_xla.from_stablehlo reads "),
    "module": (rlx_xla.stablehlo(_graph()).encode(), "StableHLO text. rlx_xla.from_stablehlo "),
    "gguf": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "a GGUF file. rlx_xla.generation.Lang"),
    "safetensors": (_safetensors(), "a safetensors file. rlx_xla.generation.LanguageModel reads "),
    "export": (EXPORTED, "an exported program. rlx_xla.load_export reads it."),
    "artifact": (_zipped({"artifact.json": b"{}"}), "an artifact of rlx_xla.aot. rlx_xla.load_a"),
    "graph": (b"\x89RLX\r\n\x1a\n" + bytes(64), "a graph of rlx.save. rlx.load reads it."),
    "noise": (b"\xfe\xfd\xfc" + os.urandom(99), "of a kind that is not known, and begins with b'"),
}
LOADERS: dict[str, tuple[Callable[[str], Any], str, str, set[str]]] = {
    "load": (rlx.load, "load", "an RLX container", {"graph"}),
    "load_params": (rlx.load_params, "load_params", "an RLX container", {"graph"}),
    "load_artifact": (
        rlx_xla.load_artifact, "load_artifact", "a file of rlx_xla.aot", {"artifact"},
    ),
    "load_export": (
        rlx_xla.load_export, "load_export", "a file of Export.save or of jax.export", {"export"},
    ),
    "gguf": (open_gguf, "gguf", "a GGUF file", {"gguf", "noise"}),
    "model": (LanguageModel, "gguf", "a GGUF file", {"gguf", "noise"}),
    "safetensors": (
        open_safetensors, "safetensors", "a safetensors file", {"safetensors", "noise"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", LOADERS)
def test_loaders_say_what_a_file_is(name: str, kind: str, tmp_path: Path) -> None:
    load, where, wanted, own = LOADERS[name]
    data, found = FILES[kind]
    if kind in own:
        return
    path = tmp_path / "given"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            load(str(path))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.label == "file"
    head, _, rest = str(caught.value).partition(" is required; ")
    assert head == f"{where} [file]: {wanted}"
    assert rest.split(" is ", 1)[0] in (repr(str(path)), "'given'")
    assert rest.split(" is ", 1)[1].startswith(found)
    assert rest.endswith(".")


@pytest.mark.parametrize("name", LOADERS)
def test_loaders_of_no_file(name: str, tmp_path: Path) -> None:
    load, where, _, _ = LOADERS[name]
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    folder = "a regular file is required; '{}' is a folder. Name a file."
    wanted = {
        "empty": "a whole file is required; '{}' is empty. Write it again.",
        "pipe": "a regular file is required; '{}' is none. Name a file.",
        "none": "a file is required; '{}' cannot be read: No such file or directory. Check its "
        "name and its permissions.",
        ".": folder,
    }
    for file, text in wanted.items():
        if name == "model" and file == ".":
            continue  # it reads folders
        path = str(tmp_path) if file == "." else str(tmp_path / file)
        with pytest.raises(FormatError) as caught:
            load(path)
        assert str(caught.value) == f"{where} [file]: {text.format(path)}"
        assert caught.value.label == "file"


def test_exports_that_are_cut_or_given_as_bytes(tmp_path: Path) -> None:
    wanted = "a file of Export.save or of jax.export is required"
    cut = EXPORTED[: len(EXPORTED) // 2]
    (tmp_path / "cut").write_bytes(cut)
    with pytest.raises(FormatError) as caught:
        rlx_xla.load_export(tmp_path / "cut")
    assert str(caught.value) == (
        f"load_export [file]: {wanted}; {str(tmp_path / 'cut')!r} is damaged: its {len(cut)} bytes "
        "do not hold what their lengths say. Write it again."
    )
    with pytest.raises(FormatError) as caught:
        rlx_xla.load_export(FILES["gguf"][0])
    assert str(caught.value) == (
        f"load_export [file]: {wanted}; what was given is a GGUF file. "
        "rlx_xla.generation.LanguageModel reads it."
    )
    rlx_xla.export(_graph(), ["cpu"]).save(tmp_path / "changed")
    data = bytearray((tmp_path / "changed").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "changed").write_bytes(data)
    with pytest.raises(FormatError, match="is damaged: its checksum is that of other bytes"):
        rlx_xla.load_export(tmp_path / "changed")


@pytest.mark.parametrize("kind", ["gzip", "page", "pointer", "json", "text of a graph", "gguf"])
def test_bytes_that_are_no_module(kind: str) -> None:
    data, found = FILES[kind]
    with pytest.raises(FormatError) as caught:
        rlx_xla.from_stablehlo(data)
    assert str(caught.value).startswith(
        "from_stablehlo [file]: StableHLO text, MLIR bytecode, a portable artifact or a jax.export "
        f"file is required; what was given is {found}"
    )
    with pytest.raises(FormatError, match="what was given is empty"):
        rlx_xla.from_stablehlo(b"")


DESCRIBED = {
    "format": 1, "name": "n", "target": "tpu:v5e:1x1", "inputs": [], "params": [], "outputs": [],
    "memory": {}, "versions": {}, "sha256": "0",
}  # fmt: skip
PARTS = {"executable.bin": b"", "module.mlir": b"", "module.hlo": b""}
ARTIFACTS: dict[str, tuple[dict[str, Any], str]] = {
    "a part less": (
        {"artifact.json": b"{}", "executable.bin": b""},
        "is damaged: it lacks module.mlir, module.hlo. Compile it again.",
    ),
    "a list": (
        {"artifact.json": b"[]", **PARTS},
        "is damaged: artifact.json holds no object but list. Compile it again.",
    ),
    "no keys": (
        {"artifact.json": json.dumps({"format": 1, "name": "n"}), **PARTS},
        "is damaged: artifact.json lacks target, inputs, params, outputs, memory, versions, "
        "sha256. Compile it again.",
    ),
    "another format": (
        {"artifact.json": json.dumps(DESCRIBED | {"format": 9}), **PARTS},
        "is of format 9. Compile it again.",
    ),
    "other code": (
        {"artifact.json": json.dumps(DESCRIBED), **PARTS},
        "is damaged: its code has another checksum. Compile it again.",
    ),
    "no JSON": ({"artifact.json": b"[" * 100_000, **PARTS}, "is damaged: it does not read: "),
    "a bomb": (
        {"artifact.json": json.dumps(DESCRIBED), **PARTS, "module.hlo": bytes(100 << 20)},
        "is damaged: module.hlo claims 104,857,600 of at most 67,108,864 bytes. Compile it again.",
    ),
    "a bomb of words": (
        {"artifact.json": bytes(20 << 20), **PARTS},
        "is damaged: artifact.json claims 20,971,520 of at most 16,777,216 bytes. Compile it again",
    ),
}


@pytest.mark.parametrize("name", ARTIFACTS)
def test_artifacts_that_claim_what_is_not_so(name: str, tmp_path: Path) -> None:
    parts, found = ARTIFACTS[name]
    path = tmp_path / "f.rlxa"
    path.write_bytes(_zipped(parts))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            rlx_xla.load_artifact(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith("load_artifact [file]: a file of rlx_xla.aot ")
    assert f" is required; {str(path)!r} {found}" in str(caught.value)


def test_strangers_in_the_compile_cache_are_passed_over(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)
    key = ProgramKey({"a": "b"}, "graph")
    cache.put(key, b"program", "name", 1.0)
    (good,) = tmp_path.glob(f"*{SUFFIX}")
    whole = good.read_bytes()
    for number, (data, _) in enumerate(FILES.values()):
        (tmp_path / f"{number}{SUFFIX}").write_bytes(data)
    (tmp_path / f"folder{SUFFIX}").mkdir()
    os.mkfifo(tmp_path / f"pipe{SUFFIX}")
    assert [entry.name for entry in cache.entries()] == ["name"]
    assert cache.get(key) == b"program"
    good.write_bytes(whole[:-1])
    assert cache.get(key) is None
