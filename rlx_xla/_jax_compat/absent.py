"""Lowering for a device that is not attached: Pallas asks which chip it is for."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import mesh as _mesh

_OLDEST: dict[str, dict[str, Any]] = {
    "tpu": {"device_kind": "TPU v4", "num_cores": 1, "platform": "tpu"},
    "cuda": {"device_kind": "NVIDIA A100", "num_cores": None, "platform": "gpu"},
    "rocm": {"device_kind": "gfx90a", "num_cores": None, "platform": "gpu"},
}
"""Platform → the chip that is named: what its compiler takes, those of later ones take as well."""


@contextlib.contextmanager
def device_named(platform: str) -> Iterator[None]:
    """Name a device of a platform while tracing and lowering, where the default device is none.

    Args:
        platform: ``tpu``, ``cuda`` or ``rocm``.
    """
    fields = _OLDEST[platform]
    if jax.default_backend() == fields["platform"]:
        yield
        return
    known = {field.name for field in dataclasses.fields(_mesh.AbstractDevice)}
    device: Any = _mesh.AbstractDevice(**{n: v for n, v in fields.items() if n in known})
    mesh = jax.sharding.AbstractMesh((1,), ("absent",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        yield


@contextlib.contextmanager
def triton_allowed() -> Iterator[None]:
    """Lower for Triton without JAX's word that it means to part with it: no user can heed it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend", DeprecationWarning)
        yield
