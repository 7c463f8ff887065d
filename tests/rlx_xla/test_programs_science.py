"""Programs of other sciences: traced, compiled, run over several steps, compared with ``jax.jit``.

``make programs`` installs what they need and shows the times.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rlx
import rlx_xla
from rlx_xla.lowering.module import lower_to_module

STEPS = 3


@contextlib.contextmanager
def as_they_are() -> Iterator[None]:
    """Allow what these packages do and our tests forbid: to warn, and to mix ranks."""
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.simplefilter("ignore")
        yield


def load(name: str) -> Any:
    """A package, whose own warnings at import are not our matter."""
    with as_they_are():
        return importlib.import_module(name)


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where a package of the extra ``programs`` is not installed."""
    absent = importlib.util.find_spec(name.split(".")[0]) is None
    return pytest.mark.skipif(absent, reason=f"needs {name}: pip install 'rlx-xla[programs]'")


def follow(
    name: str,
    step: Callable[..., Any],
    state: Any,
    batches: Sequence[tuple[Any, ...]],
    *,
    external: dict[str, int] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> list[Any]:
    """Run ``(state, *batch) -> (state, result)`` as a graph and under jax.jit; compare both.

    Each goes on from its own state: what differs adds up. Returns the graph's results.
    """
    with as_they_are():
        traced = rlx_xla.trace(step, state, *batches[0])
        opaque = {k: n for k, (_, n) in traced.coverage().by_primitive.items() if n}
        assert opaque == (external or {}), str(traced.coverage())
        compiled, jitted = rlx.Session("cpu").compile(traced), jax.jit(step)
        ours = theirs = state
        results: list[Any] = []
        for batch in batches:
            ours, found = compiled(ours, *batch)
            theirs, wanted = jitted(theirs, *batch)
            near((ours, found), (theirs, wanted), rtol, atol)
            results.append(found)
        tell(name, step, state, *batches[0])
    return results


def near(found: Any, wanted: Any, rtol: float, atol: float) -> None:
    """Hold two trees to one structure, equal types, and close numbers; NaN only in one place."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for ours, theirs in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        pair = [
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
            for x in map(jnp.asarray, (ours, theirs))
        ]
        assert pair[0].dtype == pair[1].dtype
        np.testing.assert_allclose(*map(np.asarray, pair), rtol=rtol, atol=atol)


def tell(name: str, step: Callable[..., Any], *arguments: Any) -> None:
    """Print how long tracing and lowering take here and in JAX, both without caches."""

    def ours() -> None:
        traced = rlx_xla.trace(step, *arguments)
        told.append(time.perf_counter() - start)
        lower_to_module(rlx.Session("cpu").lower(traced.graph).graph, "cpu")

    told: list[float] = []
    taken: list[float] = []
    for run in (ours, lambda: jax.jit(step).lower(*arguments)):
        jax.clear_caches()
        gc.collect()
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    whole, theirs = taken
    print(
        f"\n{name}: trace {told[0]:.2f} s ({told[0] / theirs:.2f} of jax.jit's trace and "
        f"lowering, {theirs:.2f} s), with passes and lowering {whole:.2f} s ({whole / theirs:.2f})"
    )


@needs("diffrax")
def test_a_neural_ode_learns_by_adamw() -> None:
    dfx = load("diffrax")
    rng = np.random.default_rng()
    network = eqx.nn.MLP(2, 2, 8, 1, activation=jnp.tanh, key=jax.random.key(int(rng.integers(9))))
    params, static = eqx.partition(network, eqx.is_array)
    optimiser = optax.adamw(3e-3)
    times = jnp.linspace(0.0, 1.0, 5)

    def solve(params: Any, start: Any) -> Any:
        field = eqx.combine(params, static)
        found = dfx.diffeqsolve(
            dfx.ODETerm(lambda t, y, args: field(y)), dfx.Tsit5(), 0.0, 1.0, 0.1, start,
            stepsize_controller=dfx.PIDController(rtol=1e-3, atol=1e-5),
            saveat=dfx.SaveAt(ts=times),
        )  # fmt: skip
        return found.ys

    def loss(params: Any, starts: Any, wanted: Any) -> Any:
        return jnp.mean((jax.vmap(solve, (None, 0))(params, starts) - wanted) ** 2)

    def step(state: Any, starts: Any, wanted: Any) -> Any:
        params, memory = state
        value, gradient = jax.value_and_grad(loss)(params, starts, wanted)
        updates, memory = optimiser.update(gradient, memory, params)
        return (optax.apply_updates(params, updates), memory), value

    decay = np.exp(-np.asarray(times))[None, :, None]
    batches = []
    for _ in range(STEPS):
        starts = rng.uniform(0.5, 1.5, (4, 2)).astype(np.float32)
        batches.append((jnp.asarray(starts), jnp.asarray(starts[:, None] * decay, jnp.float32)))
    state = (params, optimiser.init(params))
    # The solver tells of a failure through callbacks of the host.
    told = {"pure_callback": 6}
    losses = follow("diffrax, adamw through the solver", step, state, batches, external=told)
    assert all(np.isfinite(value) for value in losses)


MACHINE = """
<mujoco>
  <option timestep="0.005" iterations="4" ls_iterations="4"/>
  <worldbody>
    <geom type="plane" size="2 2 .1"/>
    <body pos="0 0 .3"><freejoint/><geom type="sphere" size=".1" mass="1"/></body>
    <body pos="1 0 1">
      <joint name="shoulder" type="hinge" axis="0 1 0" damping=".1"/>
      <geom type="capsule" fromto="0 0 0 .4 0 0" size=".03"/>
      <body pos=".4 0 0">
        <joint name="elbow" type="hinge" axis="0 1 0" damping=".1"/>
        <geom type="capsule" fromto="0 0 0 .3 0 0" size=".02"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="shoulder" gear="2"/><motor joint="elbow" gear="1"/></actuator>
</mujoco>
"""


@needs("mujoco.mjx")
def test_a_machine_falls_and_moves() -> None:
    mujoco, mjx = load("mujoco"), load("mujoco.mjx")
    model = mjx.put_model(mujoco.MjModel.from_xml_string(MACHINE))

    def step(data: Any, control: Any) -> Any:
        data = mjx.step(model, data.replace(ctrl=control))
        return data, (data.qpos, data.qvel)

    rng = np.random.default_rng()
    controls = [(jnp.asarray(rng.uniform(-1, 1, 2), jnp.float32),) for _ in range(STEPS)]
    with as_they_are():
        data = mjx.make_data(model)
    places = follow("mujoco-mjx step", step, data, controls, rtol=1e-4, atol=1e-4)
    assert float(places[-1][0][2]) < 0.3  # the ball falls


def _regression(numpyro: Any, points: Any, labels: Any) -> None:
    dist = numpyro.distributions
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(3), 1).to_event(1))
    scale = numpyro.sample("scale", dist.Gamma(2.0, 1.0))
    with numpyro.plate("points", points.shape[0]):
        numpyro.sample("labels", dist.Bernoulli(logits=scale * (points @ weights)), obs=labels)


def _observations(rng: np.random.Generator) -> tuple[Any, Any]:
    points = jnp.asarray(rng.standard_normal((20, 3)), jnp.float32)
    return points, jnp.asarray(rng.integers(0, 2, 20))


@needs("numpyro")
def test_a_log_density_climbs_along_its_gradient() -> None:
    numpyro, util = load("numpyro"), load("numpyro.infer.util")

    def density(place: Any, points: Any, labels: Any) -> Any:
        return util.log_density(
            lambda points, labels: _regression(numpyro, points, labels), (points, labels), {}, place
        )[0]

    def step(place: Any, points: Any, labels: Any) -> Any:
        value, gradient = jax.value_and_grad(density)(place, points, labels)
        return jax.tree.map(lambda p, g: p + 0.01 * g, place, gradient), (value, gradient)

    seen = _observations(np.random.default_rng())
    place = {"weights": jnp.array([0.1, 0.2, 0.3]), "scale": jnp.array(1.3)}
    found = follow("numpyro log density and gradient", step, place, [seen] * STEPS)
    assert float(found[-1][0]) > float(found[0][0])


@needs("numpyro")
def test_a_sampler_walks() -> None:
    numpyro, infer = load("numpyro"), load("numpyro.infer")
    kernel = infer.NUTS(lambda points, labels: _regression(numpyro, points, labels))
    seen = _observations(np.random.default_rng())
    with as_they_are():
        state = kernel.init(jax.random.PRNGKey(0), 10, None, seen, {})

    def step(state: Any, points: Any, labels: Any) -> Any:
        state = kernel.sample(state, (points, labels), {})
        return state, (state.z, state.potential_energy)

    follow("numpyro NUTS step", step, state, [seen] * STEPS, rtol=1e-3, atol=1e-3)


@needs("colabdesign")
def test_proteinmpnn_scores_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "tree_map", jax.tree.map, raising=False)  # its name until 0.4.26
    monkeypatch.setenv("XLA_FLAGS", "")  # the package sets it when imported
    network = load("colabdesign.mpnn").mk_mpnn_model()._model
    rng = np.random.default_rng()
    size = 24
    turns = np.cumsum(rng.standard_normal((size, 1, 3)) * 0.5 + 2, 0)
    protein = {
        "X": jnp.asarray(turns + rng.standard_normal((1, 4, 3)), jnp.float32),
        "mask": jnp.ones(size),
        "residue_idx": jnp.arange(size),
        "chain_idx": jnp.zeros(size, jnp.int32),
    }

    def score(sequence: Any, params: Any, key: Any, protein: Any) -> Any:
        inputs = {**protein, "S": sequence, "decoding_order": jnp.arange(size)}
        logits = network.score(params, key, inputs)["logits"]
        # The next sequence is what the network finds likely here.
        return jax.nn.one_hot(jnp.argmax(logits, -1), 21), logits

    def sample(key: Any, params: Any, protein: Any) -> Any:
        inputs = {
            **protein,
            "temperature": 0.1,
            "decoding_order": jnp.arange(size)[:, None],
            "bias": jnp.zeros((size, 21)),
        }
        key, now = jax.random.split(key)
        return key, network.sample(params, now, inputs)

    key = jax.random.PRNGKey(int(rng.integers(99)))
    params = jax.tree.map(jnp.asarray, network.params)
    sequence = jax.nn.one_hot(jnp.asarray(rng.integers(0, 21, size)), 21)
    follow("ProteinMPNN score", score, sequence, [(params, key, protein)] * STEPS,
           rtol=1e-4, atol=1e-4)  # fmt: skip
    follow("ProteinMPNN sample", sample, key, [(params, protein)] * STEPS,
           rtol=1e-4, atol=1e-4)  # fmt: skip
