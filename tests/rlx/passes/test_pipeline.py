"""Pipelines: records, errors, validation, the lists themselves, and choosing implementations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import pytest

import rlx.passes
from rlx.dims import symbol
from rlx.dtypes import DType
from rlx.errors import KernelError, LoweringError, PassError, ShapeError, VerifyError
from rlx.ir import location
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.interpret import interpret
from rlx.ir.location import Location
from rlx.ir.operators import broadcast_to, constant
from rlx.ir.plan import Implementation, Refusal, Refusals
from rlx.ir.rewrite import rewrite, rule
from rlx.ops.arithmetic import Abs, Max, Mul, Neg, Sub
from rlx.ops.control_flow import Cond, Scan
from rlx.ops.external import External
from rlx.ops.reduction import Mean
from rlx.ops.transcendental import Rsqrt
from rlx.options.compile import CompileOptions
from rlx.options.precision import PrecisionPolicy
from rlx.passes import AbstractPass, Canonicalize, Decompose, Fixpoint, PassContext, Pipeline
from rlx.passes.legalize import decompose_unsupported, legalize
from rlx.passes.pipelines import mir_pipeline
from rlx.passes.recognize import Recognize
from rlx.types import TensorType


@final
@dataclass(frozen=True, kw_only=True)
class DropAbs(AbstractPass):
    """Wrong on purpose: |x| → x."""

    name: ClassVar[str] = "drop-abs"
    limit: int = 3

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        ctx.note("dropped")
        return rewrite(graph, lambda n: n.inputs[0] if isinstance(n.op, Abs) else None)


@final
@dataclass(frozen=True, kw_only=True)
class ZeroProducts(AbstractPass):
    """Wrong on purpose, for NaN and Inf alone: x·0 → 0."""

    name: ClassVar[str] = "zero-products"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        return rewrite(graph, lambda n: n.inputs[1] if isinstance(n.op, Mul) else None)


@final
@dataclass(frozen=True, kw_only=True)
class WithoutMaximum(AbstractPass):
    """Wrong on purpose, for what overflows alone: exp(x − max x) → exp(x)."""

    name: ClassVar[str] = "without-maximum"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        return rewrite(graph, lambda n: n.inputs[0] if isinstance(n.op, Sub) else None)


@final
@dataclass(frozen=True, kw_only=True)
class Fails(AbstractPass):
    """Makes a node that is refused."""

    name: ClassVar[str] = "fails"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        return rewrite(graph, lambda n: n.inputs[0].reshape(7) if n.inputs else None)


@final
@dataclass(frozen=True, kw_only=True)
class ChangesOutputs(AbstractPass):
    """Returns another graph altogether."""

    name: ClassVar[str] = "changes-outputs"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        return Graph(graph.inputs, graph.params, graph.outputs * 2, name=graph.name)


def absolute() -> Graph:
    b = GraphBuilder("g")
    return b.build(abs(b.input("x", "f32[batch, 6]")))


def checked(*passes: AbstractPass) -> Graph:
    context = PassContext(CompileOptions(validate=True))
    return Pipeline(passes).run(absolute(), context)[0]


def test_passes_print_with_their_options() -> None:
    assert str(DropAbs()) == "drop-abs"
    assert str(DropAbs(limit=5)) == "drop-abs{limit=5}"
    assert str(Fixpoint(passes=(DropAbs(), Canonicalize()))) == "fixpoint(drop-abs, canonicalize)"


def test_records_say_what_happened() -> None:
    _, records = Pipeline((Canonicalize(), DropAbs())).run(absolute(), PassContext())
    assert [(r.name, r.before, r.after, r.changed, r.notes) for r in records] == [
        ("canonicalize", 2, 2, False, ()),
        ("drop-abs", 2, 1, True, ("dropped",)),
    ]
    assert "2 → 1 nodes" in str(records[1])
    assert "unchanged" in str(records[0])


def test_each_pass_is_shown_to_the_callback() -> None:
    seen: list[tuple[bool, str]] = []
    pipeline = Pipeline((Canonicalize(), DropAbs()))
    pipeline.run(
        absolute(), PassContext(), lambda before, p, after: seen.append((before is after, str(p)))
    )
    assert seen == [(True, "canonicalize"), (False, "drop-abs")]


def test_run_by_hand_prints_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    rlx.passes.run(absolute(), [DropAbs()])
    assert "drop-abs" in capsys.readouterr().out
    rlx.passes.run(absolute(), [DropAbs()], quiet=True)
    assert not capsys.readouterr().out


def test_a_failure_names_the_pass_its_position_and_the_cause() -> None:
    with pytest.raises(PassError, match=r"pass 'fails' \(number 2\) failed: reshape") as caught:
        Pipeline((Canonicalize(), Fails())).run(absolute(), PassContext())
    error = caught.value
    assert (error.pass_name, error.earlier) == ("fails", ("canonicalize",))
    assert isinstance(error.__cause__, ShapeError)
    assert "  after: canonicalize" in error.__notes__
    assert any("<Graph 'g'" in note for note in error.__notes__)


def test_a_pass_that_changes_the_boundary_is_named() -> None:
    with pytest.raises(PassError, match=r"(?s)'changes-outputs'.*outputs are required") as caught:
        Pipeline((ChangesOutputs(),)).run(absolute(), PassContext())
    assert isinstance(caught.value.__cause__, VerifyError)


def test_validate_names_the_wrong_pass() -> None:
    with pytest.raises(
        PassError, match=r"validate: pass 'drop-abs' .*output 0 differs by"
    ) as caught:
        checked(Canonicalize(), DropAbs())
    assert caught.value.earlier == ("canonicalize",)


def test_validate_sees_what_only_nan_shows() -> None:
    b = GraphBuilder("g")
    graph = b.build(b.input("x", "f32[6]") * 0.0)
    context = PassContext(CompileOptions(validate=True))
    with pytest.raises(PassError, match=r"'zero-products' .*has NaN in other places"):
        Pipeline((ZeroProducts(),)).run(graph, context)


def test_validate_sees_what_only_large_numbers_show() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "f32[3, 8]")
    shifted = (x - x.max(1, keepdims=True)).exp()
    graph = b.build(shifted / shifted.sum(1, keepdims=True))
    context = PassContext(CompileOptions(validate=True))
    with pytest.raises(PassError, match=r"'without-maximum' .*has NaN .*, on large numbers"):
        Pipeline((WithoutMaximum(),)).run(graph, context)


def test_validate_lets_a_pass_keep_more_digits() -> None:
    """max(0, mean x² − mean² x) loses most digits around a mean of 300; the composite does not."""
    b = GraphBuilder("g")
    x = b.input("x", "f32[4, 64]")
    mean = x.mean(1, keepdims=True)
    spread = (x * x).mean(1, keepdims=True) - mean * mean
    variance = Max()(spread, broadcast_to(constant(0.0, x.dtype), spread.shape))
    graph = b.build((x - mean) * Rsqrt()(variance + 1e-5))
    made, _ = Pipeline((Recognize(),)).run(graph, PassContext(CompileOptions(validate=True)))
    assert "layer_norm(" in str(made)


def test_validate_accepts_right_passes() -> None:
    assert checked(Canonicalize(), Decompose()).outputs


def test_validate_needs_a_meaning_of_every_node() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "f32[]")
    made = External(name="foreign", dtypes=(x.dtype,), shapes=((),))(x)
    graph = b.build([made] if isinstance(made, Value) else made)
    with pytest.raises(PassError, match="every node is required to have a meaning in NumPy"):
        Pipeline((DropAbs(),)).run(graph, PassContext(CompileOptions(validate=True)))


def test_fixpoint_stops_when_nothing_changes() -> None:
    b = GraphBuilder("g")
    negated = -b.input("x", "f32[]")
    graph = b.build(abs(-negated))
    assert Fixpoint(passes=(Canonicalize(), DropAbs())).run(graph, PassContext()).node_count() == 1
    assert Fixpoint(passes=(Canonicalize(),)).run(absolute(), PassContext()).node_count() == 2


def test_folding_is_an_option() -> None:
    def listed(options: CompileOptions) -> list[str]:
        return [p.name for p in mir_pipeline(options).passes]

    assert "fold-constants" in listed(CompileOptions())
    assert "fold-constants" not in listed(CompileOptions(constant_folding=False))


# Choosing implementations.


def looped() -> Graph:
    """A graph with the composite mean in a branch inside a loop's body."""
    b = GraphBuilder("mean")
    mean = b.build(Mean(axes=(0,))(b.input("x", "f32[4]")).broadcast_to((4,)))
    b = GraphBuilder("neg")
    neg = b.build(-b.input("x", "f32[4]"))
    b = GraphBuilder("body")
    made = Cond(branches=(mean, neg))(b.constant(0), b.input("c", "f32[4]"))
    body = b.build([made] if isinstance(made, Value) else made)
    b = GraphBuilder("g")
    made = Scan(body=body, length=2, num_carry=1)(b.input("x", "f32[4]"))
    return b.build([made] if isinstance(made, Value) else made)


