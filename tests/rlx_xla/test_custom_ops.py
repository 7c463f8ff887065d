"""Ops of other packages, and ops by name: they run, differentiate, save and load as ours do."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import DTypeError, LoweringError, ParseError, RegistryError
from rlx.ir.derivatives import has_rule, jvp_rule, vjp_rule
from rlx.ir.op import op_named
from rlx.ops.custom import (
    CustomOp,
    custom_op,
    register_custom,
    registered_custom,
    unregister_custom,
)
from rlx_xla._jax_compat.jaxpr import enable_x64

Array = np.ndarray[Any, Any]


@pytest.fixture
def wavelets(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, imported for one test: other tests must not find its ops in the registry."""
    from rlx.ir import derivatives
    from rlx.ir import op as ops

    monkeypatch.setattr(ops, "_OPS", dict(ops.all_ops()))
    monkeypatch.setattr(derivatives, "_VJP", dict(derivatives._VJP))
    module = importlib.import_module("tests.rlx_xla.wavelets.ops")
    for cls in (module.WaveletsHaar, module.WaveletsRanks):
        ops._OPS[cls.op_name] = cls
    derivatives._VJP[module.WaveletsHaar] = module.haar_gradient
    return module


def haar_graph(module: Any, gain: float = 0.5) -> rlx.Graph:
    b = rlx.GraphBuilder("haar")
    low, high = module.WaveletsHaar(gain=gain)(b.input("x", "f32[3, 8]"))
    return b.build(low * low, high)


