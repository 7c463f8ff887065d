"""A program: starts JAX's backends in a process of its own and says what they are.

Output: one line of JSON with ``default``, ``devices`` (platform, kind) and ``errors``. A process
that ends gives the accelerator back, which the one that asks may need.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Print what JAX finds here."""
    import jax
    from jax._src import xla_bridge

    found: dict[str, object] = {}
    try:
        found["devices"] = [[d.platform, d.device_kind] for d in jax.devices()]
        found["default"] = jax.default_backend()
    except RuntimeError as error:
        found["failure"] = str(error)
    errors = vars(xla_bridge).get("_backend_errors", {})
    found["errors"] = {str(name): str(error) for name, error in errors.items()}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
