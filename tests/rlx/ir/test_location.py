"""Where a node came from: files, cells of notebooks, and what stands around."""

from __future__ import annotations

import sys
import types

import pytest

from rlx.ir import location


def test_a_cell_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"/scratch/ipykernel_41/7.py": ("Cell", "In[3]")}
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(format_code_name=names.get))
    fake = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert str(location.intern("/scratch/ipykernel_41/7.py", 6, "layer")) == "layer In[3]:6"
    assert str(location.intern("/scratch/ipykernel_41/8.py", 6)) == "8.py:6"  # unknown to it
    assert str(location.intern("/home/me/model.py", 2)) == "model.py:2"


def test_without_a_shell_files_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.SimpleNamespace(get_ipython=lambda: None)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert str(location.intern("/scratch/ipykernel_42/9.py", 1)) == "9.py:1"


def test_what_is_given_around() -> None:
    assert location.enclosing() is location.UNKNOWN
    here = location.intern("model.py", 3)
    with location.at(here):
        assert location.enclosing() is here


def test_moving_gives_back_what_was_there() -> None:
    first, second, outer = (location.Location("f.py", n) for n in (1, 2, 3))
    with location.at(outer):
        with location.moving() as move:
            assert location.enclosing() == outer
            move(first)
            assert location.enclosing() == first
            with location.at(outer):
                assert location.enclosing() == outer
            move(second)
            assert location.enclosing() == second
        assert location.enclosing() == outer
    assert location.enclosing() == location.UNKNOWN
