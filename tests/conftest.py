"""What every test starts from: seeds, JAX's strict settings, Hypothesis profiles, devices."""

from __future__ import annotations

import importlib.util
import os
import random
import zlib

import numpy as np
import pytest

# Read by jax when it is imported; tests/rlx needs no jax installed, so nothing imports it here.
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("JAX_ENABLE_X64", "0")

import hypothesis

hypothesis.settings.register_profile(
    "fast",
    max_examples=25,
    deadline=None,  # a first example may compile
    derandomize=True,  # a run on a change finds what the change broke, nothing else
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("deep", max_examples=1000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def _gpu() -> str | None:
    """Return the name of the first GPU that jax reaches, or None."""
    if importlib.util.find_spec("jax") is None:
        return None
    import jax

    devices = [d for d in jax.devices() if d.platform in ("gpu", "cuda", "rocm")]
    return devices[0].device_kind if devices else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is no device, and print the device where there is."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    gpu = _gpu()
    if gpu is not None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"gpu tests run on: {gpu}")
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no GPU: jax sees none"))


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """Give the global generators the same state at the start of every test."""
    random.seed(0)
    np.random.seed(0)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return a generator whose seed depends on the test's name alone."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
