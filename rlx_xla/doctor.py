"""``rlx_xla.doctor``: what is installed and attached, what is wrong, and the line that mends it."""

from __future__ import annotations

import html
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import jax

from rlx_xla import machine
from rlx_xla._jax_compat import device_child, started
from rlx_xla.kernels import ffi
from rlx_xla.kernels.base import FfiKernel
from rlx_xla.kernels.select import all_kernels, load_kernels

_PACKAGES = (
    "rlx-xla", "jax", "jaxlib", "numpy", "ml_dtypes", "flax", "libtpu",
    "jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt",
    "jax-rocm7-plugin", "jax-rocm7-pjrt", "flatbuffers",
)  # fmt: skip
_SUPPORTED = ((0, 7, 2), (0, 13))
_AT_EXEC = (
    "LD_LIBRARY_PATH", "LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_",
)  # fmt: skip
_AT_FIRST_USE = re.compile(
    r"XLA_FLAGS|LIBTPU_INIT_ARGS|TPU_\w+|ALLOW_MULTIPLE_LIBTPU_LOAD|XLA_(?:PYTHON_)?CLIENT_\w+|"
    r"CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|NCCL_\w+"
)
_JAX_OWN = re.compile(r"JAX_\w+")
_FEATURES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("AVX2", ("avx2", "fma", "f16c"), "RLX's C++ kernels"),
    (
        "AVX-512",
        ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
        "the wide path of products with few rows",
    ),
    ("VNNI", ("avx512_vnni",), "XLA's own products of 8-bit integers"),
    ("AVX-512 BF16", ("avx512_bf16",), "XLA's own products of bf16"),
    ("AMX", ("amx_tile", "amx_bf16"), "XLA's own products of bf16, by tiles"),
)
_SECONDS = 90.0
_LOCK = "tmp/libtpu_lockfile"
_AT_IMPORT = dict(os.environ)
"""What was set when this module was imported; JAX sets some of TPU_* itself, before."""


