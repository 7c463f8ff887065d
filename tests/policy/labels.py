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

Functions = Mapping[str, ast.FunctionDef]


def op_classes(module: Module) -> Iterator[ast.ClassDef]:
    """Yield the classes of a module that `@define_op` decorates."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and any(
            isinstance(d, ast.Call) and ast.unparse(d.func).split(".")[-1] == "define_op"
            for d in node.decorator_list
        ):
            yield node


def shared_functions(modules: Iterable[Module]) -> dict[str, ast.FunctionDef]:
    """Return the top-level functions of `rlx/ops` by name."""
    return {
        node.name: node
        for module in modules
        if module.below("rlx/ops")
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef)
    }


def documented(op: ast.ClassDef) -> set[str]:
    """Return the labels in the Constraints section of a class docstring."""
    section = _SECTION.search((ast.get_docstring(op) or "") + "\n")
    return set(_DOCUMENTED.findall(section.group(1))) if section else set()


def checked(op: ast.ClassDef, functions: Functions) -> set[str]:
    """Return the labels that the class, or a function it hands itself to, gives to a call."""
    labels: set[str] = set()
    seen: set[str] = set()
    pending: list[tuple[ast.AST, str]] = [(op, "self")]
    while pending:
        scope, instance = pending.pop()
        for call in ast.walk(scope):
            if not isinstance(call, ast.Call):
                continue
            arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
            labels |= {label for argument in arguments for label in _labels_in(argument)}
            name = call.func.id if isinstance(call.func, ast.Name) else None
            if name is None and isinstance(call.func, ast.Attribute):
                name = call.func.attr
            function = functions.get(name or "")
            position = next(
                (
                    i
                    for i, a in enumerate(call.args)
                    if isinstance(a, ast.Name) and a.id == instance
                ),
                None,
            )
            if function is None or position is None or function.name in seen:
                continue
            parameters = [*function.args.posonlyargs, *function.args.args]
            if position < len(parameters):
                seen.add(function.name)
                pending.append((function, parameters[position].arg))
    return labels


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
        said, done = documented(op), checked(op, functions)
        where = f"{module.path}:{op.lineno}: {op.name}"
        for label in sorted(said - done):
            yield f'{where} documents {label} and never checks it. Add self.require("{label}", …).'
        for label in sorted(done - said):
            yield f"{where} checks {label} and does not document it. Add it to Constraints."
