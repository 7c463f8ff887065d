"""Graphs over eight CPU devices, in a process that has them, and over two processes."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys

from tests.rlx_xla import sharded_programs


def test_programs_on_eight_devices() -> None:
    """One test for all: starting JAX takes longer than most of them."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.rlx_xla.sharded_programs"],
        env=sharded_programs.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    outcomes: dict[str, str] = json.loads(ran.stdout)
    assert list(outcomes) == list(sharded_programs.PROGRAMS)
    failures = [f"{name}:\n{text}" for name, text in outcomes.items() if text]
    assert not failures, "\n".join(failures)


def _free_port() -> int:
    """A port below those that systems give out by themselves while the processes start."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe:
            try:
                probe.bind(("localhost", port))
            except OSError:
                continue
        return port


def test_two_processes_share_a_mesh() -> None:
    address = f"localhost:{_free_port()}"
    seed = str(secrets.randbits(32))
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }
    command = [sys.executable, "-m", "tests.rlx_xla.processes_program", address, "2"]
    running = [
        subprocess.Popen(
            [*command, str(number), seed],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        ended = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (out, errors) in zip(running, ended, strict=True):
        assert process.returncode == 0, errors[-3000:]
        assert out.splitlines()[-1] == "held"  # gloo writes lines of its own
