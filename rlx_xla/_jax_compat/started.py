"""Whether JAX's backends run in this process, and what they say of themselves."""

from __future__ import annotations

from typing import Any

import jax
from jax._src import xla_bridge as _xla_bridge


def backends_started() -> bool:
    """Whether a device was used in this process; asking starts nothing."""
    return bool(_xla_bridge.backends_are_initialized())


def backend_errors() -> dict[str, str]:
    """Why backends did not start, by platform; empty before any was tried."""
    errors: dict[str, Any] = vars(_xla_bridge).get("_backend_errors", {})
    return {str(name): str(error) for name, error in errors.items()}


def config_value(variable: str) -> object:
    """What JAX takes for a variable such as ``JAX_PLATFORMS``, or None where it has no such."""
    values: dict[str, object] = dict(jax.config.values)
    return values.get(variable.lower())
