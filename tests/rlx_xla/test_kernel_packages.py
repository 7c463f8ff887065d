"""Kernels that another package brings: its entry point, its library, and what may be wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from rlx.errors import RegistryError
from rlx.ops.arithmetic import Neg
from rlx_xla.kernels import ffi, select

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "tests" / "packages"
ARGMAX = "argmax.cpu.ffi"

PROGRAM = """
import numpy as np
import rlx
import rlx_xla
from rlx.errors import KernelError
from rlx.options.dispatch import KernelDispatch, KernelPolicy
from rlx_xla.kernels.select import all_kernels

names = [k.name for k in all_kernels()]
assert "square.cpu.example" in names and "square.cuda.example" in names
Square = rlx.ops.Square


def compiled(dtype, **dispatch):
    b = rlx.GraphBuilder("g")
    graph = b.build(Square()(b.input("x", f"{dtype}[100]")))
    options = rlx.CompileOptions(kernel_dispatch=KernelDispatch(**dispatch))
    return rlx.Session("cpu").compile(graph, options=options)


x = np.random.default_rng().normal(size=100).astype(np.float32)
native = compiled("f32")
(choice,) = native.report().kernels
assert choice.implementation == "square.cpu.example" and not choice.refused
assert "stablehlo.abs" in native.stablehlo(kernels=True)
np.testing.assert_array_equal(native.run({"x": x})[0], x * x)
common = compiled("f32", policy=KernelPolicy.FORCE_COMMON)
assert not common.report().kernels and "stablehlo.abs" not in common.stablehlo(kernels=True)
np.testing.assert_array_equal(common.run({"x": x})[0], x * x)
(choice,) = compiled("f16").report().choices
assert choice.refused == (
    "square.cpu.example: x is f16 and not f32",
    "square.cuda.example: registered for cuda; the platform asked is cpu",
), choice
try:
    compiled("f32", forced={"square.cuda.example"})
except KernelError as error:
    assert "registered for cuda; the platform asked is cpu" in str(error), error
else:
    raise AssertionError
from rlx_xla.lowering.registry import coverage
assert coverage()["square"]["cpu"].startswith("kernel square.cpu.example")
assert rlx_xla.jit(lambda v: v * v)(x).shape == (100,)
print("done")
"""


def _in_package(program: str, **environment: str) -> None:
    """Run a program where the example package is installed; it prints ``done``."""
    path = os.pathsep.join([str(PACKAGES / "example_kernels"), str(ROOT)])
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr


def test_an_installed_package_brings_kernels() -> None:
    _in_package(PROGRAM)


LIBRARY_PROGRAM = """
import jax
import numpy as np
import rlx
import rlx_xla
from rlx.ops.arithmetic import IntegerPow

NAME = "integer_pow.cpu.example"
b = rlx.GraphBuilder("step")
body = b.build(IntegerPow(exponent=3)(b.input("c", "f64[5]")))
b = rlx.GraphBuilder("g")
x = b.input("x", "f64[5]")
graph = b.build(IntegerPow(exponent=3)(x), rlx.ops.Scan(body=body, length=2, num_carry=1)(x))
compiled = rlx.Session("cpu").compile(graph)
kernels = {c.implementation: c.count for c in compiled.report().kernels}
assert kernels == {NAME: 2}, compiled.report()
assert "example_cube_f64_cpu." in compiled.stablehlo(kernels=True)
value = np.random.default_rng().normal(size=5)
once, twice = compiled.run({"x": value})
np.testing.assert_allclose(once, value**3, rtol=1e-15)
np.testing.assert_allclose(twice, value**9, rtol=1e-14)
jax.config.update("jax_enable_x64", True)
fast = rlx_xla.jit(lambda v: v**3)
batch = np.random.default_rng().normal(size=(3, 5))
assert "example_cube_f64_cpu." in jax.jit(jax.vmap(fast)).lower(batch).as_text()
np.testing.assert_allclose(jax.vmap(fast)(batch), batch**3, rtol=1e-15)
np.testing.assert_allclose(jax.grad(lambda v: fast(v).sum())(value), 3 * value**2, rtol=1e-14)
print("done")
"""

REFUSED_PROGRAM = """
import rlx
from rlx.ops.arithmetic import IntegerPow

b = rlx.GraphBuilder("g")
compiled = rlx.Session("cpu").compile(b.build(IntegerPow(exponent=3)(b.input("x", "f64[5]"))))
(choice,) = compiled.report().choices
assert choice.refused == ("integer_pow.cpu.example: nothing.so is not built",), choice
print("done")
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build a library with")
def test_a_package_brings_a_library_of_its_own(tmp_path: Path) -> None:
    source = PACKAGES / "example_kernels" / "example_kernels" / "cube.cc"
    library = tmp_path / "cube.so"
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-I", jax.ffi.include_dir()]
    subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True, timeout=120)
    _in_package(LIBRARY_PROGRAM, EXAMPLE_LIBRARY=str(library))


def test_a_package_without_its_library_says_so(tmp_path: Path) -> None:
    _in_package(REFUSED_PROGRAM, EXAMPLE_LIBRARY=str(tmp_path / "nothing.so"))


def test_a_library_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.so"
    assert ffi.open_library(path, (0, 1)) == ffi.Unavailable("other.so is not built")
    path.write_bytes(b"no library")
    found = ffi.open_library(path, (0, 0))
    assert isinstance(found, ffi.Unavailable)
    assert found.reason.startswith("other.so does not load (")
    found = ffi.open_library(path, (99, 0))
    assert isinstance(found, ffi.Unavailable)
    assert found.reason.startswith("other.so is built for XLA FFI 99.0 and the installed jaxlib")


class _Point:
    """An entry point of a package that is not there."""

    value = "broken:kernels"
    dist = None

    def __init__(self, loads: Any) -> None:
        self._loads = loads

    def load(self) -> Any:
        if isinstance(self._loads, Exception):
            raise self._loads
        return self._loads


@pytest.mark.parametrize(
    ("loads", "text"),
    [
        (
            ImportError("no such module"),
            "kernels of an unknown package: broken:kernels does not load: no such module. "
            "Reinstall or uninstall that package.",
        ),
        (
            lambda: ["argmax"],
            "register_kernel: an instance of rlx_xla.kernels.base.AbstractKernel is required; "
            "got 'argmax'.",
        ),
        (
            lambda: [replace(select._KERNELS[ARGMAX], op=Neg)],
            f"register_kernel: the name {ARGMAX!r} is taken by a kernel for 'argmax' "
            "(rlx_xla.kernels.base.FfiKernel); the second one is a kernel for 'neg' "
            "(rlx_xla.kernels.base.FfiKernel). Rename one.",
        ),
    ],
)
def test_a_package_of_broken_kernels_is_named(
    loads: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    select.load_kernels()
    monkeypatch.setattr(select, "_loaded", False)
    monkeypatch.setattr(select, "entry_points", lambda group: [_Point(loads)])
    for _ in range(2):  # a second attempt does not pass in silence
        with pytest.raises(RegistryError) as caught:
            select.load_kernels()
        assert str(caught.value) == text
