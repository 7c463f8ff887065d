"""The only door to unstable names of JAX and jaxlib.

Nothing else in the project imports ``jaxlib`` or ``jax._src``. Each module hides what differs
between JAX 0.7.2 and 0.12 behind one stable name:

* ``mlir``: contexts, dialects, types, text, bytecode, portable artifacts, merging of modules.
* ``jaxpr``: names for walking jaxprs, parameters of control flow, the user's source line.
* ``client``: compile, execute, host to device, result handlers, what JAX is configured to watch.
* ``export``: ``jax.export`` artifacts as StableHLO.
* ``ffi``: registration of custom-call handlers.
"""

from __future__ import annotations
