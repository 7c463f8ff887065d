"""Containers: what is saved is loaded, in place; what does not fit the graph is refused."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx import dims
from rlx.dtypes import DType
from rlx.errors import FormatError
from rlx.ir.attributes import Opaque
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, make_node, same
from rlx.ir.location import Location
from rlx.ir.references import TensorRef
from rlx.ir.serialize import load, load_params, save
from rlx.ir.text import print_graph
from rlx.ops.control_flow import Call
from rlx.ops.external import External
from rlx.ops.io import Input, Param
from rlx.types import TensorType

PARAMS: dict[str, Any] = {
    "w": np.arange(24, dtype=np.float32).reshape(8, 3),
    "layer/bias": np.arange(5).astype(ml_dtypes.bfloat16),
    "empty": np.zeros((0, 4), np.float32),
    "q": np.array([1, -1, -2], ml_dtypes.int4),
    "mask": np.array([True, False]),
    "scalar": np.array(1 + 2j, np.complex64),
}


def model() -> Graph:
    b = GraphBuilder("model")
    x = b.input("x", "f32[batch, 3]")
    leaves = [
        b.param(name, TensorType(DType[_label(a).upper()], a.shape)) for name, a in PARAMS.items()
    ]
    return b.build(x + 1.0, *leaves)


def _label(array: Any) -> str:
    names = {"float32": "f32", "bfloat16": "bf16", "int4": "i4", "bool": "bool", "complex64": "c64"}
    return names[array.dtype.name]


def refused(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(FormatError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_graph_and_params_come_back(tmp_path: Path) -> None:
    graph = model()
    path = tmp_path / "m.rlx"
    save(graph, path, PARAMS)
    read = load(path)
    assert same(read, graph)
    assert print_graph(read, locations=True) == print_graph(graph, locations=True)
    arrays = load_params(path)
    assert list(arrays) == list(PARAMS)
    for name, wanted in PARAMS.items():
        found = arrays[name]
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert found.tobytes() == wanted.tobytes()
        assert not found.flags.writeable
        assert found.size == 0 or found.ctypes.data % 64 == 0
        assert found.base is not None  # a view, no copy


def test_the_graph_alone(tmp_path: Path) -> None:
    graph = model()
    save(graph, tmp_path / "m.rlx", locations=False)
    assert same(load(os.fspath(tmp_path / "m.rlx")), graph)
    assert load_params(tmp_path / "m.rlx") == {}
    assert not load(tmp_path / "m.rlx").outputs[0].node.location


def test_symbolic_params_take_any_size(tmp_path: Path) -> None:
    p = Param(name="p", dtype=DType.F32, shape=(dims.symbol("n"), 2))()
    graph = Graph((), [p], [p])
    save(graph, tmp_path / "m.rlx", {"p": np.ones((7, 2), np.float32)})
    load(tmp_path / "m.rlx")
    assert "required to be f32[n, 2]; got f32[7, 3]" in refused(
        save, graph, tmp_path / "m.rlx", {"p": np.ones((7, 3), np.float32)}
    )


def test_order_of_memory_does_not_matter(tmp_path: Path) -> None:
    p = Param(name="p", dtype=DType.F32, shape=(3, 2))()
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    save(Graph((), [p], [p]), tmp_path / "m.rlx", {"p": array})
    np.testing.assert_array_equal(load_params(tmp_path / "m.rlx")["p"], array)


def test_all_wrong_params_at_once(tmp_path: Path) -> None:
    params = {
        "W": np.zeros(3, np.float32),
        "w": np.zeros((3, 8), np.float32),
        "q": np.zeros(3, np.int8),
        "mask": np.array(["a"]),
        "empty": None,
        "scalar": None,
    }
    text = refused(save, model(), tmp_path / "m.rlx", params)
    assert "param 'layer/bias' is required: bf16[5]; pass None to leave it out" in text
    assert "param 'W' is unknown" in text
    assert "Did you mean 'w'?" in text
    assert "param 'w' is required to be f32[8, 3]; got f32[3, 8]" in text
    assert "param 'q' is required to be i4[3]; got i8[3]" in text
    assert "param 'mask': dtype: <U1 has no counterpart" in text
    assert "param 'empty'" not in text
    assert os.listdir(tmp_path) == []


def test_nodes_that_exist_in_memory_only(tmp_path: Path) -> None:
    def node(name: str, line: int, **fields: Any) -> Graph:
        x = Input(name="x", dtype=DType.F32)()
        op = External(name=name, dtypes=(DType.F32,), shapes=((),), **fields)
        return Graph([x], (), make_node(op, [x], Location("model.py", line)).results)

    live = Opaque(print)
    x = Input(name="x", dtype=DType.F32)()
    (y,) = make_node(Call(body=node("pure_callback", 3, live=live)), [x]).results
    (z,) = make_node(Call(body=node("io_callback", 8, live=live)), [y]).results
    text = refused(save, Graph([x], (), [z]), tmp_path / "m.rlx")
    assert "'pure_callback' at model.py:3" in text
    assert "'io_callback' at model.py:8" in text
    with_text = node("fft", 3, live=live, stablehlo=(("cpu", "module {}"),))
    save(with_text, tmp_path / "m.rlx")
    op = load(tmp_path / "m.rlx").outputs[0].node.op
    assert isinstance(op, External)
    assert op.live is None
    assert op.stablehlo == (("cpu", "module {}"),)


def test_saving_over_a_file_in_use(tmp_path: Path) -> None:
    p = Param(name="p", dtype=DType.F32, shape=(2,))()
    graph = Graph((), [p], [p])
    path = tmp_path / "m.rlx"
    save(graph, path, {"p": np.array([1, 2], np.float32)})
    old = load_params(path)
    save(graph, path, {"p": old["p"] * 10})
    assert old["p"].tolist() == [1, 2]
    assert load_params(path)["p"].tolist() == [10, 20]
    assert os.listdir(tmp_path) == ["m.rlx"]


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    place = tmp_path / "no" / "m.rlx"
    assert refused(save, model(), place) == (
        f"save: {str(place)!r} cannot be written: [Errno 2] No such file or directory."
    )
    assert "cannot be written" in refused(save, model(), tmp_path)
    assert os.listdir(tmp_path) == []
    assert "cannot be read" in refused(load, tmp_path / "m.rlx")
    assert "regular file is required" in refused(load, tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    assert "is empty" in refused(load, tmp_path / "empty")
    os.mkfifo(tmp_path / "pipe")
    assert "regular file is required" in refused(load, tmp_path / "pipe")


def safetensors(path: Path, tensors: dict[str, Any], **changes: Any) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    data = b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
            **changes,
        }
        data += raw
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def one_param() -> Graph:
    p = Param(name="p", dtype=DType.F32, shape=(2, 2))()
    return Graph((), [p], [p])


def test_params_by_reference(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    wanted = np.arange(4, dtype=np.float32).reshape(2, 2)
    safetensors(tmp_path / "sub" / "w.safetensors", {"a": wanted + 1, "b": wanted})
    (tmp_path / "raw.bin").write_bytes(b"12345678" + wanted.tobytes())
    path = tmp_path / "m.rlx"
    refs = [
        TensorRef(tmp_path / "sub" / "w.safetensors", "f32", (2, 2), tensor="b"),  # type: ignore[arg-type]
        TensorRef(str(tmp_path / "raw.bin"), DType.F32, (2, 2), offset=8),
    ]
    for ref in refs:
        save(one_param(), path, {"p": ref})
        assert path.stat().st_size < 1000
        np.testing.assert_array_equal(load_params(path)["p"], wanted)
    moved = tmp_path / "sub" / "moved"
    moved.mkdir()
    for name in ("m.rlx", "raw.bin"):
        (tmp_path / name).rename(moved / name)
    np.testing.assert_array_equal(load_params(moved / "m.rlx")["p"], wanted)
    (moved / "raw.bin").write_bytes(b"12345678" + (wanted + 1).tobytes())
    assert "checksum of 'p' is wrong" in refused(load_params, moved / "m.rlx")
    assert load_params(moved / "m.rlx", check=False)["p"][0, 0] == 1
    (moved / "raw.bin").write_bytes(b"123")
    assert "claims bytes 8 to 24" in refused(load_params, moved / "m.rlx")


def test_references_that_are_refused(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "raw.bin").write_bytes(bytes(16))
    (inside / "link.bin").symlink_to(tmp_path / "raw.bin")
    safetensors(inside / "w.safetensors", {"a": np.zeros((3, 2), np.float32)})
    path = inside / "m.rlx"

    def ref(name: str, **fields: Any) -> str:
        return refused(save, one_param(), path, {"p": TensorRef(name, DType.F32, (2, 2), **fields)})

    assert "container's folder" in ref(str(tmp_path / "raw.bin"), offset=0)
    assert "container's folder" in ref(str(inside / "link.bin"), offset=0)
    assert "cannot be read" in ref(str(inside / "none.bin"), offset=0)
    assert "regular file" in ref(str(inside), offset=0)
    assert "required to be f32[2, 2]; 'w.safetensors' has 'a' as f32[3, 2]" in ref(
        str(inside / "w.safetensors"), tensor="a"
    )
    assert "does not hold. Did you mean 'a'?" in ref(str(inside / "w.safetensors"), tensor="A")
    assert "either an offset ≥ 0 or a tensor's name" in refused(
        TensorRef, "f", DType.F32, (), offset=1, tensor="a"
    )
    assert "either an offset ≥ 0 or a tensor's name" in refused(TensorRef, "f", DType.F32, ())
    assert "dims are required to be numbers" in refused(
        TensorRef, "f", DType.F32, (dims.symbol("b"),), offset=0
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": 3},
        {"shape": 3},
        {"shape": [-1]},
        {"shape": [2**61]},
        {"data_offsets": None},
        {"data_offsets": []},
        {"data_offsets": [0]},
        {"data_offsets": [0, 2**62]},
        {"data_offsets": [-4, 12]},
        {"more": 1},
    ],
)
def test_damaged_safetensors(tmp_path: Path, changes: dict[str, Any]) -> None:
    safetensors(tmp_path / "w.safetensors", {"a": np.zeros((2, 2), np.float32)}, **changes)
    ref = TensorRef(str(tmp_path / "w.safetensors"), DType.F32, (2, 2), tensor="a")
    assert "w.safetensors" in refused(save, one_param(), tmp_path / "m.rlx", {"p": ref})


@pytest.mark.parametrize(
    "data", [b"", b"123", struct.pack("<Q", 2**60), struct.pack("<Q", 2) + b"[]"]
)
def test_files_that_are_no_safetensors(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "w").write_bytes(data)
    ref = TensorRef(str(tmp_path / "w"), DType.F32, (2, 2), tensor="a")
    refused(save, one_param(), tmp_path / "m.rlx", {"p": ref})


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    assert "traced.graph" in refused(save, object(), tmp_path / "m.rlx")


def test_a_graph_is_pickled_as_its_text() -> None:
    b = GraphBuilder("pickled")
    x, w = b.input("x", "f32[b, 4]"), b.param("w", "f32[4, 3]")
    graph = b.build((x @ w).softmax(), x + float("nan"))
    again = pickle.loads(pickle.dumps(graph))
    assert same(again, graph)
    assert [n.location for n in again.nodes()] == [n.location for n in graph.nodes()]
    assert copy.copy(graph) is graph
    with pytest.raises(FormatError, match=r"^pickle: a whole graph is required; got <Value .*save"):
        pickle.dumps(x)
    live = External(name="io_callback", dtypes=(DType.F32,), shapes=((),), live=Opaque(object()))
    opaque = Graph((), (), make_node(live, ()).results)
    with pytest.raises(FormatError, match=re.escape("pickle: every opaque node")):
        pickle.dumps(opaque)
