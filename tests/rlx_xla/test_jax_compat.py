"""The door to JAX says the same on every supported version."""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import CompileError, DTypeError, FormatError, TraceError
from rlx_xla._jax_compat import export, jaxpr, mlir
from rlx_xla._jax_compat.symbolic import SymbolScope

ADD = (
    "module @m { func.func public @main(%a: tensor<8xf32>, "
    "%b: tensor<8xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8xf32> { "
    "%0 = stablehlo.add %a, %b : tensor<8xf32> return %0 : tensor<8xf32> } }"
)


def equations(fn: Any, *args: object) -> dict[str, jaxpr.JaxprEqn]:
    traced = jaxpr.trace_function(fn, args)
    return {e.primitive.name: e for e in jaxpr.open_jaxpr(traced.jaxpr).eqns}


def test_every_dtype_has_an_element_type() -> None:
    context = mlir.new_context()
    for name in mlir.MLIR_NAMES:
        dtype = mlir.numpy_dtype(mlir.ir.Type.parse(mlir.MLIR_NAMES[name], context))
        assert dtype.name == name
        assert str(mlir.element_type(dtype, context)) == mlir.MLIR_NAMES[name]
    assert str(mlir.tensor_type((3, 4), np.uint8, context)) == "tensor<3x4xui8>"
    assert mlir.tensor_type_text((), bool) == "tensor<i1>"
    with pytest.raises(DTypeError, match="must be one that XLA has"):
        mlir.mlir_name("datetime64")
    with pytest.raises(DTypeError, match="must have a NumPy dtype; got i3"):
        mlir.numpy_dtype(mlir.ir.Type.parse("i3", context))


def test_a_context_is_borrowed_again_a_few_times_by_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mlir, "_idle", [])  # those of other tests may be at their last use
    first, second = mlir.borrowed_context(), mlir.borrowed_context()
    assert first[0] is not second[0]
    mlir.parse_module(ADD, first[0])
    mlir.give_back(first, 100)
    again = mlir.borrowed_context()
    assert again == (first[0], first[1] + 1)
    mlir.give_back(again, 1 << 20)  # of a large module: it goes
    assert mlir.borrowed_context()[0] is not first[0]
    uses = [second[1]]
    while len(uses) == 1 or uses[-1]:  # until a fresh one comes
        mlir.give_back((second[0], uses[-1]), 100)
        second = mlir.borrowed_context()
        uses.append(second[1])
    assert 2 < len(uses) < 64


def test_portable_artifacts_leave_the_module_alone() -> None:
    module = mlir.parse_module(ADD)
    before = mlir.module_text(module)
    artifact = mlir.to_portable(module)
    assert mlir.module_text(module) == before
    assert mlir.module_text(mlir.from_portable(artifact)) == before
    assert mlir.module_text(mlir.copy_module(module)) == before
    assert mlir.to_portable(module, mlir.minimum_stablehlo_version())
    with pytest.raises(CompileError, match="must be readable by StableHLO"):
        mlir.from_portable(artifact[:50])
    with pytest.raises(CompileError, match="must be a valid module"):
        mlir.parse_module("module { stablehlo.nothing }")


def test_donation_marks_keep_what_is_there() -> None:
    module = mlir.parse_module(ADD)
    mlir.mark_donated(module, [0, 1])
    text = mlir.module_text(module)
    assert text.count("jax.buffer_donor = true") == 1
    assert text.count("tf.aliasing_output") == 1


def test_tracing_keeps_symbols_weak_types_and_unused_arguments() -> None:
    (b,) = SymbolScope().shape(["b"])
    args = (jaxpr.abstract((b, 3), "float32"), jaxpr.abstract((), "float32", weak_type=True))
    traced = jaxpr.trace_function(lambda x, y: {"out": jnp.sin(x)}, args)
    inner = jaxpr.open_jaxpr(traced.jaxpr)
    first, second = (v.aval for v in inner.invars)
    assert jaxpr.is_symbolic(first.shape[0])
    assert not jaxpr.is_symbolic(first.shape[1])
    assert second.weak_type
    assert traced.out_info["out"].dtype == np.float32
    assert jaxpr.closed_jaxpr(inner).jaxpr.eqns == inner.eqns


def test_equations_know_the_users_line_and_names() -> None:
    def fn(x: jax.Array) -> jax.Array:
        with jax.named_scope("layer"):
            return jnp.sin(x)

    equation = equations(fn, 1.0)["sin"]
    line = jaxpr.source_line(equation)
    assert line is not None
    assert line.file == __file__
    assert "fn" in line.function
    assert jaxpr.name_stack(equation) == "layer"


