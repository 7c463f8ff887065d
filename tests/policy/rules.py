"""The rules: from a module to its findings, one line each, "path:line: what"."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.policy.sources import Module, imported_names, is_within

MAX_LINES = 600
BANNED_STEMS = ("utils", "util", "helpers", "helper", "common", "misc")
DOOR = "rlx_xla/_jax_compat"
ENVIRONMENT_READERS = ("rlx/options", "rlx_xla/doctor", "rlx_xla/aot")
_ENVIRONMENT_NAMES = ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")


def size(module: Module) -> Iterator[str]:
    """A module has at most 600 lines."""
    lines = len(module.text.splitlines())
    if lines > MAX_LINES:
        yield f"{module.path}: {lines} lines; at most {MAX_LINES}. Split it by family."


def file_name(module: Module) -> Iterator[str]:
    """No file, and no folder, is named for holding anything."""
    parts = [*module.path.split("/")[:-1], module.path.split("/")[-1].removesuffix(".py")]
    for part in parts:
        if part.strip("_") in BANNED_STEMS:
            yield f"{module.path}: a file is named for what it holds; {part!r} is not."


def core_imports(module: Module) -> Iterator[str]:
    """`rlx` imports neither jax nor rlx_xla."""
    if module.package != "rlx":
        return
    for line, name in imported_names(module):
        if is_within(name, "jax", "jaxlib", "rlx_xla", "flax"):
            yield f"{module.path}:{line}: rlx must not import {name}."


def unstable_imports(module: Module) -> Iterator[str]:
    """Only the door imports jaxlib and jax._src."""
    if module.below(DOOR):
        return
    for line, name in imported_names(module):
        if is_within(name, "jaxlib", "jax._src"):
            yield f"{module.path}:{line}: only {DOOR} may import {name}."


def environment(module: Module) -> Iterator[str]:
    """Only the options read the environment; doctor and aot also touch other tools' variables."""
    if module.below(*ENVIRONMENT_READERS):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in _ENVIRONMENT_NAMES:
            used = node.attr
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            used = next((a.name for a in node.names if a.name in _ENVIRONMENT_NAMES), None)
        else:
            used = None
        if used is not None:
            line = getattr(node, "lineno", 0)
            yield f"{module.path}:{line}: os.{used} belongs to {', '.join(ENVIRONMENT_READERS)}."


def broad_except(module: Module) -> Iterator[str]:
    """No bare `except`, and none for Exception or BaseException, alone or in a tuple."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type
        elements = caught.elts if isinstance(caught, ast.Tuple) else [caught]
        for element in elements:
            if element is None or ast.unparse(element).removeprefix("builtins.") in (
                "Exception",
                "BaseException",
            ):
                yield f"{module.path}:{node.lineno}: name the errors that are expected here."


ALL = (size, file_name, core_imports, unstable_imports, environment, broad_except)
