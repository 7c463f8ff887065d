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

def both(op, x):
    op.require("C1", x, "…")
    second(x, op)

def second(x, this):
    this.require_same_dims("C2", x, x, "…")
'''

BODIES: list[tuple[str, list[str]]] = [
    ('self.require("C1", x, "…"); self.require("C2", x, "…")', []),
    ("return both(self, x)", []),
    ("return shared.both(self, x)", []),
    ('check_axes(self, x, labels=("C1", "C2"))', []),
    ('self.require("C1", x, "…")', ["documents C2 and never checks it"]),
    ("return both(x, x)", ["documents C1 and never", "documents C2 and never"]),
    ('both(self, x); self.require("C3", x, "…")', ["checks C3 and does not document it"]),
]


@pytest.mark.parametrize(("body", "expected"), BODIES)
def test_findings(body: str, expected: list[str]) -> None:
    module = Module("rlx/ops/sample.py", SAMPLE.format(body=body))
    found = list(labels.findings(module, labels.shared_functions([module])))
    assert len(found) == len(expected)
    for finding, text in zip(found, expected, strict=True):
        assert finding.startswith("rlx/ops/sample.py:3: Sample")
        assert text in finding
