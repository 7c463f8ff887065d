"""``rlx_xla.aot``: a program compiled where its device is not, saved, and run where it is.

The file is a zip of ``artifact.json`` (names, types, target, versions), ``executable.bin`` (the
vendor's machine code), ``module.mlir`` and ``module.hlo``. Machine code runs: load artifacts that
you made, or that come from someone whose programs you would run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import zipfile
import zlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast, final

import jax
import numpy as np

from rlx.errors import (
    CompileError,
    DeviceError,
    FormatError,
    LoweringError,
    RlxError,
    RunError,
)
from rlx.ir.container import map_file, written_whole
from rlx.ir.foreign_files import START, wrong_file
from rlx.options.compile import CompileOptions
from rlx.types import TensorType, as_type
from rlx_xla._jax_compat import client
from rlx_xla.aot.compiling import compile_text
from rlx_xla.aot.lowering import graph_of, lower_for
from rlx_xla.aot.targets import parse_target
from rlx_xla.runtime.client import find_device, from_device, to_device

FORMAT = 1
_TO_RUN: dict[str, dict[str, Any]] = {"cuda": {"xla_gpu_enable_triton_gemm": False}}
"""Without a GPU nothing is tuned, and XLA's own products of matrices then have tiny tiles: the
vendor's library is quicker."""

_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")

_PARTS = ("artifact.json", "executable.bin", "module.mlir", "module.hlo")
_KEYS = (
    "format", "name", "target", "inputs", "params", "outputs", "memory", "versions", "sha256",
)  # fmt: skip
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    LookupError,
    RuntimeError,  # encrypted, packed in a way that Python does not know, or nested too deeply
    ValueError,  # an offset before the beginning, no JSON, no UTF-8
    TypeError,
    AttributeError,
    OverflowError,
    RlxError,
)
"""What is raised for zip files that are damaged, and for what they say."""

_ZIP = b"PK\x03\x04"
_WANTED = "a file of rlx_xla.aot"
_AGAIN = "Compile it again."
_MOST = 1 << 34
"""Largest part of an artifact that is read, in bytes."""

_MOST_DESCRIBED = 1 << 24
"""Largest description, in bytes."""

_FREE, _MOST_GROWTH = 1 << 26, 256
"""Bytes that a part may unpack to in any file, and in how many of the file's bytes."""


@final
@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A program for one kind of device.

    Attributes:
        name: the program's.
        target: what it was compiled for.
        inputs, params: names and types of what it takes, in order, inputs first.
        outputs: types of what it gives.
        hlo: the optimised program as text.
        stablehlo: what was compiled.
        serialized: machine code.
        memory: bytes by kind.
        versions: of jax and jaxlib that compiled it.
    """

    name: str
    target: str
    inputs: tuple[tuple[str, TensorType], ...]
    params: tuple[tuple[str, TensorType], ...]
    outputs: tuple[TensorType, ...]
    hlo: str = field(repr=False)
    stablehlo: str = field(repr=False)
    serialized: bytes = field(repr=False)
    memory: Mapping[str, int]
    versions: Mapping[str, str]

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all.

        Raises:
            FormatError: the system refuses.
        """
        described = {
            "format": FORMAT,
            "name": self.name,
            "target": self.target,
            "inputs": [[name, str(type_)] for name, type_ in self.inputs],
            "params": [[name, str(type_)] for name, type_ in self.params],
            "outputs": [str(type_) for type_ in self.outputs],
            "memory": dict(self.memory),
            "versions": dict(self.versions),
            "sha256": hashlib.sha256(self.serialized).hexdigest(),
        }
        with (
            written_whole(path) as whole,
            zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as file,
        ):
            file.writestr("artifact.json", json.dumps(described, indent=1))
            file.writestr("executable.bin", self.serialized)
            file.writestr("module.mlir", self.stablehlo)
            file.writestr("module.hlo", self.hlo)


