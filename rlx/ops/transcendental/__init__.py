"""Exponentials, logarithms, roots, trigonometric and hyperbolic functions."""

from __future__ import annotations

from rlx.ops.transcendental.exponential import Cbrt as Cbrt
from rlx.ops.transcendental.exponential import Exp as Exp
from rlx.ops.transcendental.exponential import Exp2 as Exp2
from rlx.ops.transcendental.exponential import Expm1 as Expm1
from rlx.ops.transcendental.exponential import Log as Log
from rlx.ops.transcendental.exponential import Log1p as Log1p
from rlx.ops.transcendental.exponential import Log2 as Log2
from rlx.ops.transcendental.exponential import Logistic as Logistic
from rlx.ops.transcendental.exponential import Rsqrt as Rsqrt
from rlx.ops.transcendental.exponential import Sqrt as Sqrt
from rlx.ops.transcendental.trigonometric import Acos as Acos
from rlx.ops.transcendental.trigonometric import Acosh as Acosh
from rlx.ops.transcendental.trigonometric import Asin as Asin
from rlx.ops.transcendental.trigonometric import Asinh as Asinh
from rlx.ops.transcendental.trigonometric import Atan as Atan
from rlx.ops.transcendental.trigonometric import Atan2 as Atan2
from rlx.ops.transcendental.trigonometric import Atanh as Atanh
from rlx.ops.transcendental.trigonometric import Cos as Cos
from rlx.ops.transcendental.trigonometric import Cosh as Cosh
from rlx.ops.transcendental.trigonometric import Sin as Sin
from rlx.ops.transcendental.trigonometric import Sinh as Sinh
from rlx.ops.transcendental.trigonometric import Tan as Tan
from rlx.ops.transcendental.trigonometric import Tanh as Tanh
