"""Variables: flags as RLX reads them, and values that code puts before them."""

from __future__ import annotations

import pytest

import rlx
from rlx.errors import CompileError
from rlx.options import env
from rlx.options.compile import CompileOptions

FLAGS = {
    "RLX_VERBOSE": "verbose",
    "RLX_CACHE_PARAM_INVARIANT": "cache_param_invariant",
    "RLX_LINT_NUMERICS": "lint_numerics",
    "RLX_FUSION_REPORT": "fusion_report",
    "RLX_DISPATCH_REPORT": "dispatch_report",
}


@pytest.mark.parametrize("text", ["1", "true", "on", "yes", "2", "anything", " 1 "])
def test_a_flag_is_on(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_VERBOSE", text)
    assert env.flag("RLX_VERBOSE")
    assert env.flag("verbose")


@pytest.mark.parametrize("text", ["0", "false", "off", "no", "", "  ", "FALSE", "Off"])
def test_a_flag_is_off(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_VERBOSE", text)
    assert not env.flag("RLX_VERBOSE")
    assert not env.is_unset("RLX_VERBOSE")
    monkeypatch.delenv("RLX_VERBOSE")
    assert env.is_unset("RLX_VERBOSE")
    assert not env.flag("RLX_VERBOSE")


def test_code_comes_before_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_VERBOSE", "1")
    with env.overrides({"verbose": "0", "RLX_IR_DUMP": "here"}):
        assert not env.flag("RLX_VERBOSE")
        assert CompileOptions().ir_dump == "here"
        with env.overrides({"verbose": None}):
            assert env.is_unset("RLX_VERBOSE")
            assert env.var("ir_dump") == "here"
    assert env.flag("RLX_VERBOSE")
    assert env.var("RLX_IR_DUMP") is None


def test_a_number_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.parse_or("RLX_TEST_NUMBER", 3, int) == 3
    monkeypatch.setenv("RLX_TEST_NUMBER", " 12 ")
    assert env.parse_or("test_number", 3, int) == 12
    monkeypatch.setenv("RLX_TEST_NUMBER", "a dozen")
    with pytest.raises(CompileError) as caught:
        env.parse_or("RLX_TEST_NUMBER", 3, int)
    assert str(caught.value) == (
        "RLX_TEST_NUMBER: required what int reads; got 'a dozen'. Correct it or unset it."
    )


@pytest.mark.parametrize(("variable", "field"), list(FLAGS.items()))
def test_each_variable_sets_its_option(
    variable: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FLAGS:
        monkeypatch.delenv(name, raising=False)
    assert CompileOptions() == CompileOptions.baseline()
    monkeypatch.setenv(variable, "1")
    assert getattr(CompileOptions(), field) is True
    assert CompileOptions() == CompileOptions.baseline().replace(**{field: True})
    assert getattr(CompileOptions.baseline(), field) is False


def test_constructors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_VERBOSE", "1")
    assert CompileOptions.new() == CompileOptions.default() == CompileOptions.from_env()
    kept = CompileOptions.baseline().replace(dce=False)
    assert not kept.verbose
    assert kept.apply_env() == kept.replace(verbose=True)
    monkeypatch.delenv("RLX_VERBOSE")
    assert kept.apply_env() is kept


def test_the_device_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVICE", "interpret")
    assert rlx.Session().device == "interpret"