def aot(
    fn_or_graph: Any,
    *args: Any,
    target: str,
    params: Any = (),
    options: CompileOptions | None = None,
    timeout: float = 600.0,
    **kwargs: Any,
) -> Artifact:
    """Compile for an accelerator that need not be there.

    Args:
        fn_or_graph: a JAX function, a traced function, a module or a graph.
        args: the function's arguments: arrays, ``jax.ShapeDtypeStruct`` or specs.
        target: such as ``tpu:v5e:1x1`` or ``cuda:h100``.
        params: arguments that are params, as in ``trace``.
        options: of the compile.
        timeout: seconds after which the target's compiler is stopped.
        kwargs: the function's keyword arguments.

    Raises:
        DeviceError: the target is unknown, or its compiler is not installed.
        LoweringError: ops that nothing carries out there; all of them with their lines.
        CompileError: the compiler refused, aborted or ran out of time or memory.
    """
    where = parse_target(target)
    chosen = CompileOptions() if options is None else options
    lowered = lower_for(graph_of("aot", fn_or_graph, args, kwargs, params), where, chosen)
    if not lowered.text:
        listing = lowered.refused or "\n".join(
            f"no lowering for op {found.node.op.op_name!r} on {where.platform!r}{found.where}"
            for found in lowered.unsupported
        )
        raise LoweringError(listing)
    defaults = _TO_RUN.get(where.platform, {})
    made = compile_text(
        lowered.text,
        where,
        partitions=lowered.partitions,
        timeout=timeout,
        compiler_options={**defaults, **chosen.compiler_options},
    )
    if made.failure is not None:
        raise CompileError(
            f"aot {lowered.source.name}: the compiler for {where.name} is required to accept the "
            f"program; {made.failure}. rlx_xla.preflight says more."
        )
    plan = lowered.lir.plan
    return Artifact(
        name=lowered.source.name,
        target=where.name,
        inputs=plan.inputs,
        params=plan.params,
        outputs=plan.outputs,
        hlo=made.hlo,
        stablehlo=lowered.text,
        serialized=made.serialized,
        memory=dict(made.memory),
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("jax", "jaxlib")}


def read_artifact(path: str | Path) -> Artifact:
    """Read a file that ``Artifact.save`` wrote; nothing is run.

    Raises:
        FormatError: the file is damaged, or of another format.
    """
    name = os.fspath(path)
    mapped = map_file("load_artifact", name)
    if not mapped[: len(_ZIP)] == _ZIP:
        raise wrong_file("load_artifact", _WANTED, repr(name), mapped[:START], _AGAIN)
    with _damage(name), zipfile.ZipFile(name) as file:
        sizes = {info.filename: info.file_size for info in file.infolist()}
        if "artifact.json" not in sizes and not any(part in sizes for part in _PARTS):
            raise wrong_file("load_artifact", _WANTED, repr(name), mapped[:START], _AGAIN)
        lacking = [part for part in _PARTS if part not in sizes]
        if lacking:
            raise _unreadable(name, f"it lacks {', '.join(lacking)}")
        most = min(_MOST, max(_FREE, _MOST_GROWTH * len(mapped)))
        for part, limit in (("artifact.json", _MOST_DESCRIBED), *((p, most) for p in _PARTS)):
            if sizes[part] > limit:
                raise _unreadable(name, f"{part} claims {sizes[part]:,} of at most {limit:,} bytes")
        described = _described(name, file.read("artifact.json"))  # before what is large
        code = file.read("executable.bin")
        made = Artifact(
            name=str(described["name"]),
            target=parse_target(described["target"]).name,
            inputs=tuple((str(n), as_type(t)) for n, t in described["inputs"]),
            params=tuple((str(n), as_type(t)) for n, t in described["params"]),
            outputs=tuple(as_type(t) for t in described["outputs"]),
            hlo=file.read("module.hlo").decode(),
            stablehlo=file.read("module.mlir").decode(),
            serialized=code,
            memory={str(k): int(v) for k, v in described["memory"].items()},
            versions={str(k): str(v) for k, v in described["versions"].items()},
        )
    if described["sha256"] != _digest(code):
        raise _unreadable(name, "its code has another checksum")
    return made


def _described(name: str, text: bytes) -> dict[str, Any]:
    """What ``artifact.json`` says, its keys checked.

    Raises:
        FormatError: it is no description, or one of another format.
    """
    found: Any = json.loads(text)
    if not isinstance(found, dict):
        raise _unreadable(name, f"artifact.json holds no object but {type(found).__name__}")
    described = cast("dict[str, Any]", found)
    lacking = [key for key in _KEYS if key not in described]
    if lacking:
        raise _unreadable(name, f"artifact.json lacks {', '.join(lacking)}")
    if described["format"] != FORMAT:
        raise FormatError(
            f"load_artifact [file]: {_WANTED} of format {FORMAT} is required; {name!r} is of "
            f"format {described['format']!r:.40}. {_AGAIN}",
            label="file",
        )
    return described


@contextlib.contextmanager
def _damage(name: str) -> Generator[None]:
    """Tell of what Python and our own readers raise for files that are damaged."""
    try:
        yield
    except FormatError:
        raise
    except _DAMAGED as error:
        raise _unreadable(name, f"it does not read: {error}") from error