def test_composites_inside_branches_and_loops_are_decomposed() -> None:
    graph = looped()
    result = Decompose().run(graph, PassContext())
    assert not any(n.op.has_decompose for g in result.all_graphs() for n in g.nodes())
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(interpret(result, {"x": x})[0], interpret(graph, {"x": x})[0])
    assert Decompose().run(result, PassContext()) is result


def test_decompose_takes_names() -> None:
    graph = looped()
    assert Decompose(ops=("matmul",)).run(graph, PassContext()) is graph
    assert decompose_unsupported(graph, lambda op: op.op_name == "mean") is graph


def test_legalize_decomposes_what_has_nothing_better_everywhere() -> None:
    def choose(node: Node) -> Implementation | Refusals:
        kind = "decomposition" if node.op.has_decompose else "rule"
        return Implementation(kind, node.op.op_name)

    lir = legalize(looped(), choose, "cpu")
    assert lir.plan.decomposed == {"mean": 1}
    planned = {n.op.op_name for n in lir.plan.implementations}
    assert "mean" not in planned
    assert {"scan", "cond", "reduce_sum"} <= planned
    nodes = [n for g in lir.graph.all_graphs() for n in g.nodes() if n.op.op_name != "input"]
    assert set(nodes) == set(lir.plan.implementations)


