"""The README is true: its tables are current, its code runs, and what it names exists."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import markdown, readme

TEXT = markdown.README.read_text(encoding="utf-8")
REFRESH = "Run: python -m tests.docs.readme --write"

pytest.importorskip("flax")


@pytest.mark.parametrize("name", readme.TABLES)
def test_generated_tables_are_current(name: str) -> None:
    wanted = readme.TABLES[name]().strip()
    assert markdown.generated(TEXT, name).strip() == wanted, f"{name}: {REFRESH}"


def test_examples_run_as_shown() -> None:
    """All ``pycon`` blocks are one session: an example may use what an earlier one made."""
    source = "\n".join(markdown.blocks(TEXT, "pycon"))
    test = doctest.DocTestParser().get_doctest(source, {}, "README.md", str(markdown.README), 0)
    assert len(test.examples) > 20
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    failed, _ = runner.run(test, out=told.append)
    assert not failed, "".join(told)


def test_recipes_run(tmp_path: Path) -> None:
    """The Python of the recipes is one module, in a process of its own: it registers things."""
    recipes = markdown.blocks(markdown.section(TEXT, "## Recipes"), "python")
    assert len(recipes) >= 9
    module = tmp_path / "recipes.py"
    module.write_text("from __future__ import annotations\n\n" + "\n\n".join([*recipes, CHECK]))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(module)],
        cwd=markdown.ROOT,
        env={**os.environ, "PYTHONPATH": str(markdown.ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


CHECK = """
from rlx.ir.graph import make_node
from rlx.dtypes import as_dtype
from rlx.ops.io import Input
from rlx.types import as_type

count = 0
for sample in samples(np.random.default_rng(0)):
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in sample.inputs]
    (wanted,) = sample.op.infer_types(types)
    found = sample.op.evaluate(*sample.inputs)
    assert (as_dtype(found.dtype), found.shape) == (wanted.dtype, wanted.shape)
    count += 1
for sample in error_samples():
    leaves = [
        Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)()
        for i, t in enumerate(map(as_type, sample.types))
    ]
    try:
        make_node(sample.build(), leaves)
    except sample.error as error:
        assert error.label == sample.label and sample.match in str(error)
    else:
        raise AssertionError(sample)
    count += 1
assert count > 5 and len(list(symbolic_samples())) == 1
assert isinstance(KERNEL.supports(Hypot(), [as_type("f16[2]")] * 2, "cpu"), Refused)
"""


def test_the_kernel_of_the_recipe_compiles(tmp_path: Path) -> None:
    jax_ffi = pytest.importorskip("jax").ffi
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    core, handler = markdown.blocks(markdown.section(TEXT, "### Add a kernel"), "cpp")
    (tmp_path / "hypot.h").write_text(core, encoding="utf-8")
    (tmp_path / "hypot.cc").write_text(handler, encoding="utf-8")
    sources = markdown.ROOT / "rlx_xla" / "kernels" / "cc"
    done = subprocess.run(
        [
            compiler, "-std=gnu++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-psabi",
            "-I", str(tmp_path), "-I", str(sources), "-isystem", jax_ffi.include_dir(),
            str(tmp_path / "hypot.cc"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_command_is_listed() -> None:
    pytest.importorskip("typer")
    from rlx_xla.cli.main import app

    listed = re.findall(r"^\| `rlx-xla (\w+)", markdown.section(TEXT, "## Command line"), re.M)
    commands = [c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands]
    commands += [str(group.name) for group in app.registered_groups]
    assert sorted(listed) == sorted(commands)


def _prose() -> str:
    return re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)


def test_names_exist() -> None:
    """Every ``rlx…`` name in backticks can be reached."""
    names = set(re.findall(r"`((?:rlx|rlx_xla)(?:\.\w+)+)", _prose()))
    assert len(names) > 15
    missing = [name for name in names if name not in ENTRY_POINT_GROUPS and not _exists(name)]
    assert not missing


ENTRY_POINT_GROUPS = {"rlx.backends", "rlx_xla.kernels"}


def test_paths_exist() -> None:
    """Every path in backticks is there, but for the ones with a place to fill in."""
    paths = set(re.findall(r"`((?:rlx|rlx_xla|tests|notebooks)/[^`\s]*)`", _prose()))
    assert len(paths) > 15
    missing = [p for p in paths if "<" not in p and not (markdown.ROOT / p).exists()]
    assert not missing


def test_links_stay_on_the_page() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in _prose().splitlines()
        if line.startswith("#")
    }
    targets = set(re.findall(r"\]\(#([^)]+)\)", _prose()))
    assert targets
    assert targets <= headings


def test_errors_are_listed() -> None:
    from rlx import errors

    wanted = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.RlxError)
    } - {"RlxError"}
    assert wanted <= set(re.findall(r"`(\w+)`", markdown.section(TEXT, "## Errors")))


def _exists(name: str) -> bool:
    parts = name.split(".")
    found: object = importlib.import_module(parts[0])
    for position, part in enumerate(parts[1:], 1):
        if not hasattr(found, part):
            prefix = ".".join(parts[:position])
            if importlib.util.find_spec(f"{prefix}.{part}") is None:
                return False
            importlib.import_module(f"{prefix}.{part}")
        found = getattr(found, part)
    return True
