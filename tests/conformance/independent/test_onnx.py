"""ONNX's own node tests, run through what our ops mean.

Only single nodes are taken. A node that none of our ops says is counted with its reason.
"""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from rlx.dtypes import as_dtype
from rlx.errors import DTypeError, RlxError
from rlx.ir.graph import Graph, Value
from rlx.ir.interpret import run
from rlx.ops.io import Input
from tests.conformance.independent import onnx_elementwise, onnx_movement, onnx_networks
from tests.conformance.independent.case import RULES, Case, NotMapped

onnx = pytest.importorskip("onnx", reason="the node tests are in the package onnx")
pytestmark = pytest.mark.slow

MODULES = (onnx_elementwise, onnx_movement, onnx_networks)
AT_LEAST = 850
"""Fewer cases that agree mean that rules were lost: onnx 1.23 has 919."""


@cache
def cases() -> list[Any]:
    """Test cases of one node that has a rule."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases divide by zero on purpose
        found = collect_testcases(None)
    models = [(c, c.model.graph.node) for c in found if c.model is not None]
    return [c for c, nodes in models if len(nodes) == 1 and nodes[0].op_type in RULES]


def attributes_of(node: Any) -> dict[str, Any]:
    """Attributes as Python values."""
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {n: v.decode() if isinstance(v, bytes) else v for n, v in values.items()}


def outcome(case: Any) -> str:
    """``agrees``, the reason why a case has no graph of ours, or how the results differ."""
    (node,) = case.model.graph.node
    for inputs, wanted in case.data_sets:
        try:
            found = _results(case, node, inputs)
        except NotMapped as reason:
            return f"not mapped: {reason}"
        for got, want in zip(found, map(_array, wanted), strict=True):
            if got is not None:
                np.testing.assert_allclose(
                    np.asarray(got, _comparable(want)), np.asarray(want, _comparable(want)),
                    rtol=case.rtol, atol=max(case.atol, 1e-6), err_msg=case.name,
                )  # fmt: skip
                assert got.dtype == want.dtype, case.name
                assert got.shape == want.shape, case.name
    return "agrees"


def _comparable(array: Any) -> Any:
    """A dtype of NumPy's own that holds an array's elements."""
    return array.dtype if array.dtype.kind in "biufc" and array.dtype.num < 256 else np.float32


def _results(case: Any, node: Any, inputs: Any) -> list[Any]:
    names = [v.name for v in case.model.graph.input]
    given = dict(zip(names, map(_array, inputs), strict=True))
    arrays = [None if not n else given.get(n) for n in node.input]
    if not all(a is None or isinstance(a, np.ndarray) for a in arrays):
        raise NotMapped("sequences")
    leaves: list[Value | None] = []
    try:
        for i, array in enumerate(arrays):
            if array is None:
                leaves.append(None)
                continue
            leaf = Input(name=f"x{i}", dtype=as_dtype(array.dtype), shape=array.shape)()
            leaves.append(leaf)
    except DTypeError:
        raise NotMapped("strings") from None
    made = RULES[node.op_type](
        Case(node.op_type, leaves, arrays, attributes_of(node), len(node.output))
    )
    outputs = [made] if isinstance(made, Value) else list(made)
    used = [v for v in leaves if v is not None]
    graph = Graph(used, (), [v for v in outputs if v is not None])
    results = iter(run(graph, [a for a in arrays if a is not None]))
    filled = [None if v is None else next(results) for v in outputs]
    by_name = dict(zip(node.output[: len(filled)], filled, strict=True))
    return [by_name.get(name) for name in node.output if name]


def _array(given: Any) -> Any:
    """An input as an array, where it is one."""
    if isinstance(given, onnx.TensorProto):
        return onnx.numpy_helper.to_array(given)
    return np.asarray(given) if isinstance(given, np.generic | float | int) else given


def test_every_case_agrees_or_says_why() -> None:
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for case in cases():
        kind = case.model.graph.node[0].op_type
        try:
            found = outcome(case)
        except (RlxError, AssertionError) as error:  # all failures are reported at once
            failures.append(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
            continue
        counts[found if found == "agrees" else f"{kind} {found}"] += 1
    agrees = counts.pop("agrees", 0)
    for reason, count in sorted(counts.items()):
        print(f"{count:4} {reason}")
    print(f"{agrees} of {len(cases())} cases of {len(RULES)} node types agree")
    assert not failures, "\n".join(failures)
    assert agrees >= AT_LEAST
