"""The compile cache on disk: a second process compiles nothing, and damage is harmless."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlx.errors import CompileError, RunError
from rlx_xla.cli.main import app
from rlx_xla.runtime.cache import enable_cache
from rlx_xla.runtime.program_cache import SUFFIX, ProgramCache, ProgramKey, explain

SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np
import rlx, rlx_xla
from rlx_xla.runtime.cache import enable_cache

compiles = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: compiles.append(event)
    if event == "/jax/core/compile/backend_compile_duration" else None
)
enable_cache(sys.argv[1])
scale = float(sys.argv[2])
fn = rlx_xla.jit(lambda x: jnp.tanh(x @ x.T) * scale, dims=("f32[n, 4]",), buckets={"n": [8]})
x = np.ones((3, 4), np.float32)
assert np.allclose(fn(x), np.tanh(x @ x.T) * scale, rtol=1e-5)
print(len(compiles))
"""


def _start(directory: Path, scale: float = 2.0) -> subprocess.Popen[str]:
    """A process of its own that compiles, or finds what others compiled."""
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", SCRIPT, str(directory), str(scale)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env)


def _compiles(process: subprocess.Popen[str]) -> int:
    """How many programs a process compiled."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return int(out.split()[-1])


def _programs(directory: Path) -> list[Path]:
    return sorted((directory / "rlx").glob(f"*{SUFFIX}"), key=lambda p: p.stat().st_mtime)


def test_f6_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    assert _compiles(_start(tmp_path)) == 1
    (first,) = _programs(tmp_path)
    same = _start(tmp_path)
    both = [_start(tmp_path, 3.0) for _ in range(2)]  # two that write one program at once
    assert _compiles(same) == 0
    assert {_compiles(process) for process in both} <= {0, 1}
    (second,) = (p for p in _programs(tmp_path) if p != first)
    assert not list((tmp_path / "rlx").glob("*.part"))
    runner = CliRunner()
    listed = runner.invoke(app, ["cache", "list", "--json", "--directory", str(tmp_path)])
    rows = json.loads(listed.stdout)["programs"]
    keys = {row["key"] for row in rows}
    assert keys == {first.name.removesuffix(SUFFIX), second.name.removesuffix(SUFFIX)}
    assert all(row["name"] == "<lambda>" for row in rows)
    shown = runner.invoke(app, ["cache", "list", "--directory", str(tmp_path)])
    assert "2 programs" in shown.stdout
    command = ["cache", "diff", first.name[:12], second.name[:12], "--directory", str(tmp_path)]
    told = runner.invoke(app, command).stdout
    assert "constant 2.0" in told
    assert "constant 3.0" in told
    for damaged in _programs(tmp_path):
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(bytes(data))
    assert _compiles(_start(tmp_path)) <= 1
    cleared = runner.invoke(app, ["cache", "clear", "--directory", str(tmp_path), "--json"])
    assert json.loads(cleared.stdout)["programs"] == 2
    assert _programs(tmp_path) == []


def _key(**parts: str) -> ProgramKey:
    return ProgramKey({"lir": "a", **parts}, "%0 = constant 1.0")


def test_entries_come_back_whole_or_not_at_all(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)
    assert cache.get(_key()) is None
    cache.put(_key(), b"program" * 100, "f", 1.5)
    assert cache.get(_key()) == b"program" * 100
    assert cache.get(_key(target="cpu")) is None
    (path,) = tmp_path.glob(f"*{SUFFIX}")
    whole = path.read_bytes()
    harmful: list[bytes] = [b"", whole[:40], whole[:-1], whole + b"x", b"foreign" * 50]
    harmful += [
        whole[:i] + bytes([whole[i] ^ 255]) + whole[i + 1 :] for i in range(0, len(whole), 37)
    ]
    for data in harmful:
        path.write_bytes(data)
        assert cache.get(_key()) is None
        assert cache.entries() == []
    path.unlink()
    path.mkdir()
    assert cache.get(_key()) is None
    cache.put(_key(), b"program", "f", 1.0)
    path.rmdir()
    (tmp_path / "half.part").write_bytes(b"half")
    cache.put(_key(), b"program", "f", 1.0)
    assert cache.get(_key()) == b"program"
    assert cache.clear() > 0
    assert list(tmp_path.iterdir()) == []


def test_an_entry_of_another_key_is_not_taken(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)
    cache.put(_key(), b"one", "f", 1.0)
    (path,) = tmp_path.glob(f"*{SUFFIX}")
    other = _key(versions="jax 9")
    path.rename(tmp_path / f"{other.digest}{SUFFIX}")
    assert cache.get(other) is None


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path, max_bytes=4_000)
    keys = [_key(lir=str(i)) for i in range(4)]
    for age, key in enumerate(keys[:3]):
        cache.put(key, b"x" * 1_000, "f", 1.0)
        os.utime(tmp_path / f"{key.digest}{SUFFIX}", (100 + age, 100 + age))
    assert cache.get(keys[0]) is not None
    cache.put(keys[3], b"x" * 1_000, "f", 1.0)
    assert [cache.get(key) is not None for key in keys] == [True, False, True, True]
    cache.put(_key(lir="huge"), b"x" * 10_000, "f", 1.0)
    assert cache.get(_key(lir="huge")) is None


def test_writers_and_readers_at_once(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path, max_bytes=30_000)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(60):
            key = _key(lir=str((seed + i) % 7))
            cache.put(key, key.digest.encode() * 50, "f", 1.0)
            found = cache.get(key)
            if found not in (None, key.digest.encode() * 50):
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.size()[1] <= 30_000


def test_keys_are_found_and_compared(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)
    cache.put(_key(), b"one", "f", 1.0)
    cache.put(ProgramKey({"lir": "b", "flags": "x"}, "%0 = constant 2.0"), b"two", "g", 1.0)
    one, other = (e for e in sorted(cache.entries(), key=lambda e: e.name))
    assert cache.find(one.key[:8]) == one
    assert explain(one, other) == [
        "flags: none → x",
        "lir: a → b",
        "-%0 = constant 1.0",
        "+%0 = constant 2.0",
    ]
    with pytest.raises(
        CompileError, match=r"begins with 'zz' is required; .* has none; its keys: "
    ):
        cache.find("zz")
    with pytest.raises(CompileError, match=r"has several: .*Give more characters"):
        cache.find("")


def test_a_cache_that_is_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    result = CliRunner().invoke(app, ["cache", "list"])
    assert result.exit_code == 1
    assert "a directory is required; the cache is off" in result.output


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    message = (
        "enable_cache: a directory that can be made and written to is required; got "
        f"{file / 'cache'}: Not a directory. Name another."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        enable_cache(file / "cache")
