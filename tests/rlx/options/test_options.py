"""Options: defaults from the environment, changed copies, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.errors import CompileError
from rlx.options.compile import CompileOptions
from rlx.options.dispatch import KernelDispatch, KernelPolicy, dispatch_from_env
from rlx.options.fusion import FusionOptions
from rlx.options.precision import PrecisionPolicy


def test_defaults_are_not_shared() -> None:
    first, second = CompileOptions(), CompileOptions()
    assert first == second
    assert first.compiler_options is not second.compiler_options


def test_replace_makes_a_changed_copy() -> None:
    options = CompileOptions()
    changed = options.replace(constant_folding=False)
    assert (options.constant_folding, changed.constant_folding) == (True, False)
    with pytest.raises(CompileError, match=r"no field 'constant_fold'.*Did you mean") as caught:
        options.replace(constant_fold=False)
    assert "constant_folding" in str(caught.value)


def test_a_cache_needs_room() -> None:
    with pytest.raises(CompileError, match="specialization_cache_size: required an int ≥ 1; got 0"):
        CompileOptions(specialization_cache_size=0)


@pytest.mark.parametrize("text", ["force_common", "FORCE-COMMON", " force-common "])
def test_the_dispatch_comes_from_the_environment(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLX_KERNEL_DISPATCH", text)
    assert dispatch_from_env() == KernelDispatch(policy=KernelPolicy.FORCE_COMMON)
    assert CompileOptions().kernel_dispatch.policy is KernelPolicy.FORCE_COMMON


def test_an_unknown_dispatch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_KERNEL_DISPATCH", "fastest")
    with pytest.raises(CompileError, match=r"required one of prefer_native.*got 'fastest'"):
        CompileOptions()


def test_an_op_can_have_a_policy_of_its_own() -> None:
    dispatch = KernelDispatch(policy=KernelPolicy.FORCE_COMMON, native_ops=frozenset({"argmax"}))
    assert dispatch.policy_for("argmax") is KernelPolicy.FORCE_NATIVE
    assert dispatch.policy_for("sort") is KernelPolicy.FORCE_COMMON


def test_verbose_prints_each_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    b = rlx.GraphBuilder("g")
    graph = b.build(-b.input("x", "f32[3]"))
    rlx.Session("interpret").compile(graph, options=CompileOptions(verbose=False))
    assert not capsys.readouterr().out
    monkeypatch.setenv("RLX_VERBOSE", "1")
    rlx.Session("interpret").compile(graph)
    assert "canonicalize" in capsys.readouterr().out


def test_options_are_keys_of_dicts() -> None:
    def made() -> CompileOptions:
        return CompileOptions(
            compiler_options={"xla_flag": 1},
            resident={"cache": 0},
            buckets={"n": [16, 64]},
            dim_binding={"n": 4},
            constraints=["n % 4 == 0"],  # type: ignore[arg-type]
            supported_ops=["add"],
            fusion_opts=FusionOptions(),
            policy=PrecisionPolicy.AUTO_MIXED_BF16,
        )

    assert made() == made()
    assert hash(made()) == hash(made())
    assert {made(): 1, CompileOptions(): 2}[made()] == 1
    # Equality of bound arrays is NumPy's, so only the names of params count.
    bound = CompileOptions(param_bindings={"w": np.ones(3)})
    assert hash(bound) == hash(CompileOptions(param_bindings={"w": np.zeros(2)}))
