"""Compiles StableHLO for an absent device in a child process, within limits of time and memory."""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, final

from rlx.errors import DeviceError
from rlx_xla.aot.gpu_configs import target_config
from rlx_xla.aot.targets import Target

_ENVIRONMENT = {
    # Without the first libtpu asks a metadata server for minutes; without the second, two compiles
    # at once fight for its lock file.
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_LOG_DIR": "disabled",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
}
_NEEDS = {
    "tpu": ("libtpu", "pip install 'rlx-xla[tpu-aot]'"),
    "cuda": ("jax_plugins.xla_cuda12", "pip install 'rlx-xla[cuda-aot]'"),
    "rocm": ("jax_plugins.xla_rocm7", "pip install 'rlx-xla[rocm-aot]'"),
}
_POLL = 0.05
CHILD = "rlx_xla.aot.child"
"""The program that compiles."""


@final
class FailureKind(enum.Enum):
    """Why nothing was compiled."""

    OUT_OF_MEMORY = "out of memory"
    REFUSED = "refused"
    ABORTED = "aborted"
    TIMED_OUT = "timed out"
    COMPILER_MEMORY = "the compiler took too much memory"
    NOT_COMPILED = "lowered, and not compiled"


@final
@dataclass(frozen=True, kw_only=True)
class Failure:
    """What a compiler answered instead of a program.

    Attributes:
        kind: what went wrong.
        message: the compiler's words.
        op: the op it speaks of, where it names one.
        line: file and line of that op.
        needed: bytes of device memory that the program would take; 0 if it does not say.
        available: bytes of device memory that there are; 0 if it does not say.
    """

    kind: FailureKind
    message: str
    op: str = ""
    line: str = ""
    needed: int = 0
    available: int = 0

    def __str__(self) -> str:
        where = f" ({self.op or 'an op'} at {self.line})" if self.line else ""
        return f"{self.kind.value}{where}: {self.message}"


@final
@dataclass(frozen=True, kw_only=True)
class Compilation:
    """What came of one compile.

    Attributes:
        target: what it was for.
        failure: why there is no program, or None.
        hlo: the optimised program as text; empty where the compiler gives none.
        serialized: the program, to be loaded where the device is.
        memory: bytes by kind: ``argument``, ``output``, ``alias``, ``temp``, ``code``.
        cost: the compiler's estimates, such as ``flops`` and ``bytes accessed``.
        cycles: the sum of the cycles that the compiler estimates; None where it does not.
        collectives: operations between devices: how many, and bytes.
        fusions: fused loops of the program.
        seconds: time of the compile alone.
        notes: what could not be had, and why.
    """

    target: Target
    failure: Failure | None = None
    hlo: str = field(default="", repr=False)
    serialized: bytes = field(default=b"", repr=False)
    memory: Mapping[str, int] = field(default_factory=dict[str, int])
    cost: Mapping[str, float] = field(default_factory=dict[str, float])
    cycles: int | None = None
    collectives: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict[str, Mapping[str, int]]
    )
    fusions: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def unstarted(self) -> bool:
        """Whether the compiler itself did not start."""
        return self.failure is not None and self.failure.kind is FailureKind.NOT_COMPILED


def absence(target: Target) -> str | None:
    """Why nothing is compiled for a target, with the command that changes it, or None."""
    command = missing(target)
    if command is None:
        return None
    return (
        f"the compiler for {target.platform} is required; it is not installed. Install it: "
        f"{command}"
    )


def missing(target: Target) -> str | None:
    """What has to be installed to compile for a target, as a command, or None."""
    module, command = _NEEDS[target.platform]
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None and target.platform == "cuda":
        try:
            found = importlib.util.find_spec("jax_plugins.xla_cuda13")
        except ModuleNotFoundError:
            found = None
    return command if found is None else None


def compile_text(
    text: str,
    target: Target,
    *,
    partitions: int = 1,
    timeout: float = 600.0,
    memory_limit: int = 16 * 2**30,
    compiler_options: Mapping[str, Any] | None = None,
) -> Compilation:
    """Compile StableHLO text in a child process.

    Args:
        text: a module with a function ``main``.
        target: what to compile for.
        partitions: over how many devices the program is spread.
        timeout: seconds after which the child is stopped.
        memory_limit: bytes of resident memory at which it is stopped.
        compiler_options: XLA flags by name.

    Returns:
        The program, or a structured failure; nothing that the vendor's compiler does ends this
        process.

    Raises:
        DeviceError: the compiler is not installed; the command that installs it is given.
    """
    (made,) = compile_each(
        [text],
        target,
        partitions=partitions,
        timeout=timeout,
        memory_limit=memory_limit,
        compiler_options=compiler_options,
    )
    return made


