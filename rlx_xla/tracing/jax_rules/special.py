"""Error, gamma, beta, zeta and Bessel functions."""

from __future__ import annotations

from typing import Any

from jax import lax

from rlx.ir.op import Op
from rlx.ops import special as ops
from rlx_xla.tracing.jax_registry import to_jax_rule
from rlx_xla.tracing.jax_rules.arithmetic import plain_rule

_PLAIN: dict[type[Op], Any] = {
    ops.Erf: lax.erf,
    ops.Erfc: lax.erfc,
    ops.ErfInv: lax.erf_inv,
    ops.Lgamma: lax.lgamma,
    ops.Digamma: lax.digamma,
    ops.BesselI0e: lax.bessel_i0e,
    ops.BesselI1e: lax.bessel_i1e,
    ops.Polygamma: lax.polygamma,
    ops.Zeta: lax.zeta,
    ops.Igamma: lax.igamma,
    ops.Igammac: lax.igammac,
    ops.IgammaGradA: lax.igamma_grad_a,
    ops.RegularizedIncompleteBeta: lax.betainc,
}

for _op, _function in _PLAIN.items():
    to_jax_rule(_op)(plain_rule(_function))
