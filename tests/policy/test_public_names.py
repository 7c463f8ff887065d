"""The public surface changes on purpose only."""

from __future__ import annotations

from tests.policy.public_names import COMMAND, current, declared, on_file


def test_public_names_are_those_on_file() -> None:
    now, before = set(current()), set(on_file())
    assert now == before, f"new: {sorted(now - before)}; gone: {sorted(before - now)}. {COMMAND}"


def test_what_counts_as_declared() -> None:
    source = """
from typing import TYPE_CHECKING
from rlx.ir.graph import Graph as Graph, Node
from rlx.ir import text as _text
from . import ops as ops
import rlx.passes as passes
if TYPE_CHECKING:
    from rlx.session import Session as Session
__version__ = "1"
LIMIT: int = 3
def bind(): ...
def _hidden(): ...
"""
    names = {name for name in declared(source) if not name.startswith("_")}
    assert names == {"Graph", "ops", "passes", "Session", "LIMIT", "bind"}
