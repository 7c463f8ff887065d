"""Every op's docstring follows the template, and its names the convention."""

from __future__ import annotations

import inspect
import re

import pytest

from rlx.ir.op import Op, all_ops, define_op
from rlx.types import TensorType

OURS = {name: op for name, op in all_ops().items() if op.__module__.startswith("rlx.ops.")}


def findings(op: type[Op]) -> list[str]:
    """What the docstring and the name of an op lack."""
    doc = inspect.getdoc(op) or ""
    sections = _sections(doc)
    attributes = list(op.attribute_names)
    operands = [operand.name for operand in op.operands]
    wanted = {"Source", *(["Attributes"] if attributes else []), *(["Inputs"] if operands else [])}
    found = [f"no section {name}" for name in sorted(wanted - set(sections))]
    if not {"Result", "Results"} & set(sections):
        found.append("no section Result")
    found += _undocumented(attributes, sections.get("Attributes", ""), "attribute")
    found += _undocumented(operands, sections.get("Inputs", ""), "input")
    if not re.fullmatch(r"[^\n]+\.(\n\n.*)?", doc, re.DOTALL):
        found.append("the first line is one sentence, and a blank line follows")
    if op.__name__.lower() != op.op_name.replace("_", ""):
        found.append(f"class {op.__name__} and name {op.op_name} have one stem")
    return found


def _sections(doc: str) -> dict[str, str]:
    parts = re.split(r"^([A-Z][A-Za-z ]*):", doc, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _undocumented(names: list[str], text: str, kind: str) -> list[str]:
    return [f"{kind} {name} is not described" for name in names if not _describes(text, name)]


def _describes(text: str, name: str) -> bool:
    return re.search(rf"^ *[\w*, ]*\b{name}\b[\w, ]*:", text, re.MULTILINE) is not None


@pytest.mark.parametrize("op", OURS.values(), ids=OURS)
def test_op(op: type[Op]) -> None:
    assert findings(op) == []


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx.ir.op._OPS", dict(all_ops()))  # the sample leaves no trace

    @define_op("policy_sample")
    class Other(Op):
        """Sample without a template"""

        axis: int = 0

        def infer(self, x: TensorType) -> TensorType:
            return x

        def evaluate(self, x: object) -> object:
            return x

    assert findings(Other) == [
        "no section Attributes",
        "no section Inputs",
        "no section Source",
        "no section Result",
        "attribute axis is not described",
        "input x is not described",
        "the first line is one sentence, and a blank line follows",
        "class Other and name policy_sample have one stem",
    ]