def test_an_op_of_another_package(wavelets: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    graph = haar_graph(wavelets, 0.25)
    x = rng.uniform(-1, 1, (3, 8)).astype(np.float32)
    wanted = rlx.interpret(graph, {"x": x})
    np.testing.assert_allclose(wanted[1], (x[:, ::2] - x[:, 1::2]) / 4, rtol=1e-6)
    assert "wavelets_haar(%x) {gain = 0.25}" in str(graph)
    assert str(rlx.parse(str(graph))) == str(graph)
    rlx.save(graph, tmp_path / "haar.rlx")
    loaded = rlx.load(tmp_path / "haar.rlx")
    compiled = rlx.Session("cpu").compile(loaded)
    for found, want in zip(compiled.run({"x": x}), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-6)
    with pytest.raises(DTypeError, match=r"wavelets_haar \[C1\]: x is required to be f32"):
        rlx.GraphBuilder("g").build(
            *wavelets.WaveletsHaar()(rlx.GraphBuilder("h").input("x", "f64[4]"))
        )


def test_its_gradient_is_its_own_and_it_traces_back(
    wavelets: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    from rlx.ir import derivatives

    graph = haar_graph(wavelets)
    function = rlx_xla.to_jax(graph)
    x = jnp.asarray(rng.uniform(-1, 1, (3, 8)), jnp.float32)
    back = rlx_xla.trace(function, x).graph
    names = [node.op.op_name for node in back.nodes()]
    assert "wavelets_haar" in names
    assert "call" not in names

    def loss(x: Any) -> Any:
        low, high = function(x)
        return (low + 3 * high).sum()

    plain = jax.grad(loss)(x)
    # A rule of thrice the gradient shows that it is the rule that is used.
    original = wavelets.haar_gradient

    def thrice(*arguments: Any) -> Any:
        return [v * 3.0 for v in original(*arguments)]

    monkeypatch.setitem(derivatives._VJP, wavelets.WaveletsHaar, thrice)
    from rlx_xla.tracing import composites

    composites._function.cache_clear()
    other = rlx_xla.to_jax(haar_graph(wavelets))
    tripled = jax.grad(lambda x: sum((c * y).sum() for c, y in zip((1, 3), other(x), strict=True)))(
        x
    )
    composites._function.cache_clear()
    even, odd = x[:, ::2], x[:, 1::2]
    wanted = np.stack([(even + odd) / 2 + 1.5, (even + odd) / 2 - 1.5], -1).reshape(3, 8)
    np.testing.assert_allclose(plain, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tripled, 3 * wanted, rtol=1e-5, atol=1e-6)


def test_its_lowering_rule_is_used_once_it_is_imported(wavelets: Any) -> None:
    from rlx_xla.lowering import registry

    before = dict(registry._RULES)
    try:
        importlib.import_module("tests.rlx_xla.wavelets.rules")
        text = rlx_xla.stablehlo(haar_graph(wavelets))
        assert "stablehlo.slice" in text
        assert "stablehlo.reshape" not in text
    finally:
        registry._RULES.clear()
        registry._RULES.update(before)


def test_an_op_that_only_numpy_knows(wavelets: Any, rng: np.random.Generator) -> None:
    from rlx_xla.lowering import registry
    from rlx_xla.lowering.host import run_on_host
    from rlx_xla.tracing import jax_registry

    b = rlx.GraphBuilder("ranks")
    graph = b.build(wavelets.WaveletsRanks()(b.input("x", "f64[5]")))
    x = rng.uniform(-1, 1, 5)
    wanted = np.argsort(np.argsort(x))
    np.testing.assert_array_equal(rlx.interpret(graph, {"x": x})[0], wanted)
    with pytest.raises(LoweringError, match="no lowering for op 'wavelets_ranks' on 'cpu'"):
        rlx.Session("cpu").compile(graph)
    tables = (registry._RULES, jax_registry._RULES, jax_registry._NAMED)
    before = [dict(table) for table in tables]
    try:
        run_on_host(wavelets.WaveletsRanks)
        np.testing.assert_array_equal(rlx.Session("cpu").compile(graph).run({"x": x})[0], wanted)
        np.testing.assert_array_equal(rlx_xla.to_jax(graph)(x), wanted)
        with pytest.raises(LoweringError, match="a portable module is required to hold no calls"):
            rlx_xla.stablehlo(graph, portable=True)
    finally:
        for table, old in zip(tables, before, strict=True):
            table.clear()
            table.update(old)


class _Point:
    name, value = "wavelets", "wavelets.ops"

    def __init__(self, load: Any) -> None:
        self.load = load


def test_unknown_ops_are_looked_for_in_packages(
    wavelets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlx.ir import op as ops

    del ops._OPS["wavelets_haar"]
    with pytest.raises(RegistryError) as caught:
        op_named("wavelets_haar")
    assert str(caught.value).endswith("If another package defines it, import that package first.")

    def load() -> None:
        ops._OPS["wavelets_haar"] = wavelets.WaveletsHaar

    monkeypatch.setattr(ops, "entry_points", lambda group: [_Point(load)])
    assert op_named("wavelets_haar") is wavelets.WaveletsHaar

    def broken() -> None:
        raise ImportError("No module named 'pywt'")

    monkeypatch.setattr(ops, "entry_points", lambda group: [_Point(broken)])
    with pytest.raises(RegistryError) as caught:
        op_named("wavelets_other")
    assert str(caught.value) == (
        "entry point 'wavelets' of the group 'rlx.ops': 'wavelets.ops' is required to import; "
        "No module named 'pywt'. Repair or uninstall the package."
    )


def test_an_op_has_one_rule(wavelets: Any) -> None:
    assert has_rule(wavelets.WaveletsHaar)
    for decorator, text in ((vjp_rule, "vjp_rule"), (jvp_rule, "jvp_rule")):

        def rule(*_: Any) -> list[Any]:
            return []

        if decorator is jvp_rule:
            assert decorator(wavelets.WaveletsRanks)(rule) is rule
            rule.__module__ = "elsewhere"
        other = lambda *_: []  # noqa: E731
        cls = wavelets.WaveletsHaar if decorator is vjp_rule else wavelets.WaveletsRanks
        with pytest.raises(RegistryError, match=f"{text}: op '{cls.op_name}' has a rule"):
            decorator(cls)(other)
    from rlx.ir import derivatives

    derivatives._JVP.pop(wavelets.WaveletsRanks)


def _same(attrs: bytes, x: rlx.TensorType, *rest: rlx.TensorType) -> rlx.TensorType:
    return x


@pytest.fixture
def named() -> Iterator[str]:
    """A named op: x · (number in attrs) + 1, with a gradient of five."""
    name = "tests.affine"

    def gradient(op: Any, inputs: Any, results: Any, upstream: Any) -> list[Any]:
        return [upstream[0] * 5.0]

    register_custom(
        CustomOp(
            name=name,
            infer=_same,
            evaluate=lambda attrs, x: x * x.dtype.type(attrs) + x.dtype.type(1),
            vjp=gradient,
        )
    )
    yield name
    unregister_custom(name)


def affine(name: str) -> rlx.Graph:
    b = rlx.GraphBuilder("affine")
    return b.build(custom_op(name, b.input("x", "f64[3]"), attrs=b"2"))


def test_an_op_by_name(named: str, tmp_path: Path) -> None:
    graph = affine(named)
    x = np.asarray([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(rlx.interpret(graph, {"x": x})[0], 2 * x + 1)
    compiled = rlx.Session("cpu").compile(graph)
    np.testing.assert_array_equal(compiled.run({"x": x})[0], 2 * x + 1)
    function = rlx_xla.to_jax(graph)
    np.testing.assert_array_equal(function(x), 2 * x + 1)
    with enable_x64():
        np.testing.assert_array_equal(jax.grad(lambda x: function(x).sum())(x), [5.0] * 3)
        back = rlx_xla.trace(function, x).graph
    assert [n.op.op_name for n in back.nodes()] == ["input", "custom"]
    rlx.save(graph, tmp_path / "g.rlx")
    assert str(rlx.load(tmp_path / "g.rlx")) == str(graph)
    unregister_custom(named)
    with pytest.raises(ParseError) as caught:
        rlx.load(tmp_path / "g.rlx")
    assert "custom: op 'tests.affine' is required to be registered; registered are " in str(
        caught.value
    )
    assert "Call rlx.ops.custom.register_custom before the graph is built or loaded." in str(
        caught.value
    )


def test_registration_of_names(named: str) -> None:
    meaning = registered_custom(named)
    with pytest.raises(RegistryError) as caught:
        register_custom(meaning)
    assert str(caught.value) == (
        "register_custom: the name 'tests.affine' is taken. Choose another, or pass replace=True."
    )
    assert register_custom(meaning, replace=True) is meaning
    with pytest.raises(RegistryError) as caught:
        register_custom(CustomOp(name="tests.nothing", infer=_same))
    assert str(caught.value) == (
        "register_custom: 'tests.nothing' is required to have evaluate or decompose (or both); "
        "got neither. Say what it computes."
    )


def test_functions_that_do_not_keep_to_infer_are_named() -> None:
    name = "tests.liar"

    def decompose(attrs: bytes, x: Any) -> Any:
        return x.sum()

    try:
        register_custom(CustomOp(name=name, infer=_same, decompose=decompose))
        with pytest.raises(RegistryError, match=r"decompose of 'tests\.liar'.*returned \(f64\[\]"):
            rlx.interpret(affine(name), {"x": np.zeros(3)})
        register_custom(
            CustomOp(name=name, infer=_same, evaluate=lambda attrs, x: x.sum()), replace=True
        )
        with pytest.raises(RegistryError, match=r"evaluate of 'tests\.liar'.*returned \(f64\[\]"):
            rlx.interpret(affine(name), {"x": np.zeros(3)})

        def gradient(op: Any, inputs: Any, results: Any, upstream: Any) -> list[Any]:
            return [upstream[0].sum()]

        register_custom(
            CustomOp(name=name, infer=_same, evaluate=lambda attrs, x: x, vjp=gradient),
            replace=True,
        )
        with pytest.raises(RegistryError) as caught:
            rlx_xla.to_jax(affine(name))(np.zeros(3))
        assert str(caught.value) == (
            "vjp of 'custom': the rule is required to return (f64[3]), None for zero; got "
            "(f64[]). Change the rule."
        )
    finally:
        unregister_custom(name)
