"""Lowering for a TPU that is not attached: Pallas asks which chip it is for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import mesh as _mesh

_OLDEST = {"device_kind": "TPU v4", "num_cores": 1, "platform": "tpu"}
"""The chip that is named: what its compiler takes, those of later ones take as well."""


@contextlib.contextmanager
def tpu_named() -> Iterator[None]:
    """Name a TPU while tracing and lowering, where the default device is none."""
    if jax.default_backend() == "tpu":
        yield
        return
    fields = {field.name for field in dataclasses.fields(_mesh.AbstractDevice)}
    device: Any = _mesh.AbstractDevice(**{n: v for n, v in _OLDEST.items() if n in fields})
    mesh = jax.sharding.AbstractMesh((1,), ("absent",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        yield
