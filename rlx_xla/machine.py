"""What this machine has: accelerators, their drivers, who uses them, and the CPU's features.

Read from the files of Linux, so that no device is touched; the memory of GPUs is asked of the
driver's program. Other systems show nothing here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

_TPU_VENDOR, _NVIDIA, _AMD = 0x1AE0, 0x10DE, 0x1002
_TPUS = {
    0x0027: "TPU v2 or v3", 0x0056: "TPU v4", 0x005E: "TPU v4", 0x0062: "TPU v5p",
    0x0063: "TPU v5e", 0x006F: "TPU v6e", 0x0076: "TPU7x",
}  # fmt: skip
_DISPLAY, _ACCELERATOR = 0x03, 0x12
_TPU_NODE = re.compile(r"/dev/(?:accel\d+|vfio/\d+)$")
_SECONDS = 20.0
_GPU_NODE = re.compile(r"/dev/(?:nvidia\d+|kfd)$")


@final
@dataclass(frozen=True)
class Accelerator:
    """A device on the PCI bus.

    Attributes:
        kind: ``tpu``, ``cuda`` or ``rocm``.
        name: what it is.
        address: where it is on the bus.
    """

    kind: str
    name: str
    address: str


@final
@dataclass(frozen=True)
class Holder:
    """A process that has an accelerator open.

    Attributes:
        kind: ``tpu`` or ``gpu``.
        pid: the process.
        program: its command line, cut.
        nodes: the device files that it has open.
        own: whether it is this process.
    """

    kind: str
    pid: int
    program: str
    nodes: tuple[str, ...]
    own: bool = False

    def __str__(self) -> str:
        who = "this process" if self.own else f"process {self.pid}"
        return f"{who} ({self.program}) has {', '.join(self.nodes)} open"


@final
@dataclass(frozen=True)
class GpuMemory:
    """Memory of an NVIDIA GPU, of all processes together.

    Attributes:
        index: the GPU's number.
        name: what it is.
        used: MiB in use.
        total: MiB that it has.
    """

    index: int
    name: str
    used: int
    total: int


@final
@dataclass(frozen=True)
class Cpu:
    """The processor.

    Attributes:
        model: its name.
        cores: how many this process may use.
        features: what ``/proc/cpuinfo`` lists.
    """

    model: str
    cores: int
    features: frozenset[str]


def accelerators(root: Path = Path("/")) -> list[Accelerator]:
    """Accelerators on the PCI bus, in order of their address."""
    found: list[Accelerator] = []
    for folder in sorted(_listed(root / "sys/bus/pci/devices")):
        vendor, device, kind = (_hex(folder / name) for name in ("vendor", "device", "class"))
        sort = kind >> 16
        if vendor == _TPU_VENDOR and device in _TPUS:
            found.append(Accelerator("tpu", _TPUS[device], folder.name))
        elif vendor == _NVIDIA and sort == _DISPLAY:
            found.append(Accelerator("cuda", f"NVIDIA GPU {device:#06x}", folder.name))
        elif vendor == _AMD and sort in (_DISPLAY, _ACCELERATOR):
            found.append(Accelerator("rocm", f"AMD GPU {device:#06x}", folder.name))
    return found


def drivers(root: Path = Path("/")) -> dict[str, str]:
    """Versions of the drivers that are loaded: ``nvidia`` and ``amdgpu``."""
    found: dict[str, str] = {}
    for name in ("nvidia", "amdgpu"):
        version = _text(root / f"sys/module/{name}/version").strip()
        if version:
            found[name] = version
    if "nvidia" not in found:
        match = re.search(r"Kernel Module\D*([\d.]+)", _text(root / "proc/driver/nvidia/version"))
        if match:
            found["nvidia"] = match.group(1)
    return found


def holders(root: Path = Path("/")) -> tuple[list[Holder], int]:
    """Processes that have an accelerator open, and how many processes could not be looked into.

    A process of another user can be looked into by the administrator only.
    """
    found: list[Holder] = []
    closed = 0
    processes = [p for p in _listed(root / "proc") if p.name.isdecimal()]
    for process in sorted(processes, key=lambda p: int(p.name)):
        nodes, readable = _open_nodes(process)
        closed += not readable
        for kind, pattern in (("tpu", _TPU_NODE), ("gpu", _GPU_NODE)):
            mine = tuple(sorted({n for n in nodes if pattern.match(n)}))
            if mine:
                pid = int(process.name)
                own = pid == os.getpid()
                found.append(Holder(kind, pid, _program(process), mine, own))
    return found, closed


def gpu_memory() -> list[GpuMemory]:
    """What the driver's own program says; nothing where it is not there or does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = "--query-gpu=index,name,memory.used,memory.total"
    try:
        done = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    line = re.compile(r"(\d+), (.+), (\d+), (\d+)")
    found = map(line.fullmatch, done.stdout.decode(errors="replace").splitlines())
    return [
        GpuMemory(int(m.group(1)), m.group(2), int(m.group(3)), int(m.group(4)))
        for m in found
        if m is not None
    ]


def cpu(root: Path = Path("/")) -> Cpu:
    """The processor's name, cores and features."""
    text = _text(root / "proc/cpuinfo")
    model = re.search(r"^(?:model name|Model|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Cpu(
        model=model.group(1).strip() if model else "unknown",
        cores=cores or 1,
        features=frozenset(flags.group(1).split()) if flags else frozenset(),
    )


def initial_environment(root: Path = Path("/")) -> dict[str, str]:
    """The environment that this process was started with."""
    found: dict[str, str] = {}
    for entry in _text(root / "proc/self/environ").split("\0"):
        name, sign, value = entry.partition("=")
        if sign:
            found[name] = value
    return found


def _open_nodes(process: Path) -> tuple[list[str], bool]:
    try:
        entries = list((process / "fd").iterdir())
    except PermissionError:
        return [], False
    except OSError:  # it has ended
        return [], True
    found: list[str] = []
    for entry in entries:
        try:
            found.append(os.readlink(entry))
        except OSError:  # closed in the meantime
            continue
    return found, True


def _program(process: Path) -> str:
    words = _text(process / "cmdline").replace("\0", " ").split()
    text = " ".join(words) or _text(process / "comm").strip() or "unknown"
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= 100 else text[:99] + "…"


def _listed(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:
        return


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _hex(path: Path) -> int:
    text = _text(path).strip()
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else 0
