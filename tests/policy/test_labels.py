"""Every constraint's label stands in the docstring and in a check."""

from __future__ import annotations

import pytest

from tests.policy import labels
from tests.policy.sources import Module, modules


def test_labels() -> None:
    sources = modules()
    functions = labels.shared_functions(sources)
    found = [f for module in sources for f in labels.findings(module, functions)]
    assert not found, "\n".join(found)


SAMPLE = '''
from rlx.ops import shared
from rlx.ops.shared import both

@define_op("sample")
class Sample(Op):
    """A sample.

    Constraints:
        C1: one thing.
        C2: another thing, told
            on two lines.

    Numerics: C9: is not a constraint here.
    """

    def infer(self, x):
        {body}

def same_name(op, x):
    op.require("C1", x, "…")
    shared.same_name(x, op)

def with_default(op, x, second="C1", *, third="C2"):
    op.require(second, x, "…")
    op.require(third, x, "…")
'''

SHARED = """
def both(op, x):
    op.require("C1", x, "…")
    same_name(x, op)

def same_name(x, this):
    this.require_same_dims("C2", x, x, "…")
"""

BODIES: list[tuple[str, list[str]]] = [
    ('self.require("C1", x, "…"); self.require("C2", x, "…")', []),
    ("return both(self, x)", []),
    ("return shared.both(self, x)", []),
    ("same_name(self, x)", []),
    ("with_default(self, x)", []),
    ('with_default(self, x, "C2")', ["documents C1 and never checks it"]),
    ('with_default(self, x, second="C1", third="C2")', []),
    ("return other.both(self, x)", ["documents C1 and never", "documents C2 and never"]),
    ('check_axes(self, x, labels=("C1", "C2"))', []),
    ('self.require("C1", x, "…")', ["documents C2 and never checks it"]),
    ("return both(x, x)", ["documents C1 and never", "documents C2 and never"]),
    ('both(self, x); self.require("C3", x, "…")', ["checks C3 and does not document it"]),
]


@pytest.mark.parametrize(("body", "expected"), BODIES)
def test_findings(body: str, expected: list[str]) -> None:
    module = Module("rlx/ops/sample.py", SAMPLE.format(body=body))
    functions = labels.shared_functions([module, Module("rlx/ops/shared.py", SHARED)])
    found = list(labels.findings(module, functions))
    assert len(found) == len(expected)
    for finding, text in zip(found, expected, strict=True):
        assert finding.startswith("rlx/ops/sample.py:6: Sample")
        assert text in finding
