"""Names of rlx_xla load on first use, and those that hide a module of their name stay functions."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from types import ModuleType

import pytest

pytest.importorskip("jax")

import rlx_xla
from rlx_xla.on_demand import found_in
from tests.policy.public_names import on_file

PUBLIC = sorted(
    name.removeprefix("rlx_xla.") for name in on_file() if name.count(".") == 1 and "xla." in name
)

PROBE = """
import json, sys
import {first}
import rlx
from rlx_xla.generation.model import LanguageModel
rlx.Session("cpu")
print(json.dumps(sorted(m for m in sys.modules if m.startswith(("rlx", "jax.")))))
import rlx_xla.aot.targets, rlx_xla.doctor, rlx_xla.quantize, rlx_xla.simulate
for name in ("aot", "doctor", "quantize", "simulate"):
    assert type(getattr(rlx_xla, name)).__name__ == "function", name
assert rlx_xla.lowering.module.__name__ == "rlx_xla.lowering.module"
assert rlx_xla.kernels.select.__name__ == "rlx_xla.kernels.select"
assert rlx_xla.tracing.trace.__name__ == "rlx_xla.tracing.trace"
"""


def test_what_kernels_of_others_are_made_of_stands_in_one_place() -> None:
    from rlx_xla import kernels

    assert set(kernels._LAZY) <= set(dir(kernels))
    for name, home in kernels._LAZY.items():
        assert getattr(kernels, name) is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match=r"module 'rlx_xla\.kernels' has no attribute 'Ffi'"):
        _ = kernels.Ffi


def test_every_public_name_is_found() -> None:
    assert len(PUBLIC) > 15
    assert set(PUBLIC) <= set(dir(rlx_xla))
    for name in PUBLIC:
        found = getattr(rlx_xla, name)
        assert isinstance(found, ModuleType) is (name in rlx_xla._MODULES), name
        home = rlx_xla._LAZY.get(name)
        if home is not None:
            assert found is getattr(importlib.import_module(home), name)
    assert {*rlx_xla._LAZY, *rlx_xla._MODULES} == set(PUBLIC)


def test_what_runs_compiled_programs_loads_no_ops() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(first="rlx_xla")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    families = {m for m in loaded if m.startswith("rlx.ops.")}
    assert families == {"rlx.ops.external", "rlx.ops.random_bits"}, "the graph's own, no families"
    heavy = ("rlx_xla.aot", "rlx_xla.kernels.library", "rlx_xla.lowering.module", "rlx.packing")
    assert loaded.isdisjoint((*heavy, "rlx.passes.pipelines", "rlx_xla.tracing.trace"))
    others = ("jax.extend", "jax.experimental.pallas", "jax.experimental.multihost_utils")
    assert loaded.isdisjoint(others)


def test_there_is_no_such_name() -> None:
    for name in ("nothing", "_nothing"):
        with pytest.raises(AttributeError) as caught:
            found_in("rlx_xla", name, {})
        assert str(caught.value) == f"module 'rlx_xla' has no attribute {name!r}"
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from rlx_xla import nothing")
