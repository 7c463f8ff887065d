"""Notebooks are numbered, hold their outputs, assert what they claim, and name no machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def _code(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_are_notebooks_and_no_number_twice() -> None:
    numbers = [re.match(r"(\d\d)_[a-z0-9_]+\.ipynb$", n.name) for n in NOTEBOOKS]
    assert numbers
    assert all(numbers)
    assert len({m.group(1) for m in numbers if m}) == len(NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_it_was_run_from_top_to_bottom(notebook: Path) -> None:
    cells = _code(notebook)
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    kinds = {o["output_type"] for c in cells for o in c["outputs"]}
    assert kinds
    assert "error" not in kinds
    streams = [o for c in cells for o in c["outputs"] if o["output_type"] == "stream"]
    assert all(o["name"] == "stdout" for o in streams)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_each_cell_asserts(notebook: Path) -> None:
    """All but the first, which imports."""
    silent = [
        i for i, c in enumerate(_code(notebook)) if i and "assert " not in "".join(c["source"])
    ]
    assert not silent


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_it_runs_anywhere(notebook: Path) -> None:
    text = notebook.read_text(encoding="utf-8")
    kernel = json.loads(text)["metadata"]["kernelspec"]
    assert (kernel["name"], kernel["display_name"]) == ("python3", "Python 3")
    assert not re.findall(r"(?:/home/|/root/|/tmp/|/Users/|site-packages)", text)
