"""Composites that are made of 64-bit values, where JAX's 64-bit mode is off."""

from __future__ import annotations

import chex
import jax
import numpy as np

import rlx
import rlx_xla


def test_composites_may_be_made_of_64_bits() -> None:
    b = rlx.GraphBuilder("g")
    x, n = b.input("x", "f32[b, 3]"), b.input("n", "i16[8]")
    values = rlx.ops.Fma()(x, x, x), rlx.ops.FftQ()(n)
    graph = b.build(*values)
    arrays = np.ones((2, 3), np.float32), np.arange(8, dtype=np.int16)
    function = rlx_xla.to_jax(graph)
    wanted = rlx.interpret(graph, dict(zip("xn", arrays, strict=True)))
    for found in (function(*arrays), jax.jit(function)(*arrays)):
        chex.assert_trees_all_equal([np.asarray(y) for y in found], wanted)
    gradient = jax.grad(lambda a: function(a, arrays[1])[0].sum())(arrays[0])
    np.testing.assert_allclose(gradient, np.full((2, 3), 3.0))
    names = [node.op.op_name for node in rlx_xla.trace(function, *arrays).graph.nodes()]
    assert {"fma", "fft_q"} <= set(names)
