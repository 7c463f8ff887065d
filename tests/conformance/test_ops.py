"""Generated over every op and sample: types, meaning, XLA, decomposition, errors, symbols."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any

import numpy as np
import pytest

from rlx.dtypes import DType
from rlx.ir.graph import Graph, make_node
from rlx.ir.interpret import evaluate_decomposition, run
from rlx.ir.op import all_ops
from rlx.ops.io import Input
from rlx.types import as_type
from tests.conformance import runner
from tests.conformance.execute import execute

NOT_SAMPLED = {"input", "param"}
"""Leaves: fed by the caller, so there is nothing to evaluate."""


def _seed() -> int:
    """One seed per run, the same in every worker; ``RLX_TEST_SEED`` repeats a run."""
    given = os.environ.get("RLX_TEST_SEED")
    if given:
        return int(given)
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or os.urandom(8).hex()
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:4], "little")


FULL = os.environ.get("RLX_CONFORMANCE") == "full"
SEED = _seed()
SAMPLES = runner.all_samples(np.random.default_rng(SEED))
ERRORS = runner.all_error_samples()
OPS = sorted(n for n in all_ops() if n not in NOT_SAMPLED)


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_samples(name: str) -> None:
    assert SAMPLES.get(name), f"tests/samples has no sample of {name}"


@pytest.mark.parametrize("name", OPS)
def test_evaluate_gives_the_inferred_types(name: str) -> None:
    for sample in SAMPLES.get(name, []):
        graph, arrays = runner.graph_of([sample])
        found = run(graph, arrays)
        assert [tuple(a.shape) for a in found] == [v.type.shape for v in graph.outputs]


@pytest.mark.parametrize("name", OPS)
def test_decomposition_means_the_same(name: str) -> None:
    for sample in SAMPLES.get(name, []):
        if not (sample.op.has_decompose and sample.op.has_evaluate):
            continue
        wanted = _as_list(sample.op.evaluate(*sample.inputs))
        found = _as_list(evaluate_decomposition(sample.op, sample.inputs))
        runner.compare(sample, found, wanted)


def groups() -> list[Any]:
    """One XLA module per op and dtype of the first input.

    Of each op f32 and three other dtypes, drawn anew in each run; with ``RLX_CONFORMANCE=full``
    all of them.
    """
    rng = np.random.default_rng(SEED)
    found: list[Any] = []
    for name in OPS:
        by_dtype: dict[str, list[runner.Sample]] = {}
        for sample in SAMPLES.get(name, []):
            if sample.xla:
                dtype = str(sample.inputs[0].dtype) if sample.inputs else ""
                by_dtype.setdefault(dtype, []).append(sample)
        dtypes = [str(d) for d in rng.permutation(sorted(by_dtype))]
        dtypes.sort(key=lambda dtype: dtype != "float32")
        chosen = dtypes if FULL else dtypes[:4]
        found += [pytest.param(by_dtype[d], id=f"{name}-{d}") for d in sorted(chosen)]
    return found


@pytest.fixture(autouse=True)
def _show_seed() -> None:
    print(f"samples drawn with RLX_TEST_SEED={SEED}")


@pytest.mark.parametrize("group", groups())
def test_xla_means_the_same(group: list[runner.Sample]) -> None:
    graph, arrays = runner.graph_of(group)
    found = execute(graph, arrays)
    for sample in group:
        wanted = _as_list(sample.op.evaluate(*sample.inputs))
        mine, found = found[: len(wanted)], found[len(wanted) :]
        runner.compare(sample, mine, wanted)


@pytest.mark.parametrize(
    "sample", [pytest.param(s, id=f"{i}-{s.label}") for i, s in enumerate(ERRORS)]
)
def test_error_samples(sample: runner.ErrorSample) -> None:
    leaves = [
        Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)()
        for i, t in enumerate(map(as_type, sample.types))
    ]
    with pytest.raises(sample.error, match=re.escape(sample.match)) as caught:
        make_node(sample.build(), leaves)
    assert getattr(caught.value, "label", None) == sample.label


@pytest.mark.parametrize("name", OPS)
def test_every_label_is_documented_and_tested(name: str) -> None:
    op = all_ops()[name]
    documented = set(re.findall(r"^\s+(C\d+):", op.__doc__ or "", re.MULTILINE))
    tested = {e.label for e in ERRORS if _op_name(e) == name} - {"count"}
    assert tested == documented


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(s, id=f"{i}-{s.op.op_name}")
        for i, s in enumerate(runner.all_symbolic_samples())
    ],
)
def test_binding_commutes_with_inference(sample: runner.SymbolicSample) -> None:
    from rlx.passes.bind_dims import bind

    types = [as_type(t) for t in sample.types]
    leaves = [Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types)]
    graph = Graph(leaves, (), make_node(sample.op, leaves).results)
    late = [v.type.bind(sample.binding) for v in graph.outputs]
    early = [v.type for v in bind(graph, sample.binding).outputs]
    assert early == late
    assert all(t.is_static for t in early)


def _op_name(sample: runner.ErrorSample) -> str:
    """Name of the op that an error sample is about, also where building the op is what fails."""
    try:
        return sample.build().op_name
    except (TypeError, ValueError) as error:
        return str(error).split(maxsplit=1)[0].split(".")[0].rstrip(":")


def _as_list(result: Any) -> list[np.ndarray[Any, Any]]:
    return list(result) if type(result) is tuple else [np.asarray(result)]


def test_dtype_names_are_unique() -> None:
    assert len({d.label for d in DType}) == len(DType)
