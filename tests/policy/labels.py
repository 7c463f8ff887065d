"""Constraint labels of ops: those a class documents and those it checks.

A label is checked where it is an argument of a call: `self.require("C1", …)` in the class, or in a
function of `rlx/ops` that the class hands itself to, as `binary_result(self, lhs, rhs)`, and so on
from function to function.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from tests.policy.sources import Module

_LABEL = re.compile(r"C\d+")
_DOCUMENTED = re.compile(r"^\s*(C\d+):", re.MULTILINE)
_SECTION = re.compile(r"^Constraints:\n((?: +.*\n| *\n)*)", re.MULTILINE)

Functions = Mapping[str, tuple[Module, ast.FunctionDef]]


def op_classes(module: Module) -> Iterator[ast.ClassDef]:
    """Yield the classes of a module that `@define_op` decorates."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and any(
            isinstance(d, ast.Call) and ast.unparse(d.func).split(".")[-1] == "define_op"
            for d in node.decorator_list
        ):
            yield node


def shared_functions(modules: Iterable[Module]) -> Functions:
    """Return the top-level functions of `rlx/ops` by their full name, "rlx.ops.dot.check"."""
    return {
        f"{_dotted(module)}.{node.name}": (module, node)
        for module in modules
        if module.below("rlx/ops")
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef)
    }


def documented(op: ast.ClassDef) -> set[str]:
    """Return the labels in the Constraints section of a class docstring."""
    section = _SECTION.search((ast.get_docstring(op) or "") + "\n")
    return set(_DOCUMENTED.findall(section.group(1))) if section else set()


def checked(module: Module, op: ast.ClassDef, functions: Functions) -> set[str]:
    """Return the labels that the class, or a function it hands itself to, gives to a call."""
    labels: set[str] = set()
    seen: set[str] = set()
    pending: list[tuple[Module, ast.AST, str]] = [(module, op, "self")]
    while pending:
        place, scope, instance = pending.pop()
        names = _imports(place)
        for call in ast.walk(scope):
            if not isinstance(call, ast.Call):
                continue
            arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
            labels |= {label for argument in arguments for label in _labels_in(argument)}
            name = _full_name(call.func, place, names)
            position = next(
                (
                    i
                    for i, a in enumerate(call.args)
                    if isinstance(a, ast.Name) and a.id == instance
                ),
                None,
            )
            if name not in functions or position is None:
                continue
            home, function = functions[name]
            parameters = [*function.args.posonlyargs, *function.args.args]
            if position >= len(parameters):
                continue
            labels |= set(_default_labels(function, call))
            if name not in seen:
                seen.add(name)
                pending.append((home, function, parameters[position].arg))
    return labels


def _dotted(module: Module) -> str:
    return module.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(module: Module) -> dict[str, str]:
    """Return what the names that a module imports stand for."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }


def _full_name(called: ast.expr, place: Module, names: Mapping[str, str]) -> str:
    head, dot, rest = ast.unparse(called).partition(".")
    return names.get(head, f"{_dotted(place)}.{head}") + dot + rest


def _default_labels(function: ast.FunctionDef, call: ast.Call) -> Iterator[str]:
    """Yield the labels that are defaults of parameters which a call does not give."""
    positional = [*function.args.posonlyargs, *function.args.args]
    first = len(positional) - len(function.args.defaults)
    pairs = [
        *zip(
            positional[max(first, len(call.args)) :],
            function.args.defaults[max(0, len(call.args) - first) :],
            strict=True,
        ),
        *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True),
    ]
    given = {keyword.arg for keyword in call.keywords}
    for parameter, default in pairs:
        if default is not None and parameter.arg not in given:
            yield from _labels_in(default)


def _labels_in(argument: ast.expr) -> Iterator[str]:
    if isinstance(argument, ast.Constant):
        if isinstance(argument.value, str) and _LABEL.fullmatch(argument.value):
            yield argument.value
    elif isinstance(argument, ast.Tuple | ast.List):
        for element in argument.elts:
            yield from _labels_in(element)


def findings(module: Module, functions: Functions) -> Iterator[str]:
    """Yield one line for each label that is documented and not checked, or the reverse."""
    for op in op_classes(module):
        said, done = documented(op), checked(module, op, functions)
        where = f"{module.path}:{op.lineno}: {op.name}"
        for label in sorted(said - done):
            yield f'{where} documents {label} and never checks it. Add self.require("{label}", …).'
        for label in sorted(done - said):
            yield f"{where} checks {label} and does not document it. Add it to Constraints."