def test_control_flow_has_one_set_of_parameters() -> None:
    weight = jnp.ones((3,))

    def fn(c: jax.Array, xs: jax.Array) -> object:
        scanned = jax.lax.scan(lambda c, x: (c + x * weight.sum(), c), c, xs)
        looped = jax.lax.while_loop(lambda q: q < c, lambda q: q + 1, c)
        return scanned, looped, jax.lax.cond(c > 1, lambda y: y, lambda y: -y, c)

    found = equations(fn, 1.0, jnp.ones(3))
    scan = jaxpr.scan_params(found["scan"].params)
    assert (scan.num_carry, scan.length, scan.reverse, scan.unroll) == (1, 3, False, 1)
    assert scan.num_consts == len(found["scan"].invars) - 2
    loop = jaxpr.while_params(found["while"].params)
    assert (loop.cond_consts, loop.body_consts) == (1, 0)
    assert len(jaxpr.cond_branches(found["cond"].params)) == 2


def test_calls_give_what_they_call() -> None:
    @jax.custom_jvp
    def with_jvp(x: jax.Array) -> jax.Array:
        return x * 2

    with_jvp.defjvp(lambda p, t: (with_jvp(*p), t[0]))

    @jax.custom_vjp
    def with_vjp(x: jax.Array) -> jax.Array:
        return x * 3

    with_vjp.defvjp(lambda x: (with_vjp(x), None), lambda _, g: (g,))

    def fn(x: jax.Array) -> object:
        again = jax.checkpoint(lambda q: q * q)(x)
        return with_jvp(x), with_vjp(x), again, jax.jit(jnp.negative)(x), jnp.exp(x)

    for name, equation in equations(fn, 1.0).items():
        called = jaxpr.called_jaxpr(name, equation.params)
        if name == "exp":
            assert called is None
        else:
            assert isinstance(called, jaxpr.ClosedJaxpr), name


def test_x64_can_be_on_for_a_block() -> None:
    assert jnp.ones(2).dtype == np.float32
    with jaxpr.enable_x64():
        assert jnp.ones(2).dtype == np.float64


def test_exports_become_modules() -> None:
    spec = jaxpr.abstract((4,), "float32")
    exported = export.export_function(jnp.sin, (spec,), platforms=["cpu", "tpu"])
    assert "stablehlo.sine" in mlir.module_text(export.exported_module(exported))

    def calls_back(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sin, spec, x)

    with pytest.raises(TraceError, match="must be exportable"):
        export.export_function(calls_back, (spec,))


def test_artifacts_round_trip_or_say_what_is_missing() -> None:
    spec = jaxpr.abstract((4,), "float32")
    exported = export.export_function(jnp.sin, (spec,))
    if importlib.util.find_spec("flatbuffers") is None:
        with pytest.raises(FormatError, match="pip install flatbuffers"):
            export.serialize_exported(exported)
        return
    again = export.deserialize_exported(export.serialize_exported(exported))
    assert again.in_avals == exported.in_avals
    with pytest.raises(FormatError, match=r"must be a jax\.export artifact"):
        export.deserialize_exported(b"nothing of the kind")


def test_constants_of_an_unpickled_dtype_are_numbers() -> None:
    marked = np.array([1, 2, 3], np.dtype("f4", metadata={"from": "a file"}))
    assert marked.dtype.isbuiltin != 1  # equal to NumPy's own, and another object
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(lambda x: x + marked, "f32[3]"))
    np.testing.assert_array_equal(compiled(np.ones(3, np.float32)), [2, 3, 4])


def test_calls_with_keys_run_no_program_beside_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(key: Any) -> Any:
        first, second = jax.random.split(key)
        return first, jax.random.uniform(second, (3,))

    key = jax.random.key(3)
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(both, key))
    compiled(key)  # the class of keys is known from here on
    wanted = jax.jit(both)(key)

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a program of its own for a key")

    with monkeypatch.context() as patch:
        patch.setattr(jax.random, "key_data", refused)
        patch.setattr(jax.random, "wrap_key_data", refused)
        first, drawn = compiled(key)
        with pytest.raises(AssertionError), jax.debug_key_reuse(True):
            compiled(key)
    assert first.dtype == wanted[0].dtype
    np.testing.assert_array_equal(jax.random.key_data(first), jax.random.key_data(wanted[0]))
    np.testing.assert_array_equal(drawn, wanted[1])
    assert not key.is_deleted()
