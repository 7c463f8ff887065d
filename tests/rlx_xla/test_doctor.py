"""What doctor says of machines that are made up as files: field cases K1, and what is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlx
import rlx_xla
from rlx.errors import DeviceError
from rlx_xla import doctor as _function
from rlx_xla import machine
from rlx_xla._jax_compat import started

doctor = sys.modules["rlx_xla.doctor"]
VERSIONS: dict[str, str | None] = {"Python": "3.11.7", "jax": "0.10.2", "jaxlib": "0.10.2"}


def make_machine(
    root: Path,
    *,
    bus: dict[str, tuple[str, str, str]] | None = None,
    processes: dict[int, tuple[str, list[str]]] | None = None,
    flags: str = "avx2 fma f16c",
) -> Path:
    """Files that look like those of Linux: PCI devices, processes with what they have open."""
    for address, parts in (bus or {}).items():
        folder = root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in zip(("vendor", "device", "class"), parts, strict=True):
            (folder / name).write_text(text + "\n")
    for pid, (command, nodes) in (processes or {}).items():
        folder = root / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        for i, node in enumerate(nodes):
            (folder / "fd" / str(i)).symlink_to(node)
    (root / "proc").mkdir(exist_ok=True, parents=True)
    (root / "proc/cpuinfo").write_text(f"processor: 0\nmodel name\t: A CPU\nflags\t\t: {flags}\n")
    return root


TPU = {"0000:00:04.0": ("0x1ae0", "0x0063", "0x088000")}
HELD = {41: ("/usr/bin/python3 kernel.py", ["/dev/null", "/dev/vfio/0", "/dev/vfio/vfio"])}


def diagnose(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    *,
    versions: dict[str, str | None] | None = None,
    answer: dict[str, Any] | None = None,
) -> Any:
    """Doctor on a made-up machine, with what is installed and what JAX starts given."""
    known = {**VERSIONS, **(versions or {})}
    monkeypatch.setattr(doctor, "_versions", lambda _: known)
    monkeypatch.setattr(started, "backends_started", lambda: False)
    given = {"devices": [["cpu", "cpu"]], "default": "cpu", "errors": {}}
    monkeypatch.setattr(doctor, "_asked_child", lambda: {**given, **(answer or {})})
    monkeypatch.setattr(doctor, "_wanted_libtpu", lambda: (0, 0, 42))
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    return _function(root=root)


def serious(found: Any) -> list[str]:
    return [str(f) for f in found.findings if f.serious]


def test_k1_who_holds_the_tpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = make_machine(tmp_path, bus=TPU, processes=HELD)
    found = diagnose(monkeypatch, root, versions={"libtpu": "0.0.42.1"})
    assert not found.ok
    assert serious(found) == [
        "the TPU is taken: process 41 (/usr/bin/python3 kernel.py) has /dev/vfio/0 open; one "
        "process at a time can use it. Stop that process: kill 41"
    ]
    assert "process 41" in str(found)
    assert found.to_dict()["holders"][0]["pid"] == 41


def test_k1_a_session_does_not_fall_back_to_the_cpu() -> None:
    if "tpu" in str(rlx.available_devices()):
        pytest.skip("a TPU is attached")
    with pytest.raises(DeviceError, match="TPU is not available"):
        rlx.Session("tpu")


def test_a_tpu_without_its_plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = diagnose(monkeypatch, make_machine(tmp_path, bus=TPU))
    assert serious(found) == [
        "TPU v5e is attached, and JAX's plugin for it is not installed. "
        'Run: pip install --upgrade "jax[tpu]==0.10.2"'
    ]


def test_a_tpu_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = diagnose(
        monkeypatch,
        make_machine(tmp_path, bus=TPU),
        versions={"libtpu": "0.0.42.1"},
        answer={"errors": {"tpu": "UNKNOWN: no such\n device"}},
    )
    assert serious(found) == [
        "TPU v5e is attached and does not start: UNKNOWN: no such device. Reinstall its plugin: "
        'pip install --upgrade "jax[tpu]==0.10.2"'
    ]


def test_a_tpu_that_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = diagnose(
        monkeypatch,
        make_machine(tmp_path, bus=TPU),
        versions={"libtpu": "0.0.42.1"},
        answer={"devices": [["tpu", "TPU v5 lite"]], "default": "tpu"},
    )
    assert found.ok
    assert ("device", "tpu: TPU v5 lite") in found.rows()


def test_a_gpu_needs_the_plugin_that_its_driver_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bus = {
        "0000:01:00.0": ("0x10de", "0x2330", "0x030200"),
        "0000:01:00.1": ("0x10de", "0x22ba", "0x040300"),  # its sound, not a GPU
    }
    root = make_machine(tmp_path, bus=bus)
    for driver, extra in (("550.54.15", "cuda12"), ("580.65.06", "cuda13")):
        found = diagnose(monkeypatch, root, versions={"driver nvidia": driver})
        assert serious(found) == [
            "NVIDIA GPU 0x2330 is attached, and JAX's plugin for it is not installed. "
            f'Run: pip install --upgrade "jax[{extra}]==0.10.2"'
        ]


def test_platforms_that_a_variable_hides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = make_machine(tmp_path, bus=TPU)
    diagnose(monkeypatch, root)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(doctor, "_versions", lambda _: {**VERSIONS, "libtpu": "0.0.42.1"})
    found = _function(root=root)
    assert [str(f) for f in found.findings if "hides" in f.what] == [
        "TPU v5e is attached, and JAX_PLATFORMS=cpu hides it. Unset JAX_PLATFORMS before JAX is "
        "imported."
    ]
    assert found.ok


@pytest.mark.parametrize(
    ("versions", "wanted"),
    [
        (
            {"jax": "0.6.0", "jaxlib": "0.6.0"},
            "jax 0.6.0 is outside of what is supported, 0.7.2 to 0.12. "
            'Run: pip install --upgrade "jax>=0.7.2,<0.13"',
        ),
        (
            {"jaxlib": "0.11.0"},
            "jaxlib 0.11.0 is newer than jax 0.10.2, which does not work. "
            'Run: pip install --upgrade "jax==0.10.2"',
        ),
        (
            {"jax-cuda12-pjrt": "0.9.1"},
            "jax-cuda12-pjrt 0.9.1 is made for another jaxlib than 0.10.2. "
            'Run: pip install --upgrade "jax[cuda12]==0.10.2"',
        ),
        (
            {"libtpu": "0.0.17"},
            "libtpu 0.0.17 is not what jax 0.10.2 is made for, 0.0.42.*; programs for TPUs may "
            'fail or end the process. Run: pip install --upgrade "jax[tpu]==0.10.2"',
        ),
    ],
)
def test_versions_that_do_not_go_together(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    versions: dict[str, str | None],
    wanted: str,
) -> None:
    found = diagnose(monkeypatch, make_machine(tmp_path), versions=versions)
    assert serious(found) == [wanted]


def test_the_supported_versions_are_fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = make_machine(tmp_path)
    for version in ("0.7.2", "0.10.2", "0.12.0.1"):
        found = diagnose(monkeypatch, root, versions={"jax": version, "jaxlib": version})
        assert found.ok


def test_a_lock_without_a_holder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = make_machine(tmp_path, bus=TPU)
    (root / "tmp").mkdir()
    (root / "tmp/libtpu_lockfile").touch()
    versions: dict[str, str | None] = {"libtpu": "0.0.42.1"}
    tpu = {"devices": [["tpu", "TPU v5 lite"]], "default": "tpu"}
    found = diagnose(monkeypatch, root, versions=versions, answer=tpu)
    assert [str(f) for f in found.findings if "lock" in f.what] == [
        "libtpu's lock file is there and no process is seen that has a TPU open. If no other user "
        "has it, run: rm /tmp/libtpu_lockfile"
    ]


def test_jax_that_starts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = diagnose(monkeypatch, make_machine(tmp_path), answer={"devices": [], "failure": "boom"})
    assert serious(found) == [
        'JAX starts no device: boom. Run: pip install --upgrade "jax==0.10.2"'
    ]


def test_variables_that_come_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    initial = {"XLA_FLAGS": "--before", "JAX_ENABLE_X64": "0"}
    monkeypatch.setenv("XLA_FLAGS", "--after")
    monkeypatch.setenv("JAX_ENABLE_X64", "0" if rlx_xla_x64() else "1")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--same")
    initial["LIBTPU_INIT_ARGS"] = "--same"
    if rlx_xla_x64():
        initial["JAX_ENABLE_X64"] = "1"
    shown = [str(f) for f in doctor._variable_findings(initial, running=True)]
    value, taken = ("0", True) if rlx_xla_x64() else ("1", False)
    for line in (
        f"JAX_ENABLE_X64={value} was set after JAX was imported, which takes {taken}. Set it "
        'before the import, or call jax.config.update("jax_enable_x64", …).',
        "MALLOC_ARENA_MAX was set after this process started, and is read when it starts. Start "
        "it with: MALLOC_ARENA_MAX=1 python …",
        "XLA_FLAGS was set after rlx_xla was imported, and devices are in use: what is set after "
        "their first use has no effect. Set it before the first use of a device, or before Python "
        "starts.",
    ):
        assert line in shown
    assert not any("LIBTPU_INIT_ARGS" in line for line in shown)
    early = [str(f) for f in doctor._variable_findings(initial, running=False)]
    assert not any("XLA_FLAGS" in line for line in early)


def rlx_xla_x64() -> bool:
    return bool(started.config_value("JAX_ENABLE_X64"))


def test_memory_that_is_reserved_and_not_used() -> None:
    taken = doctor.Memory("cuda:0", 1 << 20, 60 << 30, 80 << 30)
    (finding,) = doctor._memory_findings((taken, doctor.Memory("cuda:1", 5, 5, 80 << 30)))
    assert str(finding) == (
        "cuda:0: 64,424,509,440 B are reserved and 1,048,576 B used. Set "
        "XLA_PYTHON_CLIENT_PREALLOCATE=false before the first use of a device to leave the rest "
        "to others."
    )


def test_a_gpu_whose_memory_others_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho '0, NVIDIA H100 80GB HBM3, 61166, 81559'\n"
        "echo '1, NVIDIA H100 80GB HBM3, 4, 81559'\necho 'not a line'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    processes = {52: ("python train.py", ["/dev/nvidia0", "/dev/nvidiactl"])}
    found = diagnose(monkeypatch, make_machine(tmp_path, processes=processes))
    assert [g.used for g in found.gpus] == [61166, 4]
    assert ("memory", "GPU 1 (NVIDIA H100 80GB HBM3): 4 MiB of 81,559 MiB in use") in found.rows()
    assert [str(f) for f in found.findings if "GPU" in f.what] == [
        "GPU 0 (NVIDIA H100 80GB HBM3): 61,166 MiB of 81,559 MiB are in use, and JAX takes 75% of "
        "a GPU at its first use. process 52 (python train.py) has /dev/nvidia0 open. Stop what is "
        "not needed, choose another GPU with CUDA_VISIBLE_DEVICES, or set "
        "XLA_PYTHON_CLIENT_MEM_FRACTION=0.20."
    ]
    assert found.ok
    program.write_text("#!/bin/sh\nexit 9\n")
    assert machine.gpu_memory() == []


def test_cpu_features_and_what_they_enable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    found = diagnose(monkeypatch, make_machine(tmp_path))
    assert found.cpu.model == "A CPU"
    assert {e.name: e.present for e in found.enabled} == {
        "AVX2": True, "AVX-512": False, "VNNI": False, "AVX-512 BF16": False, "AMX": False,
    }  # fmt: skip
    assert "sort.cpu.ffi" in found.kernels


def test_processes_of_others_and_those_that_end(tmp_path: Path) -> None:
    root = make_machine(tmp_path, processes={7: ("a b", ["/dev/accel0", "/dev/nvidia1"])})
    (root / "proc/9").mkdir()  # has no folder of open files any more
    holders, closed = machine.holders(root)
    assert [(h.kind, h.pid, h.nodes) for h in holders] == [
        ("tpu", 7, ("/dev/accel0",)),
        ("gpu", 7, ("/dev/nvidia1",)),
    ]
    assert closed == 0
    if os.getuid():
        (root / "proc/7/fd").chmod(0)
        assert machine.holders(root) == ([], 1)


def test_this_process_is_told_from_others(tmp_path: Path) -> None:
    root = make_machine(tmp_path, processes={os.getpid(): ("x", ["/dev/accel0"])})
    ((holder,), _) = machine.holders(root)
    assert str(holder) == "this process (x) has /dev/accel0 open"


def test_a_machine_without_these_files(tmp_path: Path) -> None:
    assert machine.accelerators(tmp_path) == []
    assert machine.holders(tmp_path) == ([], 0)
    assert machine.drivers(tmp_path) == {}
    assert machine.cpu(tmp_path).model == "unknown"
    assert machine.initial_environment(tmp_path) == {}


def test_drivers(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    )
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.3.6\n")
    assert machine.drivers(tmp_path) == {"nvidia": "550.54.15", "amdgpu": "6.3.6"}


def test_here_and_from_a_child() -> None:
    found = rlx_xla.doctor()
    assert found.devices
    assert found.versions["jax"]
    assert json.loads(found.to_json())["default"] == found.default
    assert "<pre>" in found._repr_html_()
    answer = doctor._asked_child()
    assert [tuple(d) for d in answer["devices"]] == list(found.devices)


def test_a_child_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*args: Any, **kwargs: Any) -> Any:
        return subprocess.CompletedProcess(args, 134, b"", b"a\nAborted (core dumped)\n")

    monkeypatch.setattr(subprocess, "run", ended)
    assert doctor._asked_child() == {"failure": "exit code 134; Aborted (core dumped)"}

    def slow(*args: Any, **kwargs: Any) -> Any:
        raise subprocess.TimeoutExpired(args, 90)

    monkeypatch.setattr(subprocess, "run", slow)
    assert doctor._asked_child() == {"failure": "starting the devices took more than 90 s"}


def test_pip_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.pip_line("tpu", VERSIONS) == 'pip install --upgrade "jax[tpu]==0.10.2"'
    assert doctor.pip_line("cpu", {"jax": "0.7.2"}) == 'pip install --upgrade "jax==0.7.2"'
    assert doctor._wanted_libtpu()
