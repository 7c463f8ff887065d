"""Kernels against the ops' meaning on every sample, and how a kernel is chosen or refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pytest

import rlx
from rlx.dtypes import DType
from rlx.errors import KernelError, RegistryError
from rlx.ir.attributes import Literal
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.op import Op
from rlx.ops.arithmetic import Neg
from rlx.ops.reduction import Argmax
from rlx.options.dispatch import KernelDispatch, KernelPolicy
from rlx.types import TensorType, as_type
from rlx_xla.kernels import ffi, select
from rlx_xla.kernels.base import AbstractKernel, Refused, Supported
from rlx_xla.kernels.select import all_kernels, kernels_for, register_kernel
from tests.conformance.runner import all_samples, compare, graph_of
from tests.rlx_xla.kernel_samples import kernel_samples
from tests.samples.base import Sample


@pytest.fixture(autouse=True)
def _library() -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)


def _types(sample: Sample) -> list[TensorType]:
    return [Literal(array).type for array in sample.inputs]


CPU_KERNELS = [k for k in all_kernels() if "cpu" in k.platforms]


@pytest.mark.parametrize("kernel", CPU_KERNELS, ids=lambda k: k.name)
def test_a_kernel_is_the_op_or_says_why_not(
    kernel: AbstractKernel, rng: np.random.Generator
) -> None:
    samples = [*all_samples(rng).get(kernel.op.op_name, []), *kernel_samples(kernel.op, rng)]
    supported: list[Sample] = []
    for sample in samples:
        verdict = kernel.supports(sample.op, _types(sample), "cpu")
        if isinstance(verdict, Refused):
            assert verdict.reason
            assert not verdict.reason.endswith(".")
        else:
            supported.append(sample)
    assert 0 < len(supported) < len(samples)
    graph, arrays = graph_of(supported)
    dispatch = KernelDispatch(forced=frozenset({kernel.name}))
    compiled = rlx.Session("cpu").compile(
        graph, options=rlx.CompileOptions(kernel_dispatch=dispatch)
    )
    (choice,) = compiled.report().kernels
    assert choice.implementation == kernel.name
    names = [v.name for v in graph.inputs]
    found = compiled.run(dict(zip(names, arrays, strict=True)))
    for sample in supported:
        meant = sample.op.evaluate(*sample.inputs)
        wanted = list(meant) if type(meant) is tuple else [np.asarray(meant)]
        mine, found = found[: len(wanted)], found[len(wanted) :]
        compare(sample, mine, wanted)


@pytest.mark.parametrize(
    ("op", "type_", "reason"),
    [
        (Argmax(axis=1), "f16[8, 64]", "x is f16, and only f32, f64, i32 gain"),
        (Argmax(axis=1, index_dtype=DType.I64), "f32[8, 64]", "index_dtype is i64 and not i32"),
        (
            Argmax(axis=0),
            "f32[8, 64]",
            "axis 0 of f32[8, 64] has 8 elements with 64 after each; 32 to 2147483647 with at "
            "least 8 gain",
        ),
        (Argmax(axis=1), "f32[8, n]", "f32[8, n] is not static"),
        (Argmax(axis=1), "f32[n, 64]", "f32[n, 64] is not static"),
        (Argmax(axis=1), "f32[8, 31]", "rows of 31 elements are outside 32 to 2147483647"),
        (Argmax(axis=1), "i32[8, 127]", "rows of 127 elements are outside 128 to 2147483647"),
    ],
)
def test_argmax_says_what_it_does_not_take(op: Op, type_: str, reason: str) -> None:
    (kernel,) = kernels_for(Argmax, "cpu")
    assert kernel.supports(op, [as_type(type_)], "cpu") == Refused(reason)


def test_a_missing_library_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffi, "load", lambda: ffi.Unavailable("built without a C++ compiler"))
    (kernel,) = kernels_for(Argmax, "cpu")
    verdict = kernel.supports(Argmax(axis=0), [TensorType(DType.F32, (64,))], "cpu")
    assert verdict == Refused("built without a C++ compiler")


def test_kernels_are_for_their_platforms() -> None:
    assert [k.name for k in kernels_for(Argmax, "cpu")] == ["argmax.cpu.ffi"]
    assert kernels_for(Argmax, "tpu") == []


# Choosing.


def _graph(cols: int = 64) -> Graph:
    b = rlx.GraphBuilder("choice")
    return b.build(Argmax(axis=1)(b.input("x", TensorType(DType.F32, (3, cols)))))


def _choice(graph: Graph, **dispatch: Any) -> tuple[str, str, tuple[str, ...]]:
    options = rlx.CompileOptions(kernel_dispatch=KernelDispatch(**dispatch))
    compiled = rlx.Session("cpu").compile(graph, options=options)
    (choice,) = compiled.report().choices
    x = np.random.default_rng(0).normal(size=graph.inputs[0].type.shape).astype(np.float32)
    found = compiled.run({"x": x})[0]
    np.testing.assert_array_equal(found, interpret(graph, {"x": x})[0])
    return choice.kind, choice.implementation, choice.refused


def test_a_kernel_is_preferred_and_a_refusal_is_reported() -> None:
    assert _choice(_graph()) == ("kernel", "argmax.cpu.ffi", ())
    assert _choice(_graph(5)) == (
        "rule",
        "argmax",
        ("argmax.cpu.ffi: rows of 5 elements are outside 32 to 2147483647",),
    )


@pytest.mark.parametrize(
    ("dispatch", "reason"),
    [
        ({"policy": KernelPolicy.FORCE_COMMON}, "kernel_dispatch forces common lowering"),
        ({"common_ops": frozenset({"argmax"})}, "kernel_dispatch forces common lowering"),
        ({"forbidden": frozenset({"argmax.cpu.ffi"})}, "forbidden by kernel_dispatch"),
    ],
)
def test_a_kernel_can_be_declined(dispatch: dict[str, Any], reason: str) -> None:
    assert _choice(_graph(), **dispatch) == ("rule", "argmax", (f"argmax.cpu.ffi: {reason}",))


def test_a_forced_kernel_beats_the_policy() -> None:
    forced = frozenset({"argmax.cpu.ffi"})
    found = _choice(_graph(), policy=KernelPolicy.FORCE_COMMON, forced=forced)
    assert found == ("kernel", "argmax.cpu.ffi", ())


@pytest.mark.parametrize(
    "dispatch",
    [
        {"policy": KernelPolicy.FORCE_NATIVE},
        {"native_ops": frozenset({"argmax"})},
        {"forced": frozenset({"argmax.cpu.ffi"})},
    ],
)
def test_a_demanded_kernel_that_refuses_is_an_error(dispatch: dict[str, Any]) -> None:
    with pytest.raises(KernelError) as caught:
        _choice(_graph(5), **dispatch)
    text = str(caught.value)
    assert "a kernel is required for 'argmax' on 'cpu' at test_kernels.py:" in text
    assert "\n  argmax.cpu.ffi: rows of 5 elements are outside" in text
    assert text.endswith("Allow the lowering rule, or change what the reasons name.")


def test_force_native_leaves_ops_without_kernels_alone() -> None:
    b = rlx.GraphBuilder("g")
    graph = b.build(-b.input("x", "f32[3]"))
    assert _choice(graph, policy=KernelPolicy.FORCE_NATIVE) == ("rule", "neg", ())


def test_an_unknown_kernel_name_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(
        KernelError, match=r"'argmax\.cpu' is not registered.*argmin\.cpu\.ffi"
    ) as e:
        _choice(_graph(), forced=frozenset({"argmax.cpu"}))
    assert "Did you mean 'argmax.cpu.ffi'" in str(e.value)


@final
@dataclass(frozen=True, kw_only=True)
class _Idle(AbstractKernel):
    """A kernel that refuses everything."""

    def supports(self, op: Op, types: Sequence[TensorType], platform: str) -> Supported | Refused:
        return Refused("it is idle")

    def lower(self, ctx: Any, op: Any, *operands: Any) -> Any:
        raise AssertionError("a refused kernel is never lowered")


def test_a_name_clash_names_both_ops() -> None:
    with pytest.raises(RegistryError, match=r"'argmax\.cpu\.ffi' is taken .*'argmax'.*'neg'"):
        register_kernel(_Idle(name="argmax.cpu.ffi", op=Neg, platforms=("cpu",)))


def test_priority_decides_and_every_refusal_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = _Idle(name="argmax.cpu.idle", op=Argmax, platforms=("cpu",), priority=5)
    monkeypatch.setitem(select._KERNELS, idle.name, idle)
    monkeypatch.setitem(select._BY_OP, Argmax, [*select._BY_OP[Argmax], idle])
    assert [k.name for k in kernels_for(Argmax, "cpu")] == ["argmax.cpu.idle", "argmax.cpu.ffi"]
    refused = ("argmax.cpu.idle: it is idle",)
    assert _choice(_graph()) == ("kernel", "argmax.cpu.ffi", refused)
