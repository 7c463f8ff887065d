"""Every CPU kernel where programs put it: in loops, mapped, differentiated, donated, saved."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.ir.interpret import interpret
from rlx.ir.plan import Implementation
from rlx.options.dispatch import KernelDispatch, KernelPolicy
from rlx_xla.kernels import ffi
from rlx_xla.kernels.select import all_kernels, choose
from rlx_xla.runtime.cache import disable_cache, enable_cache
from tests.rlx_xla.kernel_programs import PROGRAMS, everything


@pytest.fixture(autouse=True)
def _library() -> None:
    if isinstance(library := ffi.load(), ffi.Unavailable):
        pytest.skip(library.reason)


def test_every_kernel_has_a_program() -> None:
    assert set(PROGRAMS) == {k.name for k in all_kernels() if "cpu" in k.platforms}


def _close(found: Any, wanted: Any) -> None:
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        theirs = np.asarray(theirs)
        assert np.asarray(mine).dtype == theirs.dtype
        atol = 1e-5 * float(np.abs(theirs).max(initial=1))
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=atol)


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) else [found]


# What is donated is used where a result has its type; JAX says so of others, and so do we.
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_loops_and_mapped_with_a_donated_input(name: str, rng: np.random.Generator) -> None:
    program = PROGRAMS[name]
    drawn = [program.draw(rng) for _ in range(2)]
    mapped = len(drawn[0]) - program.weights
    graph = program.graph(drawn[0])
    op = rlx_xla.to_jax(graph)
    each = [interpret(graph, {f"x{i}": x for i, x in enumerate(d)}) for d in drawn]
    mixed = [*drawn[1][:mapped], *drawn[0][mapped:]]
    over = [interpret(graph, {f"x{i}": x for i, x in enumerate(mixed)})]

    def ways(*stacked: jax.Array) -> Any:
        def at(i: Any) -> list[Any]:
            return _listed(
                op(*(jax.lax.dynamic_index_in_dim(x, i, keepdims=False) for x in stacked))
            )

        scanned = jax.lax.scan(lambda i, xs: (i, _listed(op(*xs))), 0, stacked)[1]
        nothing = [jnp.zeros(y.shape, y.dtype) for y in each[0]]
        looped = jax.lax.while_loop(
            lambda s: s[0] < 2, lambda s: (s[0] + 1, at(s[0])), (0, nothing)
        )
        weights = [x[0] for x in stacked[mapped:]]
        together = jax.vmap(lambda *xs: _listed(op(*xs, *weights)))(*stacked[:mapped])
        return scanned, looped[1], together

    fast = rlx_xla.jit(ways, donate_argnums=0)
    scanned, looped, together = fast(*(jnp.stack(pair) for pair in zip(*drawn, strict=True)))
    _close(scanned, [np.stack(pair) for pair in zip(*each, strict=True)])
    _close(looped, each[1])
    _close(together, [np.stack(pair) for pair in zip(each[0], over[0], strict=True)])
    kernels = Counter[str]()
    for choice in fast.report().kernels:
        kernels[choice.implementation] += choice.count
    assert kernels[name] >= 2  # in both loops


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.smooth])
def test_differentiated(name: str, rng: np.random.Generator) -> None:
    program = PROGRAMS[name]
    arrays = program.draw(rng)
    op = rlx_xla.to_jax(program.graph(arrays))
    by = range(len(arrays) - program.weights)
    factors = [rng.uniform(0.5, 1.5, t.shape) for t in program.graph(arrays).outputs]

    def loss(*xs: jax.Array) -> jax.Array:
        found = zip(_listed(op(*xs)), factors, strict=True)
        return sum((jnp.sum(y * f.astype(y.dtype)) for y, f in found), jnp.zeros(()))

    gradient = jax.grad(loss, argnums=tuple(by))
    fast = rlx_xla.jit(gradient)
    _close(fast(*arrays), jax.jit(gradient)(*arrays))


@pytest.mark.parametrize("name", PROGRAMS)
def test_forced_and_forbidden(name: str, rng: np.random.Generator) -> None:
    program = PROGRAMS[name]
    (node,) = {v.node for v in program.graph(program.draw(rng)).outputs}
    forced = KernelDispatch(policy=KernelPolicy.FORCE_COMMON, forced=frozenset({name}))
    made = choose(node, "cpu", forced)
    assert isinstance(made, Implementation)
    assert (made.kind, made.name) == ("kernel", name)
    made = choose(node, "cpu", KernelDispatch(forbidden=frozenset({name})))
    assert isinstance(made, Implementation)
    assert made.kind != "kernel"
    assert f"{name}: forbidden by kernel_dispatch" in map(str, made.refused)


def test_a_saved_program_of_all_kernels_runs_in_a_new_process(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    graph, arrays = everything(rng)
    rlx.save(graph, tmp_path / "graph.rlx")
    np.savez(tmp_path / "inputs.npz", **arrays)
    graph = rlx.load(tmp_path / "graph.rlx")
    session = rlx.Session("cpu")
    enable_cache(tmp_path / "cache")
    try:
        compiled = session.compile(graph)
        results = compiled.run(arrays)
    finally:
        disable_cache()
    assert {c.implementation for c in compiled.report().kernels} == set(PROGRAMS)
    root = str(Path(__file__).parents[2])
    ran = subprocess.run(
        [sys.executable, "-m", "tests.rlx_xla.kernel_programs", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.split() == ["0"]  # nothing was compiled
    with np.load(tmp_path / "results.npz") as found:
        for number, wanted in enumerate(results):
            np.testing.assert_array_equal(found[f"arr_{number}"], wanted)
    common = KernelDispatch(forbidden=frozenset(PROGRAMS))
    plain = session.compile(graph, options=rlx.CompileOptions(kernel_dispatch=common))
    assert not plain.report().kernels
    _close(results, plain.run(arrays))