@final
@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        what: what is wrong.
        fix: what to do, as a command where there is one.
        serious: False for what may be meant so.
    """

    what: str
    fix: str
    serious: bool = True

    def __str__(self) -> str:
        return f"{self.what} {self.fix}"


@final
@dataclass(frozen=True)
class Memory:
    """Memory of a device that this process uses.

    Attributes:
        device: its name.
        used: bytes in use by arrays and programs.
        reserved: bytes that this process keeps from others.
        limit: bytes that it may use.
    """

    device: str
    used: int
    reserved: int
    limit: int


@final
@dataclass(frozen=True)
class Enabled:
    """A group of CPU features.

    Attributes:
        name: of the group.
        present: whether this CPU has all of it.
        gives: what needs it.
    """

    name: str
    present: bool
    gives: str


@final
@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What ``doctor`` found; prints as a table.

    Attributes:
        versions: package → version, or None where it is not installed; Python and drivers too.
        accelerators: what is on the PCI bus.
        devices: platform and kind of each device that JAX starts.
        default: the platform that JAX uses unless told otherwise; empty where none starts.
        holders: processes that have an accelerator open.
        memory: what this process uses of its devices.
        gpus: memory of NVIDIA GPUs that all processes use.
        cpu: the processor's name, cores and features.
        enabled: groups of CPU features and what needs them.
        kernels: names of RLX's kernels for the CPU.
        kernel_problem: why they cannot be used, or empty.
        variables: variables of other tools that are set.
        findings: what is wrong.
    """

    versions: Mapping[str, str | None]
    accelerators: tuple[machine.Accelerator, ...]
    devices: tuple[tuple[str, str], ...]
    default: str
    holders: tuple[machine.Holder, ...]
    memory: tuple[Memory, ...]
    gpus: tuple[machine.GpuMemory, ...]
    cpu: machine.Cpu
    enabled: tuple[Enabled, ...]
    kernels: tuple[str, ...]
    kernel_problem: str
    variables: Mapping[str, str]
    findings: tuple[Finding, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether nothing serious is wrong."""
        return not any(finding.serious for finding in self.findings)

    def rows(self) -> list[tuple[str, str]]:
        """What there is, as rows of a table."""
        made = [(name, text or "not installed") for name, text in self.versions.items()]
        made += [("on the bus", f"{a.name} at {a.address}") for a in self.accelerators]
        made += [("device", f"{kind}: {name}") for kind, name in self.devices]
        made.append(("default", self.default or "none starts"))
        made += [("in use by", str(holder)) for holder in self.holders]
        made += [
            ("memory", f"{m.device}: {m.used:,} B used, {m.reserved:,} B reserved of {m.limit:,} B")
            for m in self.memory
        ]
        made += [
            ("memory", f"GPU {g.index} ({g.name}): {g.used:,} MiB of {g.total:,} MiB in use")
            for g in self.gpus
        ]
        made.append(("CPU", f"{self.cpu.model}, {self.cpu.cores} cores for this process"))
        made += [(e.name, f"{'yes' if e.present else 'no'}: {e.gives}") for e in self.enabled]
        kernels = self.kernel_problem or f"{len(self.kernels)}: {', '.join(self.kernels)}"
        made.append(("CPU kernels", kernels))
        made += [(name, value) for name, value in self.variables.items()]
        return made

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, texts and numbers."""
        found = asdict(self)
        found["cpu"]["features"] = sorted(self.cpu.features)
        found["versions"], found["variables"] = dict(self.versions), dict(self.variables)
        return {"ok": self.ok, **found}

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {text}" for name, text in rows]
        lines.append("")
        if not self.findings:
            return "\n".join([*lines, "nothing is wrong"])
        for finding in self.findings:
            lines += [f"{'!' if finding.serious else '-'} {finding.what}", f"    {finding.fix}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def doctor(*, probe: bool = True, root: Path = Path("/")) -> Diagnosis:
    """Look at what is installed and attached, and say what is wrong.

    Devices that this process uses are asked here. Where it uses none yet, a child process starts
    them and ends, so that nothing is held afterwards.

    Args:
        probe: whether devices are started at all.
        root: where ``/proc``, ``/sys`` and ``/tmp`` are found.
    """
    versions = _versions(root)
    bus = tuple(machine.accelerators(root))
    held, unseen = machine.holders(root)
    running = started.backends_started()
    answer = _asked_here() if running else (_asked_child() if probe else {})
    devices = tuple((str(a), str(b)) for a, b in answer.get("devices", ()))
    default = str(answer.get("default", ""))
    cpu = machine.cpu(root)
    load_kernels()
    library = ffi.load()
    problem = library.reason if isinstance(library, ffi.Unavailable) else ""
    findings = [
        *_version_findings(versions),
        *_accelerator_findings(versions, bus, held, unseen, answer, asked=running or probe),
        *_lock_findings(bus, held, root),
        *_variable_findings(machine.initial_environment(root), running),
    ]
    memory = tuple(_memory()) if running else ()
    findings += _memory_findings(memory)
    gpus = tuple(machine.gpu_memory())
    findings += _taken_findings(gpus, held)
    if problem:
        findings.append(
            Finding(
                f"RLX's C++ kernels cannot be used: {problem}.",
                "Install a C++ compiler and run: pip install --force-reinstall --no-deps rlx-xla",
                serious=False,
            )
        )
    return Diagnosis(
        versions=versions,
        accelerators=bus,
        devices=devices,
        default=default,
        holders=tuple(held),
        memory=memory,
        gpus=gpus,
        cpu=cpu,
        enabled=tuple(
            Enabled(name, cpu.features.issuperset(needed), gives)
            for name, needed, gives in _FEATURES
        )
        if platform.machine() in ("x86_64", "AMD64")
        else (),
        kernels=tuple(k.name for k in all_kernels() if isinstance(k, FfiKernel)),
        kernel_problem=problem,
        variables={k: v for k, v in sorted(os.environ.items()) if _is_known(k)},
        findings=tuple(findings),
    )


def pip_line(kind: str, versions: Mapping[str, str | None] | None = None) -> str:
    """The command that installs JAX for a kind of accelerator, at the installed version of jax.

    Args:
        kind: an extra of jax: ``tpu``, ``cuda12``, ``cuda13``, ``rocm7-local``; or ``cpu``.
        versions: package → version; what is installed if None.
    """
    known = (versions or {}).get("jax") or _version("jax")
    pin = f"=={known}" if known else ""
    return f'pip install --upgrade "jax{"" if kind == "cpu" else f"[{kind}]"}{pin}"'


def _versions(root: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = {"Python": platform.python_version()}
    for name in _PACKAGES:
        version = _version(name)
        if version is not None or name in ("rlx-xla", "jax", "jaxlib", "libtpu"):
            found[name] = version
    for name, version in machine.drivers(root).items():
        found[f"driver {name}"] = version
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", (version or "").partition("+")[0])[:3])


def _version_findings(versions: Mapping[str, str | None]) -> list[Finding]:
    found: list[Finding] = []
    jax_version, jaxlib = versions.get("jax"), versions.get("jaxlib")
    low, high = _SUPPORTED
    if jax_version and not low <= _numbers(jax_version) < high:
        found.append(
            Finding(
                f"jax {jax_version} is outside of what is supported, 0.7.2 to 0.12.",
                'Run: pip install --upgrade "jax>=0.7.2,<0.13"',
            )
        )
    if jaxlib and _numbers(jaxlib) > _numbers(jax_version):
        found.append(
            Finding(
                f"jaxlib {jaxlib} is newer than jax {jax_version}, which does not work.",
                f"Run: {pip_line('cpu', versions)}",
            )
        )
    for name, version in versions.items():
        plugin = re.fullmatch(r"jax-(cuda12|cuda13|rocm7)-(?:plugin|pjrt)", name)
        if plugin and version and _numbers(version) != _numbers(jaxlib):
            extra = plugin.group(1) if plugin.group(1) != "rocm7" else "rocm7-local"
            found.append(
                Finding(
                    f"{name} {version} is made for another jaxlib than {jaxlib}.",
                    f"Run: {pip_line(extra, versions)}",
                )
            )
    libtpu, wanted = versions.get("libtpu"), _wanted_libtpu()
    if libtpu and wanted and _numbers(libtpu)[: len(wanted)] != wanted:
        found.append(
            Finding(
                f"libtpu {libtpu} is not what jax {jax_version} is made for, "
                f"{'.'.join(map(str, wanted))}.*; programs for TPUs may fail or end the process.",
                f"Run: {pip_line('tpu', versions)}",
            )
        )
    return found


def _wanted_libtpu() -> tuple[int, ...]:
    """The version of libtpu that the installed jax asks for."""
    for line in importlib.metadata.requires("jax") or ():
        match = re.match(r"libtpu\s*==\s*([\d.]+?)(?:\.\*)?\s*;", line)
        if match:
            return _numbers(match.group(1))
    return ()


def _accelerator_findings(
    versions: Mapping[str, str | None],
    bus: tuple[machine.Accelerator, ...],
    held: list[machine.Holder],
    unseen: int,
    answer: Mapping[str, Any],
    *,
    asked: bool,
) -> list[Finding]:
    found: list[Finding] = []
    here = {platform for platform, _ in answer.get("devices", ())}
    reasons: Mapping[str, str] = answer.get("errors", {})
    names = {"tpu": {"tpu"}, "cuda": {"cuda", "gpu"}, "rocm": {"rocm", "gpu"}}
    for kind in dict.fromkeys(a.kind for a in bus):
        if not asked or here & names[kind]:
            continue
        title = next(a.name for a in bus if a.kind == kind)
        others = [h for h in held if not h.own and h.kind == ("tpu" if kind == "tpu" else "gpu")]
        if not _has_plugin(kind, versions):
            extra = _extra(kind, versions)
            found.append(
                Finding(
                    f"{title} is attached, and JAX's plugin for it is not installed.",
                    f"Run: {pip_line(extra, versions)}",
                )
            )
        elif kind == "tpu" and others:
            found += [
                Finding(
                    f"the TPU is taken: {holder}; one process at a time can use it.",
                    f"Stop that process: kill {holder.pid}",
                )
                for holder in others
            ]
        elif _hidden(kind):
            found.append(
                Finding(
                    f"{title} is attached, and JAX_PLATFORMS={os.environ['JAX_PLATFORMS']} hides "
                    "it.",
                    "Unset JAX_PLATFORMS before JAX is imported.",
                    serious=False,
                )
            )
        else:
            said = "; ".join(dict.fromkeys(reasons.get(n, "") for n in (*names[kind], kind)))
            said = " ".join((said.strip("; ") or str(answer.get("failure", ""))).split())[:500]
            hint = f" {unseen} processes of other users could not be looked into." if unseen else ""
            found.append(
                Finding(
                    f"{title} is attached and does not start: {said or 'JAX does not say why'}."
                    f"{hint}",
                    f"Reinstall its plugin: {pip_line(_extra(kind, versions), versions)}",
                )
            )
    if asked and not answer.get("devices"):
        said = " ".join(str(answer.get("failure", "it ended without an answer")).split())[:500]
        found.append(Finding(f"JAX starts no device: {said}.", f"Run: {pip_line('cpu', versions)}"))
    return found


def _has_plugin(kind: str, versions: Mapping[str, str | None]) -> bool:
    parts = {
        "tpu": ("libtpu",),
        "cuda": ("jax-cuda12-plugin", "jax-cuda13-plugin"),
        "rocm": ("jax-rocm7-plugin",),
    }[kind]
    return any(versions.get(part) for part in parts)


def _extra(kind: str, versions: Mapping[str, str | None]) -> str:
    if kind == "tpu":
        return "tpu"
    if kind == "rocm":
        return "rocm7-local"
    # CUDA 13 needs driver 580.
    return "cuda13" if _numbers(versions.get("driver nvidia"))[:1] >= (580,) else "cuda12"


def _hidden(kind: str) -> bool:
    chosen = os.environ.get("JAX_PLATFORMS", "")
    names = {"cuda": ("cuda", "gpu"), "rocm": ("rocm", "gpu")}.get(kind, (kind,))
    return bool(chosen) and not any(name in chosen.split(",") for name in names)


def _lock_findings(
    bus: tuple[machine.Accelerator, ...], held: list[machine.Holder], root: Path
) -> list[Finding]:
    free = not any(h.kind == "tpu" for h in held)
    if not (free and any(a.kind == "tpu" for a in bus) and (root / _LOCK).exists()):
        return []
    return [
        Finding(
            "libtpu's lock file is there and no process is seen that has a TPU open.",
            f"If no other user has it, run: rm /{_LOCK}",
            serious=False,
        )
    ]


def _variable_findings(initial: Mapping[str, str], running: bool) -> list[Finding]:
    """Variables that were set after what reads them had read them."""
    if not initial:
        return []
    found: list[Finding] = []
    for name, value in sorted(os.environ.items()):
        if initial.get(name) == value or not _is_known(name):
            continue
        if name in _AT_EXEC:
            found.append(
                Finding(
                    f"{name} was set after this process started, and is read when it starts.",
                    f"Start it with: {name}={value} python …",
                )
            )
        elif _JAX_OWN.fullmatch(name):
            taken = started.config_value(name)
            if taken is not None and _plain(taken) != _plain(value):
                found.append(
                    Finding(
                        f"{name}={value} was set after JAX was imported, which takes {taken!r}.",
                        f"Set it before the import, or call "
                        f'jax.config.update("{name.lower()}", …).',
                    )
                )
        elif running and _AT_IMPORT.get(name) != value:
            found.append(
                Finding(
                    f"{name} was set after rlx_xla was imported, and devices are in use: what is "
                    "set after their first use has no effect.",
                    "Set it before the first use of a device, or before Python starts.",
                    serious=False,
                )
            )
    return found


def _is_known(name: str) -> bool:
    return (
        name in _AT_EXEC
        or _AT_FIRST_USE.fullmatch(name) is not None
        or _JAX_OWN.fullmatch(name) is not None
    )


def _plain(value: object) -> str:
    text = str(value).strip().lower()
    return {"1": "true", "on": "true", "yes": "true", "0": "false", "no": "false"}.get(text, text)


def _asked_here() -> dict[str, Any]:
    return {
        "devices": [(d.platform, d.device_kind) for d in jax.devices()],
        "default": jax.default_backend(),
        "errors": started.backend_errors(),
    }


def _asked_child() -> dict[str, Any]:
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    try:
        done = subprocess.run(
            [sys.executable, "-P", device_child.__file__],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"starting the devices took more than {_SECONDS:.0f} s"}
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode or not lines:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return {"failure": f"exit code {done.returncode}; {said[-1] if said else 'no message'}"}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _memory_findings(memory: tuple[Memory, ...]) -> list[Finding]:
    return [
        Finding(
            f"{taken.device}: {taken.reserved:,} B are reserved and {taken.used:,} B used.",
            "Set XLA_PYTHON_CLIENT_PREALLOCATE=false before the first use of a device to leave the "
            "rest to others.",
            serious=False,
        )
        for taken in memory
        if taken.reserved > 2 * taken.used + (1 << 30)
    ]


def _taken_findings(
    gpus: tuple[machine.GpuMemory, ...], held: list[machine.Holder]
) -> list[Finding]:
    """GPUs of which so much is in use that JAX's share at its first use is not there."""
    others = "; ".join(str(h) for h in held if h.kind == "gpu" and not h.own)
    own = any(h.kind == "gpu" and h.own for h in held)
    return [
        Finding(
            f"GPU {gpu.index} ({gpu.name}): {gpu.used:,} MiB of {gpu.total:,} MiB are in use, and "
            f"JAX takes 75% of a GPU at its first use. {others or 'No process is seen'}.",
            "Stop what is not needed, choose another GPU with CUDA_VISIBLE_DEVICES, or set "
            f"XLA_PYTHON_CLIENT_MEM_FRACTION={max(1 - gpu.used / gpu.total - 0.05, 0.05):.2f}.",
            serious=False,
        )
        for gpu in gpus
        if not own and gpu.used > gpu.total / 4
    ]


def _memory() -> list[Memory]:
    found: list[Memory] = []
    for device in jax.local_devices():
        stats = device.memory_stats() or {}
        limit = int(stats.get("bytes_limit", 0))
        if limit:
            used = int(stats.get("bytes_in_use", 0))
            reserved = int(stats.get("pool_bytes", stats.get("bytes_reserved", used)))
            found.append(Memory(str(device), used, reserved, limit))
    return found