def test_every_missing_op_is_listed_at_once_with_its_refusals_and_line() -> None:
    def choose(node: Node) -> Implementation | Refusals:
        if node.op.op_name in ("neg", "abs"):
            return Refusals((Refusal(f"{node.op.op_name}.cpu.ffi", "x is f32"),))
        return Implementation("rule", node.op.op_name)

    with location.at(Location("model.py", 3)):
        b = GraphBuilder("g")
        x = b.input("x", "f32[]")
        graph = b.build(abs(-x), abs(x))
    with pytest.raises(LoweringError) as caught:
        legalize(graph, choose, "cpu")
    assert str(caught.value) == (
        'rlx-opt: backend "cpu" doesn\'t claim support for 2 op kind(s):\n'
        "  no lowering for op 'neg' on 'cpu' at model.py:3: (f32[]) -> f32[].\n"
        "    neg.cpu.ffi: x is f32\n"
        "  no lowering for op 'abs' on 'cpu' at model.py:3: (f32[]) -> f32[]. (2 nodes)\n"
        "    abs.cpu.ffi: x is f32\n"
        "CompileOptions.supported_ops restricts nothing here: the backend has no kernel, no "
        "lowering rule and no decomposition for them."
    )


def test_an_error_of_the_choice_tells_the_node() -> None:
    def choose(node: Node) -> Implementation | Refusals:
        raise KernelError("kernel_dispatch: no.")

    with pytest.raises(KernelError) as caught:
        legalize(absolute(), choose, "cpu")
    assert any("<abs: f32[batch, 6]" in note for note in caught.value.__notes__)


def test_rules_on_several_ops() -> None:
    @rule(Abs, Neg)
    def drop(node: Node) -> Value:
        return node.inputs[0]

    b = GraphBuilder("g")
    assert rewrite(b.build(abs(-b.input("x", "f32[]"))), drop).node_count() == 1


@pytest.mark.parametrize("given", [Canonicalize, "canonicalize"])
def test_run_by_hand_takes_passes_only(given: Any) -> None:
    b = GraphBuilder("g")
    with pytest.raises(PassError, match=r"number 2 is .*rlx\.passes\.Canonicalize\(\)"):
        rlx.passes.run(b.build(b.input("x", "f32[2]")), [Canonicalize(), given], quiet=True)


def test_passes_keep_what_a_function_asked_of_sizes() -> None:
    n, b = symbol("n"), GraphBuilder("asks")
    y = b.input("x", TensorType(DType.F32, (n,))) * 2.0
    plain = b.build([y])
    asks = Graph(plain.inputs, plain.params, plain.outputs, asked=[n - 5], keyed=[n * 2])
    lower = rlx.passes.ApplyPrecision(policy=PrecisionPolicy.ALWAYS_F16)
    lowered = rlx.passes.run(asks, [lower], quiet=True)
    assert lowered.fingerprint() != asks.fingerprint()
    assert (lowered.asked, lowered.keyed) == (asks.asked, asks.keyed)
