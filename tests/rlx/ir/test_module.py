"""Modules at HIR, MIR and LIR: how they are made, lowered and compiled."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.errors import CompileError, LoweringError
from rlx.ir.module import Stage
from rlx.ir.op import Level, Op, all_ops, define_op
from rlx.ir.plan import Lir, Plan
from rlx.types import TensorType

X = np.array([1.0, -2.0, 3.0], np.float32)


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> type[Op]:
    """An HIR op that exists for one test."""
    monkeypatch.setattr("rlx.ir.op._OPS", dict(all_ops()))

    @define_op("test_residual", level=Level.HIR)
    class Residual(Op):
        """x + tanh(x).

        Inputs:
            x: float[...]

        Result:
            Same type as x.

        Source: this test.
        """

        def infer(self, x: TensorType) -> TensorType:
            return x

        def decompose(self, x: rlx.Value) -> rlx.Value:
            return x + x.tanh()

    return Residual


def _plain() -> rlx.Graph:
    b = rlx.GraphBuilder("plain")
    x = b.input("x", "f32[3]")
    return b.build(x + x.tanh())


def _with_block(block: type[Op]) -> rlx.Graph:
    b = rlx.GraphBuilder("plain")
    return b.build(block()(b.input("x", "f32[3]")))


def test_blocks_are_decomposed_on_the_way_to_mir(block: type[Op]) -> None:
    module = rlx.Module.from_hir(_with_block(block))
    assert module.stage is Stage.HIR
    lowered = module.into_mir()
    assert lowered.stage is Stage.MIR
    assert rlx.same(lowered.graph, _plain())
    assert lowered.into_mir() is lowered


def test_mir_refuses_blocks(block: type[Op]) -> None:
    with pytest.raises(LoweringError, match=r"found test_residual\. Use Module\.from_hir"):
        rlx.Module.from_graph(_with_block(block))


def test_define_builds_at_hir() -> None:
    one = rlx.Module.define("plain", lambda b: (x := b.input("x", "f32[3]")) + x.tanh())
    assert one.stage is Stage.HIR
    assert rlx.same(one.into_mir().graph, _plain())
    two = rlx.Module.define("two", lambda b: ((x := b.input("x", "f32[3]")), x * 2))
    assert len(two.graph.outputs) == 2


def test_every_level_compiles_to_the_same(block: type[Op]) -> None:
    session = rlx.Session("interpret")
    lir = session.lower(_plain())
    assert isinstance(lir, Lir)
    assert lir.fingerprint() == session.lower(_plain()).fingerprint()
    assert set(lir.plan.implementations) == set(lir.graph.nodes()) - {
        v.node for v in lir.graph.inputs
    }
    compiled = [
        session.compile(_plain()),
        session.compile_hir(_with_block(block)),
        session.compile_module(rlx.Module.from_hir(_with_block(block))),
        session.compile_module(rlx.Module.from_graph(_plain())),
        session.compile(rlx.Module.from_lir(lir)),
    ]
    for one in compiled:
        np.testing.assert_array_equal(one.run({"x": X})[0], X + np.tanh(X))


def test_lir_goes_back_to_mir() -> None:
    module = rlx.Module.from_lir(rlx.Session("interpret").lower(_plain()))
    assert module.stage is Stage.LIR
    assert repr(module).startswith("<Module at lir: ")
    back = module.into_mir()
    assert (back.stage, back.lir) == (Stage.MIR, None)
    assert back.graph is module.graph


def test_lir_is_for_one_platform() -> None:
    lir = rlx.Session("interpret").lower(_plain())
    plan = Plan({}, {}, lir.plan.inputs, (), lir.plan.outputs, "tpu")
    with pytest.raises(CompileError, match="for 'tpu' and the session's device is 'interpret'"):
        rlx.Session("interpret").compile(rlx.Module.from_lir(Lir(lir.graph, plan)))
