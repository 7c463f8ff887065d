"""The rules: from a module to its findings, one line each, "path:line: what"."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.policy.sources import Module, imported_names, is_within

MAX_LINES = 600
BANNED_STEMS = ("utils", "util", "helpers", "helper", "common", "misc")
DOOR = "rlx_xla/_jax_compat"
ENVIRONMENT_READERS = ("rlx/options", "rlx_xla/doctor", "rlx_xla/aot")
ERRORS = "rlx/errors.py"
OPEN_BASES = {"Enum", "IntEnum", "StrEnum", "Flag", "NamedTuple", "Protocol", "TypedDict"}
OPEN_CLASSES = {
    "rlx/ir/op.py:Op",  # what ops derive from, third parties' too
    "rlx/ir/operators.py:ValueOperators",  # the half of Value that knows the ops
}
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


def error_classes(module: Module) -> Iterator[str]:
    """Errors are declared in one file."""
    if module.path == ERRORS:
        return
    for node in _classes(module):
        if any(name.endswith(("Error", "Exception")) for name in _bases(node)):
            yield f"{module.path}:{node.lineno}: {node.name} belongs to {ERRORS}."


def abstract_or_final(module: Module) -> Iterator[str]:
    """A class is final, or its name starts with Abstract; an op derives from Op only."""
    if module.path == ERRORS:
        return
    for node in _classes(module):
        bases, where = _bases(node), f"{module.path}:{node.lineno}: {node.name}"
        if "define_op" in _decorators(node):
            if bases != ["Op"]:
                yield f"{where} is an op; it derives from Op only, not from {', '.join(bases)}."
        elif not (
            "final" in _decorators(node)
            or node.name.lstrip("_").startswith("Abstract")
            or OPEN_BASES & set(bases)
            or f"{module.path}:{node.name}" in OPEN_CLASSES
        ):
            yield f"{where} is made: mark it @final. If it is derived from, name it Abstract…."


def _classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]


def _decorators(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(d).split("(")[0].split(".")[-1] for d in node.decorator_list}


ALL = (
    size,
    file_name,
    core_imports,
    unstable_imports,
    environment,
    broad_except,
    error_classes,
    abstract_or_final,
)
