"""What XLA refuses is reported against the user's line."""

from __future__ import annotations

import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import CompileError
from rlx_xla._jax_compat import client, mlir
from rlx_xla._jax_compat.culprit import find_culprit

X = np.ones(4, np.float32)


def _unknown_call(x: Any) -> Any:
    return jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct((4,), jnp.float32))(x)


def _line(fn: Any) -> str:
    return f"{__file__}:{inspect.getsourcelines(fn)[1] + 1}"


def _straight(x: Any) -> Any:
    return jnp.sin(_unknown_call(x * 2)) + 1


def _in_a_loop(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda _, y: _unknown_call(y) + 1, x)


def _in_a_nested_jit(x: Any) -> Any:
    return jax.jit(lambda v: jnp.cos(_unknown_call(v)))(x)


@pytest.mark.parametrize("fn", [_straight, _in_a_loop, _in_a_nested_jit])
def test_the_refused_op_and_its_line_are_named(fn: Any) -> None:
    with pytest.raises(CompileError, match="No FFI handler registered for no_such_target") as e:
        rlx.Session("cpu").compile(rlx_xla.trace(fn, X))
    assert f"stablehlo.custom_call at {_line(_unknown_call)}" in str(e.value)


def test_a_failure_without_a_culprit_says_so() -> None:
    options = rlx.CompileOptions(compiler_options={"xla_no_such_flag": True})
    with pytest.raises(CompileError, match=r"No op of it is refused alone.*compiler_options"):
        rlx.Session("cpu").compile(rlx_xla.trace(_fine, X), options=options)
    assert rlx.Session("cpu").compile(rlx_xla.trace(_fine, X))(X).shape == (4,)


def _fine(x: Any) -> Any:
    return jnp.sin(x) + 1


MODULE = """
module @m {
  func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.sine %a : tensor<4xf32>
    %1 = stablehlo.cosine %0 : tensor<4xf32> loc("layer"("model.py":7:0))
    %2 = stablehlo.cosine %1 : tensor<4xf32> loc("model.py":9:0)
    return %2 : tensor<4xf32>
  }
}
"""


def test_equal_ops_are_tried_once_and_the_mentioned_first() -> None:
    module = mlir.parse_module(MODULE)
    tried: list[str] = []

    def refusal(alone: mlir.ir.Module) -> str | None:
        (op, _) = mlir.main_function(alone).entry_block.operations
        tried.append(op.operation.name)
        return "INTERNAL: no" if "cosine" in tried[-1] else None

    assert find_culprit(module, "INTERNAL: bad", refusal) == "stablehlo.cosine at model.py:7"
    assert tried == ["stablehlo.sine", "stablehlo.cosine"]
    tried.clear()
    assert find_culprit(module, "INTERNAL: cosine", refusal) is not None
    assert tried == ["stablehlo.cosine"]
    assert find_culprit(module, "OTHER: cosine", refusal) is None


def test_a_module_that_xla_refuses_keeps_its_error_class() -> None:
    text = MODULE.replace("stablehlo.sine %a :", "stablehlo.custom_call @nope(%a) :").replace(
        ": tensor<4xf32>\n    %1", ': (tensor<4xf32>) -> tensor<4xf32> loc("a.py":3:0)\n    %1'
    )
    with pytest.raises(CompileError, match=r"custom_call at a\.py:3"):
        client.compile_module(mlir.parse_module(text), jax.devices()[0], name="m")


@pytest.mark.parametrize("dtype", ["f6e2m3fn", "f6e3m2fn"])
def test_constants_that_abort_xla_are_no_literals(dtype: str) -> None:
    b = rlx.GraphBuilder("six")
    x = b.input("x", "f32[2]")
    graph = b.build((x.convert(dtype) + 1.5).convert("f32"))
    text = rlx_xla.stablehlo(graph)
    assert not re.search(r"constant dense<.*> : tensor<.*f6", text, re.IGNORECASE)
    with pytest.raises(CompileError, match="XLA must accept the module for cpu:0"):
        rlx.Session("cpu").compile(graph)