def compile_each(
    texts: Sequence[str],
    target: Target,
    *,
    keep: bool = True,
    partitions: int = 1,
    timeout: float = 600.0,
    memory_limit: int = 16 * 2**30,
    compiler_options: Mapping[str, Any] | None = None,
) -> list[Compilation]:
    """Compile many modules in as few child processes as can be: one more for each that ends one.

    Args:
        texts: modules, each with a function ``main``.
        target: what to compile for.
        keep: whether programs and what is known of them are returned, or only failures and times.
        partitions: over how many devices each program is spread.
        timeout: seconds for each module after which the child is stopped.
        memory_limit: bytes of resident memory at which a child is stopped.
        compiler_options: XLA flags by name.

    Raises:
        DeviceError: the compiler is not installed; the command that installs it is given.
    """
    absent = absence(target)
    if absent is not None:
        raise DeviceError(f"target {target.name!r}: {absent}")
    made: list[Compilation] = []
    with tempfile.TemporaryDirectory(prefix="rlx-aot-") as name:
        folder = Path(name)
        for number, text in enumerate(texts):
            (folder / f"{number}.mlir").write_text(text, encoding="utf-8")
        request = {
            "platform": target.platform,
            "topology": target.topology_name,
            "options": _options(target),
            "partitions": partitions,
            "compiler_options": dict(compiler_options or {}),
            "keep": keep,
        }
        while len(made) < len(texts):
            whole = json.dumps({**request, "first": len(made)})
            (folder / "request.json").write_text(whole, encoding="utf-8")
            stopped, code, log = _run(folder, len(made), timeout, memory_limit)
            while (folder / f"{len(made)}.json").is_file():
                made.append(_read(folder, len(made), target))
            if made and made[-1].unstarted:
                return made + [made[-1]] * (len(texts) - len(made))
            if len(made) < len(texts):
                made.append(Compilation(target=target, failure=_ended(stopped, code, log)))
    return made


def _options(target: Target) -> dict[str, Any]:
    if target.platform == "tpu":
        return dict(target.options)
    return {"target_config": target_config(target.chip), "topology": "1x1x1"}


def _run(
    folder: Path, first: int, timeout: float, memory_limit: int
) -> tuple[FailureKind | None, int, str]:
    """Run the child; say what it was stopped for, its exit code and the end of its stderr."""
    environment = {**os.environ, **_ENVIRONMENT}
    root = str(Path(str(files("rlx_xla"))).parent)
    environment["PYTHONPATH"] = os.pathsep.join([root, *(p for p in sys.path if p)])
    log = folder / "stderr"
    started, current = time.monotonic(), first
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", CHILD, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        stopped: FailureKind | None = None
        try:
            while child.poll() is None:
                while (folder / f"{current}.json").is_file():
                    started, current = time.monotonic(), current + 1
                if time.monotonic() - started > timeout:
                    stopped = FailureKind.TIMED_OUT
                elif _resident(child.pid) > memory_limit:
                    stopped = FailureKind.COMPILER_MEMORY
                if stopped is not None:
                    break
                time.sleep(_POLL)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
    return stopped, code, log.read_text(encoding="utf-8", errors="replace")[-4000:]


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _ended(stopped: FailureKind | None, code: int, log: str) -> Failure:
    """Why a child that left no result ended."""
    if stopped is not None:
        return Failure(kind=stopped, message=_last(log))
    return _placed(FailureKind.ABORTED, f"exit code {code}; {_last(log)}", log)


def _read(folder: Path, number: int, target: Target) -> Compilation:
    result = json.loads((folder / f"{number}.json").read_text(encoding="utf-8"))
    seconds = result.get("compile_seconds", 0.0)
    if "unstarted" in result:
        failure = Failure(kind=FailureKind.NOT_COMPILED, message=result["unstarted"])
        return Compilation(target=target, failure=failure)
    if "error" in result:
        return Compilation(target=target, failure=failure_of(result["error"]), seconds=seconds)
    program = folder / f"{number}.bin"
    if not program.is_file():
        return Compilation(target=target, seconds=seconds)
    return Compilation(
        target=target,
        hlo=(folder / f"{number}.hlo").read_text(encoding="utf-8"),
        serialized=program.read_bytes(),
        memory=result.get("memory", {}),
        cost=result.get("cost", {}),
        cycles=result.get("cycles"),
        collectives=result.get("collectives", {}),
        fusions=result.get("fusions", 0),
        seconds=seconds,
        notes=tuple(result["notes"]),
    )


def failure_of(message: str) -> Failure:
    """Read a compiler's error."""
    if not re.search(r"RESOURCE_EXHAUSTED|[Oo]ut of memory|exceeds available", message):
        return _placed(FailureKind.REFUSED, message, message)
    found = _placed(FailureKind.OUT_OF_MEMORY, message, message)
    sizes = re.search(
        r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm|"
        r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)",
        message,
    )
    if sizes is None:
        return found
    given = [part for part in sizes.groups() if part is not None]
    needed, available = _size(given[0], given[1]), _size(given[2], given[3])
    return dataclasses.replace(found, needed=needed, available=available)


def _size(number: str, unit: str) -> int:
    return int(float(number) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}[unit])


def _placed(kind: FailureKind, message: str, text: str) -> Failure:
    """A failure with the op and the line that a text speaks of."""
    line = re.search(r'source_file="([^"]+)" source_line=(\d+)', text)
    line = line or re.search(r'"?([\w./-]+\.py)"?:(\d+)', text)
    op = re.search(r'op_name="([^"]+)"', text) or re.search(r"'(stablehlo\.\w+)' op", text)
    return Failure(
        kind=kind,
        message=message,
        op=op.group(1) if op else "",
        line=f"{line.group(1)}:{line.group(2)}" if line else "",
    )


def _last(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("F") or "Check failed" in line]
    return (fatal or lines or ["no message"])[-1][:500]
