"""For people's own numerical tests: variants, comparison with JAX, tolerances.

Example:
    >>> import jax.numpy as jnp
    >>> from rlx_xla import testing
    >>> testing.assert_matches_jax(jnp.tanh, "f32[b, 3]")
"""

from __future__ import annotations

from rlx_xla.testing.comparison import assert_close as assert_close
from rlx_xla.testing.coverage import assert_no_external as assert_no_external
from rlx_xla.testing.matching import assert_matches_jax as assert_matches_jax
from rlx_xla.testing.reference import reference_run as reference_run
from rlx_xla.testing.tolerances import Tolerance as Tolerance
from rlx_xla.testing.tolerances import tolerance as tolerance
from rlx_xla.testing.variants import all_variants as all_variants
from rlx_xla.testing.variants import variants as variants
