"""Error, gamma, beta, zeta and Bessel functions."""

from __future__ import annotations

from rlx.ir.op import Op
from rlx.ops import special as ops
from rlx_xla.tracing.primitives.arithmetic import binary_rule, unary_rule
from rlx_xla.tracing.registry import traces

_UNARY: dict[str, type[Op]] = {
    "erf": ops.Erf,
    "erfc": ops.Erfc,
    "erf_inv": ops.ErfInv,
    "lgamma": ops.Lgamma,
    "digamma": ops.Digamma,
    "bessel_i0e": ops.BesselI0e,
    "bessel_i1e": ops.BesselI1e,
}
_SEVERAL: dict[str, type[Op]] = {
    "polygamma": ops.Polygamma,
    "zeta": ops.Zeta,
    "igamma": ops.Igamma,
    "igammac": ops.Igammac,
    "igamma_grad_a": ops.IgammaGradA,
    "regularized_incomplete_beta": ops.RegularizedIncompleteBeta,
}

for _name, _op in _UNARY.items():
    traces(_name)(unary_rule(_op))
for _name, _op in _SEVERAL.items():
    traces(_name)(binary_rule(_op))
