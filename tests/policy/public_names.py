"""The public names of the packages, as their `__init__` files declare them, and the list on file.

A name is public if an `__init__` re-exports it under its own name (`from a import B as B`), or
defines it there, without a leading underscore. Read from the source: nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.policy.sources import PACKAGES, ROOT

SNAPSHOT = Path(__file__).with_suffix(".txt")
COMMAND = "python -m tests.policy.update_public_names"


def declared(source: str) -> Iterator[str]:
    """Yield the public names that the text of an `__init__` declares."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.asname is not None and alias.asname == alias.name.split(".")[-1]:
                    yield alias.asname
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def current() -> list[str]:
    """Return the public names of all packages, "rlx.Graph" and so on, sorted."""
    names: set[str] = set()
    for package in PACKAGES:
        init = ROOT / package / "__init__.py"
        if init.is_file():
            found = declared(init.read_text(encoding="utf-8"))
            names |= {f"{package}.{name}" for name in found if not name.startswith("_")}
    return sorted(names)


def on_file() -> list[str]:
    """Return the checked-in names."""
    return SNAPSHOT.read_text(encoding="utf-8").split()
