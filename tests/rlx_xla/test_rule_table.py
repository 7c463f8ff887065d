"""The table of rules that every decorator has: clashes, re-imports, look-ups that import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rlx.errors import RegistryError
from rlx_xla.lowering.registry import lowers
from rlx_xla.rule_table import RuleTable
from rlx_xla.tracing.jax_registry import to_jax_rule
from rlx_xla.tracing.registry import traces
from rlx_xla.tracing.stablehlo.registry import imports


def _ours(ctx: Any, op: Any, x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("register", "where"),
    [
        (lambda: lowers(_neg())(_ours), "lowers: op 'neg' on every platform"),
        (lambda: traces("neg")(_ours), "traces: primitive 'neg'"),
        (lambda: imports("stablehlo.negate")(_ours), "imports: op 'stablehlo.negate'"),
        (lambda: to_jax_rule(_neg())(_ours), "to_jax_rule: op 'neg'"),
    ],
)
def test_a_second_rule_names_both(register: Any, where: str) -> None:
    from rlx_xla.lowering.registry import rule_for
    from rlx_xla.tracing import jax_registry, registry
    from rlx_xla.tracing.stablehlo import registry as foreign

    rule_for(_neg(), "cpu")
    jax_registry.jax_rule_for(_neg())
    registry.modelled()
    foreign.modelled()
    with pytest.raises(RegistryError) as caught:
        register()
    text = str(caught.value)
    assert text.startswith(f"{where} has a rule rlx_xla.")
    assert text.endswith(f"; {__name__}._ours is a second one.")


def _neg() -> Any:
    from rlx.ops.arithmetic import Neg

    return Neg


def test_a_look_up_imports_the_package_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some_rules"
    package.mkdir()
    (package / "__init__.py").write_text("table = None\nimported = []\n")
    (package / "first.py").write_text(
        "import some_rules\n\ndef rule():\n    return 'first'\n\n"
        "some_rules.imported.append(__name__)\nsome_rules.table.claim('a', rule, \"key 'a'\")\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import some_rules  # pyright: ignore[reportMissingImports]

    table: RuleTable[str] = RuleTable("registers", "some_rules")
    some_rules.table = table
    assert table.get("a") is None
    found = table.find("a")
    assert found is not None
    assert found() == "first"
    assert table.find("b") is None
    assert some_rules.imported == ["some_rules.first"]
    with pytest.raises(RegistryError) as caught:
        table.claim("a", _ours, "key 'a'")
    assert str(caught.value) == (
        f"registers: key 'a' has a rule some_rules.first.rule; {__name__}._ours is a second one."
    )
    table.claim("a", found, "key 'a'")  # its own module may come again
    for name in ("some_rules", "some_rules.first"):
        sys.modules.pop(name)
