"""A program compiled ahead of time loads on the GPU that it was compiled for, and runs."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx_xla
from rlx_xla.aot import parse_target
from rlx_xla.aot.compiling import missing

pytestmark = pytest.mark.gpu


def _target() -> str:
    kind = jax.devices("cuda")[0].device_kind.lower()
    for name in ("h200", "h100", "a100", "b200", "t4"):
        if name in kind:
            return f"cuda:{name}"
    pytest.skip(f"no target is known for {kind}")


def test_an_artifact_runs(tmp_path: Path, rng: np.random.Generator) -> None:
    target = _target()
    if missing(parse_target(target)) is not None:
        pytest.skip("the compiler is not installed")
    x = rng.standard_normal((256, 512)).astype(np.float32)
    w = rng.standard_normal((512, 128)).astype(np.float32)

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.nn.softmax(jnp.cumsum(x, axis=1) @ w)

    artifact = rlx_xla.aot(function, x, w, target=target, params=1)
    assert "xla.gpu.ptx" in artifact.stablehlo  # our kernel travels inside
    path = tmp_path / "f.rlxa"
    artifact.save(path)
    loaded = rlx_xla.load_artifact(path)
    (name,) = [name for name, _ in artifact.params]
    loaded.set_params({name: w})
    (found,) = loaded.run({artifact.inputs[0][0]: x})
    wanted = jax.jit(function)(x, w)
    np.testing.assert_allclose(found, np.asarray(wanted), atol=5e-2)
