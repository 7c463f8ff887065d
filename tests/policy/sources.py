"""The packages' source files, parsed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("rlx", "rlx_xla")


@dataclass(frozen=True)
class Module:
    """One source file.

    Attributes:
        path: relative to the repository, with forward slashes: "rlx/ir/graph.py".
        text: the source.
    """

    path: str
    text: str

    @property
    def package(self) -> str:
        """The top-level package, "rlx" or "rlx_xla"."""
        return self.path.split("/")[0]

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    def below(self, *places: str) -> bool:
        """Whether the file is one of the places, or in one: "rlx/options", "rlx_xla/doctor"."""
        return any(self.path == f"{p}.py" or self.path.startswith(f"{p}/") for p in places)


def modules() -> list[Module]:
    """Return every Python file of both packages, in order of path."""
    return [
        Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def imported_names(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the absolute dotted name of everything a module imports, anywhere in it.

    `from a import b` yields "a.b", which is below "a" whatever b is. A relative import yields its
    name below the module's own package.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                folders = module.path.split("/")[: -node.level]
                base = ".".join([*folders, *([base] if base else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def is_within(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of the packages or below one."""
    return any(name == p or name.startswith(f"{p}.") for p in packages)