def _unreadable(name: str, found: str) -> FormatError:
    return FormatError(
        f"load_artifact [file]: {_WANTED} is required; {name!r} is damaged: {found}. {_AGAIN}",
        label="file",
    )


def _digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()


@final
class LoadedArtifact:
    """An artifact on its device, ready to run.

    Attributes:
        artifact: what was loaded.
        device: where.
    """

    def __init__(self, artifact: Artifact, device: Any, executable: Any) -> None:
        """Hold a loaded program."""
        self.artifact = artifact
        self.device = device
        self._executable = executable
        self._params: dict[str, Any] = {}

    def set_params(self, values: Mapping[str, Any]) -> None:
        """Put params on the device.

        Raises:
            RunError: a name is unknown, or a value has another type.
        """
        declared = dict(self.artifact.params)
        for name, value in values.items():
            if name not in declared:
                raise RunError(
                    f"set_params: unknown param {name!r}; params are "
                    f"{', '.join(declared) or 'none'}."
                )
            self._params[name] = self._placed(f"param {name!r}", value, declared[name])

    def run(self, inputs: Mapping[str, Any] | None = None) -> list[np.ndarray[Any, Any]]:
        """Run with inputs by name; NumPy arrays out.

        Raises:
            RunError: an input or param is missing, unknown or of another type.
        """
        given = dict(inputs or {})
        names = [name for name, _ in self.artifact.inputs]
        wrong = [name for name in given if name not in names]
        missing = [name for name in names if name not in given]
        if wrong or missing:
            raise RunError(
                f"run: inputs are {', '.join(names) or 'none'}; "
                f"missing {missing or 'none'}, unknown {wrong or 'none'}."
            )
        return [from_device(x) for x in self(*(given[name] for name in names))]

    def __call__(self, *args: Any) -> list[Any]:
        """Run with inputs in order; device arrays out.

        Raises:
            RunError: as ``run``.
        """
        taken = self.artifact.inputs
        if len(args) != len(taken):
            raise RunError(f"call: required {len(taken)} inputs; got {len(args)}.")
        absent = [name for name, _ in self.artifact.params if name not in self._params]
        if absent:
            raise RunError(f"call: params not set: {', '.join(absent)}. Use set_params.")
        arrays = [
            self._placed(f"input {name!r}", value, type_)
            for (name, type_), value in zip(taken, args, strict=True)
        ]
        arrays += [self._params[name] for name, _ in self.artifact.params]
        return list(self._executable.execute(arrays))

    def _placed(self, what: str, value: Any, type_: TensorType) -> Any:
        array: Any = value if isinstance(value, jax.Array) else np.asarray(value)
        if isinstance(value, int | float | list | tuple):
            array = np.asarray(value, type_.dtype.numpy)
        if tuple(array.shape) != type_.shape or np.dtype(array.dtype) != type_.dtype.numpy:
            raise RunError(
                f"{what} is required to be {type_}; got {array.dtype}{list(array.shape)}. "
                "Convert it."
            )
        return to_device(array, self.device, copy=True)


def load_artifact(path: str | Path | Artifact, device: str | None = None) -> LoadedArtifact:
    """Load an artifact on a device of the kind that it was compiled for.

    Args:
        path: the file, or an artifact in memory. It holds machine code: trust its origin.
        device: name of the device, such as ``cuda:0``; the target's platform if None.

    Raises:
        FormatError: this is no path, or the file is damaged.
        DeviceError: no such device is attached, it is of another platform, or the program is one
            over several devices.
        CompileError: the device's runtime does not take the code.
    """
    if not isinstance(cast("object", path), str | Path | Artifact):
        raise FormatError(f"load_artifact: a path is required; got {type(path).__name__}.")
    artifact = path if isinstance(path, Artifact) else read_artifact(path)
    platform = artifact.target.partition(":")[0]
    found = find_device(device or platform)
    kind = {"gpu": "cuda"}.get(found.platform, found.platform)
    if kind != platform:
        raise DeviceError(
            f"load_artifact: a device of platform {platform!r} is required ({artifact.target}); "
            f"{device!r} is of {kind!r}. Compile for {kind}."
        )
    spread = _PARTITIONS.search(artifact.stablehlo)
    if spread is not None and int(spread.group(1)) > 1:
        raise DeviceError(
            f"load_artifact: a program for one device is required; {artifact.name!r} is one over "
            f"{spread.group(1)}. Compile its graph where the devices are: "
            "rlx.Session(device).compile(graph)."
        )
    return LoadedArtifact(
        artifact, found, client.deserialize_executable(artifact.serialized, found)
    )
