"""Products with a named algorithm, products of groups, and searches that may miss some."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import DotAlgorithmPreset

import rlx
import rlx_xla
from rlx.errors import LoweringError
from rlx.ops.dot import DotAlgorithm, DotGeneral, RaggedDot
from rlx.ops.sorting import ApproxTopK
from rlx.passes import Canonicalize, EliminateCommonSubexpressions, Fixpoint, PassContext

CANONICAL = Fixpoint(passes=(Canonicalize(), EliminateCommonSubexpressions()))
CPU_PRESETS = (
    "F16_F16_F16", "F32_F32_F32", "F64_F64_F64", "BF16_BF16_F32", "BF16_BF16_F32_X3",
    "BF16_BF16_F32_X6", "DEFAULT",
)  # fmt: skip


def checked(function: Any, *args: Any, rtol: float = 0.0) -> rlx_xla.Traced:
    """Trace without opaque nodes, compare a run with jax.jit and the way back with the graph."""
    traced = rlx_xla.trace(function, *args)
    assert traced.coverage().external == 0
    found = jax.tree.leaves(rlx.Session("cpu").compile(traced)(*args))
    wanted = jax.tree.leaves(jax.jit(function)(*args))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        near = [np.asarray(x).astype(np.float64) for x in (ours, theirs)]
        np.testing.assert_allclose(*near, rtol=rtol, atol=rtol)
    again = rlx_xla.trace(rlx_xla.to_jax(traced), *args)
    forms = [CANONICAL.run(t.graph, PassContext()) for t in (again, traced)]
    assert [str(n.op) for n in forms[0].nodes()] == [str(n.op) for n in forms[1].nodes()]
    return traced


def ops_of(traced: rlx_xla.Traced, kind: type) -> list[Any]:
    graphs = traced.graph.all_graphs()
    return [n.op for g in graphs for n in g.nodes() if isinstance(n.op, kind)]


def drawn(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng().uniform(0.5, 1.5, shape), dtype)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", CPU_PRESETS)
def test_products_by_algorithm(name: str, dtype: Any) -> None:
    def product(x: Any, y: Any) -> Any:
        return jax.lax.dot_general(x, y, (((1,), (0,)), ((), ())), DotAlgorithmPreset[name])

    bound = {jnp.float32: 1e-5, jnp.bfloat16: 1e-2, jnp.float16: 2e-3}[dtype]
    if name.startswith("F16"):
        bound = max(bound, 2e-3)
    traced = checked(product, drawn(3, 17, dtype=dtype), drawn(17, 2, dtype=dtype), rtol=bound)
    wanted = None if name == "DEFAULT" else DotAlgorithm[name]
    assert [op.algorithm for op in ops_of(traced, DotGeneral)] == [wanted]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("preset", DotAlgorithmPreset)
def test_other_devices_get_the_algorithm_as_jax_says_it(
    preset: DotAlgorithmPreset, platform: str
) -> None:
    dtype = "float8_e4m3fn" if "F8" in preset.name else "float32"
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((4, 8), (8, 3))]

    def product(x: Any, y: Any) -> Any:
        return jax.lax.dot_general(x, y, (((1,), (0,)), ((), ())), preset)

    def lines(text: str) -> list[str]:
        found = [line for line in text.splitlines() if re.search(r"= stablehlo\.(dot|conv)", line)]
        return [re.sub(r"%\w+", "%", line).strip() for line in found]

    theirs = jax.jit(product).trace(*types).lower(lowering_platforms=(platform,)).as_text()
    ours = rlx_xla.stablehlo(rlx_xla.trace(product, *types).graph, platform=platform)
    assert lines(ours) == lines(theirs)


def test_an_algorithm_that_the_cpu_lacks_is_refused() -> None:
    def product(x: Any, y: Any) -> Any:
        return jax.lax.dot_general(x, y, (((1,), (0,)), ((), ())), DotAlgorithmPreset.TF32_TF32_F32)

    traced = rlx_xla.trace(product, "f32[2, 3]", "f32[3, 4]")
    wanted = (
        "the CPU is required to have the algorithm; it has f16_f16_f16, f32_f32_f32, f64_f64_f64, "
        "bf16_bf16_f32, bf16_bf16_f32_x3, bf16_bf16_f32_x6, not tf32_tf32_f32. Choose one of "
        "these, or leave it out."
    )
    with pytest.raises(LoweringError, match=re.escape(wanted)):
        rlx.Session("cpu").compile(traced)


def test_attention_of_16_bits_multiplies_by_bf16_weights() -> None:
    q, k, v = (drawn(2, 5, 2, 8, dtype=jnp.bfloat16) for _ in range(3))
    traced = checked(jax.nn.dot_product_attention, q, k, v, rtol=2e-2)
    assert ops_of(traced, DotGeneral)


@pytest.mark.parametrize("sizes", [[3, 0, 4], [1, 1, 1], [7, 0, 0]])
def test_products_of_groups(sizes: list[int]) -> None:
    groups = jnp.asarray(sizes, jnp.int32)
    x, weights = drawn(7, 5), drawn(3, 5, 2)
    traced = checked(jax.lax.ragged_dot, x, weights, groups, rtol=1e-5)
    assert len(ops_of(traced, RaggedDot)) == 1


def test_gradients_of_products_of_groups() -> None:
    groups = jnp.asarray([3, 0, 4], jnp.int32)

    def loss(x: Any, weights: Any) -> Any:
        return jnp.sum(jax.lax.ragged_dot(x, weights, groups) ** 2)

    x, weights = drawn(7, 5), drawn(3, 5, 2)
    traced = checked(jax.grad(loss, (0, 1)), x, weights, rtol=1e-4)
    assert {op.rhs_group for op in ops_of(traced, RaggedDot)} == {None, 0}


def test_products_of_groups_in_batches() -> None:
    groups = jnp.asarray([[3, 0, 4], [1, 2, 1]], jnp.int32)
    checked(jax.vmap(jax.lax.ragged_dot), drawn(2, 7, 5), drawn(2, 3, 5, 2), groups, rtol=1e-5)


def test_a_tpu_gets_its_own_op_for_groups() -> None:
    traced = rlx_xla.trace(jax.lax.ragged_dot, "f32[7, 5]", "f32[3, 5, 2]", "i32[3]")
    assert "chlo.ragged_dot" in rlx_xla.stablehlo(traced.graph, platform="tpu")
    assert "chlo." not in rlx_xla.stablehlo(traced.graph, platform="tpu", portable=True)


@pytest.mark.parametrize("find", [jax.lax.approx_max_k, jax.lax.approx_min_k])
@pytest.mark.parametrize("whole", [True, False])
def test_searches_that_may_miss_some(find: Any, whole: bool) -> None:
    x = jnp.asarray(np.random.default_rng().permutation(1200).reshape(3, 400), jnp.float32)
    traced = checked(lambda x: find(x, 5, aggregate_to_topk=whole), x)
    assert len(ops_of(traced, ApproxTopK)) == 1
    checked(lambda x: find(x, 2, reduction_dimension=0, recall_target=0.8), x)


def test_a_tpu_searches_and_others_sort() -> None:
    traced = rlx_xla.trace(lambda x: jax.lax.approx_max_k(x, 5), "f32[3, 400]")
    texts = {p: rlx_xla.stablehlo(traced.graph, platform=p) for p in ("cpu", "cuda", "tpu")}
    assert all("@ApproxTopK" in text for text in texts.values())
    assert {p: "is_fallback" in text for p, text in texts.items()} == {
        "cpu": True, "cuda": True, "tpu": False,
    }  # fmt: skip
    assert "custom_call" not in rlx_xla.stablehlo(traced.graph, platform="tpu", portable=True)


def test_gradients_of_a_search() -> None:
    x = jnp.asarray(np.random.default_rng().permutation(400), jnp.float32)
    checked(jax.grad(lambda x: jnp.sum(jax.lax.approx_max_k(x, 5)[0] ** 2)), x)
