"""How every op reaches every platform: what is missing is written down here."""

from __future__ import annotations

from rlx_xla.lowering.registry import PLATFORMS, coverage

MISSING: set[tuple[str, str]] = set()
"""(op, platform) without a rule, a kernel or a decomposition. An entry that holds no longer fails
the test, as does one that is new."""

OURS = "rlx.ops."


def test_what_is_missing_is_on_the_list() -> None:
    from rlx.ir.op import all_ops

    table = coverage()
    found = {
        (name, platform)
        for name, row in table.items()
        for platform, how in row.items()
        if how.startswith("missing") and all_ops()[name].__module__.startswith(OURS)
    }
    assert found == MISSING


def test_every_cell_says_how() -> None:
    for name, row in coverage().items():
        assert set(row) == set(PLATFORMS), name
        for how in row.values():
            assert how.startswith(("rule", "decomposition", "kernel ", "missing: ")), how
