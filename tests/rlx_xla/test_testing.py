"""What people test with is tested itself: it passes what is right, and says what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest
from typing import Any

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from absl.testing import parameterized
from jax import lax

import rlx
import rlx_xla
from rlx.errors import DimError, RegistryError
from rlx_xla import testing
from rlx_xla.testing import comparison, drawing, matching
from rlx_xla.testing.variants import Variant

SEEN: list[str] = []


@testing.variants("without_jit", "with_jit", "with_rlx")
def test_a_function_in_each_variant(variant: Variant) -> None:
    SEEN.append(variant.name)
    traced: list[Any] = []

    def fn(x: jax.Array, n: int) -> jax.Array:
        traced.append(x)
        return x * n

    fast = variant(fn, static_argnums=1)
    np.testing.assert_array_equal(fast(jnp.arange(3.0), 2), [0.0, 2.0, 4.0])
    assert isinstance(traced[0], jax.core.Tracer) == (variant.name != "without_jit")


def test_every_variant_ran() -> None:
    assert SEEN[-3:] == ["without_jit", "with_jit", "with_rlx"]


@testing.all_variants
@pytest.mark.parametrize("size", [1, 3])
def test_variants_go_with_parametrize(variant: Variant, size: int) -> None:
    @variant()
    def fn(x: jax.Array) -> jax.Array:
        return jnp.flip(x)

    assert fn(jnp.arange(size)).shape == (size,)


class ChexStyle(chex.TestCase):
    @testing.all_variants
    def test_sum(self) -> None:
        total = self.variant(jnp.sum)(jnp.arange(4.0))
        assert float(total) == 6.0

    @testing.variants("with_rlx", "with_jit")
    @parameterized.parameters(1, 2)
    def test_scale(self, factor: int) -> None:
        found = self.variant(lambda x: x * factor)(jnp.ones(2))
        np.testing.assert_array_equal(found, [factor, factor])

    @chex.variants(with_jit=True, without_jit=True)
    def test_beside_chex(self) -> None:
        assert float(self.variant(jnp.sin)(0.0)) == 0.0


class Plain(unittest.TestCase):
    variant: Variant

    @testing.variants("with_rlx")
    def test_product(self) -> None:
        assert float(self.variant(lambda x: x * x)(jnp.float32(3))) == 9.0


def test_methods_have_names() -> None:
    names = {name for name in dir(ChexStyle) if name.startswith("test_s")}
    assert names == {
        "test_sum_without_jit", "test_sum_with_jit", "test_sum_with_rlx", "test_scale_0_with_rlx",
        "test_scale_0_with_jit", "test_scale_1_with_rlx", "test_scale_1_with_jit",
    }  # fmt: skip


def test_a_variant_must_be_used() -> None:
    class Lazy(unittest.TestCase):
        @testing.variants("with_rlx")
        def test_nothing(self) -> None:
            pass

    result = unittest.TestResult()
    Lazy("test_nothing_with_rlx").run(result)
    ((_, text),) = result.failures
    assert "required to call its variant" in text


def test_unknown_variants() -> None:
    with pytest.raises(RegistryError, match=r"got 'with_rxl'. Did you mean 'with_rlx'"):
        testing.variants("with_rxl")


def test_chex_and_pytest_are_optional() -> None:
    code = (
        "import sys; import rlx_xla.testing; "
        "sys.exit(any(m in sys.modules for m in ('chex', 'pytest', 'absl.testing')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("fn", "args", "options"),
    [
        (jnp.tanh, ("f32[b, 3]",), {"dtypes": ["f32", "bf16"], "sizes": (3, 0)}),
        (lambda x, w: {"y": x @ w, "n": x.shape[0]}, ("f32[b, 3]", "f32[3, m]"), {}),
        (lambda x: jnp.where(x > 0, x, 0), ("i32[n]",), {"special": True, "sizes": [5]}),
        (lambda x, n: x**n, ("f64[4]", 3), {"static_argnums": 1}),
        (lambda x, *, axis: x.sum(axis), ("f32[2*b, b]",), {"axis": 1, "static_argnames": "axis"}),
        (lambda tree: tree["a"] + tree["b"], ({"a": "f32[2]", "b": np.ones(2, "f")},), {}),
        (lambda x: lax.scan(lambda c, v: (c + v, c * v), 0.0, x), ("f32[n]",), {"sizes": [3]}),
        (lambda x: jnp.fft.fft(x), ("c64[4]",), {}),
        (lambda k: jax.random.normal(k, (3,)), (jax.random.key(0),), {}),
    ],
)
def test_what_matches(fn: Any, args: Any, options: Any) -> None:
    testing.assert_matches_jax(fn, *args, **options)


def test_one_symbolic_graph_for_all_sizes() -> None:
    testing.assert_matches_jax(
        jax.nn.softmax, "f32[b, 5]", symbolic=True, gradients=False, sizes=(3, 0, 2)
    )


def _wrong_sine(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = matching._compiled

    def wrong(*given: Any) -> Any:
        function = compiled(*given)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            return {"y": np.asarray(result["y"]) + np.float32([0, 0, 1e-4])}

        return call

    monkeypatch.setattr(matching, "_compiled", wrong)


def test_what_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _wrong_sine(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        testing.assert_matches_jax(lambda x: {"y": jnp.sin(x)}, "f32[b, 3]", sizes=[1])
    text = str(caught.value)
    assert re.search(
        r"^compiled result \(b=1\)\['y'\]\[0, 2\] is required to be .*; it is .*, \d+ ulps apart "
        r"\(atol 1e-06, rtol 1e-05\). 1 of 3 elements of f32\[1, 3\] are outside",
        text,
    )


def test_gradients_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = matching._compiled

    def wrong(*given: Any) -> Any:
        function = compiled(*given)

        def call(first: Any, *more: Any) -> Any:
            result = function(first, *more)
            return [np.float32(1.5) * r for r in result] if isinstance(first, list) else result

        return call

    monkeypatch.setattr(matching, "_compiled", wrong)
    with pytest.raises(AssertionError, match=r"^gradient, compiled result\[0\]\[\d\] is required"):
        testing.assert_matches_jax(lambda x: x * x, "f32[3]")
    testing.assert_matches_jax(lambda x: x * x, "f32[3]", gradients=False)


def test_cases_name_themselves_in_other_errors() -> None:
    with pytest.raises(ValueError, match="zero-size") as caught:
        testing.assert_matches_jax(lambda x: x.max(), "f32[b]", sizes=(3, 0), gradients=False)
    assert caught.value.__notes__[-1] == "assert_matches_jax: in the case b=0"


def test_symbols_need_sizes() -> None:
    with pytest.raises(DimError, match="at least one size ≥ 0 is required for the symbol 'b'"):
        testing.assert_matches_jax(jnp.sin, "f32[b]", sizes=[])


def test_drawings() -> None:
    drawn = list(drawing.cases(("f32[b, m]", "i8[2*m]"), {}, sizes={"b": (3, 0), "m": (1, 2)}))
    assert [case.label for case in drawn] == ["b=3, m=1", "b=0, m=2", "b=3, m=2"]
    assert [case.args[0].shape for case in drawn] == [(3, 1), (0, 2), (3, 2)]
    assert [case.args[1].shape for case in drawn] == [(2,), (4,), (4,)]
    (one,) = drawing.cases(("f16[400]", "i4[400]", "u8[400]", "c64[400]"), {}, special=True)
    half = one.args[0]
    assert np.isnan(half).any()
    assert {np.inf, -np.inf, 65504.0, -65504.0} <= set(half.tolist())
    assert {-8, 7} <= set(one.args[1].astype(int).tolist())
    assert {0, 255} <= set(one.args[2].tolist())
    assert np.isnan(one.args[3]).any()


@pytest.mark.parametrize(
    ("found", "wanted", "pattern"),
    [
        (np.float32(1), np.float64(1), r"result is required to be f64\[\]; it is f32\[\]"),
        (np.ones(2, "f"), np.ones(3, "f"), r"required to be f32\[3\]; it is f32\[2\]"),
        ([np.ones(2)], (np.ones(2),), "required to have the structure"),
        ({"a": np.int32([1, 2])}, {"a": np.int32([1, 3])}, r"\['a'\]\[1\] .*3.* it is .*2"),
        (np.float32([np.nan]), np.float32([0]), "nan"),
        (np.float32([np.inf]), np.float32([-np.inf]), "inf"),
        (np.array([True]), np.array([False]), "1 of 1 elements of bool"),
        (ml_dtypes.bfloat16(1), ml_dtypes.bfloat16(1.25), "32 ulps apart"),
        (np.array([1, 2], "int8").astype("int4"), np.array([1, 3]).astype("int4"), r"\[1\]"),
    ],
)
def test_differences(found: Any, wanted: Any, pattern: str) -> None:
    with pytest.raises(AssertionError, match=pattern):
        testing.assert_close(found, wanted)


def test_what_counts_as_equal() -> None:
    testing.assert_close(np.float32([np.nan, np.inf, -0.0]), np.float32([np.nan, np.inf, 0.0]))
    testing.assert_close(np.float32(1), np.float32(1.1), tolerance=testing.Tolerance(0, 0.1))
    testing.assert_close(np.float32(1), np.float32(1.01), precision=rlx.Precision.BF16)
    testing.assert_close(jax.random.key(3), jax.random.key(3))
    testing.assert_close(np.zeros((0, 3)), np.zeros((0, 3)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "float8_e4m3fn"])
def test_ulps(dtype: str) -> None:
    one = np.array([1.0, -1.0, 0.0]).astype(dtype)
    above = np.nextafter(one, np.array([2.0, 0.0, 1.0]).astype(dtype))
    distance = comparison.ulps(above, one)
    assert distance is not None
    assert distance.tolist() == [1, 1, 1]
    both = comparison.ulps(-one, one)
    assert both is not None
    assert both[2] == 0
    assert comparison.ulps(np.int32([1]), np.int32([2])) is None


def test_tolerances_follow_the_precision() -> None:
    f32, bf16 = testing.tolerance(rlx.DType.F32), testing.tolerance(rlx.DType.BF16)
    assert f32.rtol < bf16.rtol
    assert testing.tolerance(rlx.DType.F32, rlx.Precision.BF16) == bf16
    assert testing.tolerance(rlx.DType.I32, rlx.Precision.BF16).rtol == 0


def test_no_external() -> None:
    testing.assert_no_external(rlx_xla.trace(jnp.sin, "f32[3]"))

    def fn(x: jax.Array) -> jax.Array:
        def body(c: jax.Array, v: jax.Array) -> Any:
            jax.debug.print("{}", v)
            return c, v

        return lax.scan(body, x[0], x)[1]

    traced = rlx_xla.trace(fn, "f32[3]")
    with pytest.raises(AssertionError) as caught:
        testing.assert_no_external(traced)
    assert re.search(r"it holds 1:\n  debug_\w+ ×1: .*test_testing.py:\d+", str(caught.value))
    testing.assert_no_external(traced.graph, allow=tuple(traced.opaque))
