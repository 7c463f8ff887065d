"""Elementwise arithmetic."""

from __future__ import annotations

from rlx.ops.arithmetic.binary import Add as Add
from rlx.ops.arithmetic.binary import Div as Div
from rlx.ops.arithmetic.binary import Max as Max
from rlx.ops.arithmetic.binary import Min as Min
from rlx.ops.arithmetic.binary import Mul as Mul
from rlx.ops.arithmetic.binary import MulHi as MulHi
from rlx.ops.arithmetic.binary import NextAfter as NextAfter
from rlx.ops.arithmetic.binary import Pow as Pow
from rlx.ops.arithmetic.binary import Rem as Rem
from rlx.ops.arithmetic.binary import Sub as Sub
from rlx.ops.arithmetic.fused import Fma as Fma
from rlx.ops.arithmetic.rounding import Ceil as Ceil
from rlx.ops.arithmetic.rounding import Floor as Floor
from rlx.ops.arithmetic.rounding import IsFinite as IsFinite
from rlx.ops.arithmetic.rounding import Round as Round
from rlx.ops.arithmetic.rounding import Ties as Ties
from rlx.ops.arithmetic.unary import Abs as Abs
from rlx.ops.arithmetic.unary import Clamp as Clamp
from rlx.ops.arithmetic.unary import IntegerPow as IntegerPow
from rlx.ops.arithmetic.unary import Neg as Neg
from rlx.ops.arithmetic.unary import OneMinusSquare as OneMinusSquare
from rlx.ops.arithmetic.unary import Polynomial as Polynomial
from rlx.ops.arithmetic.unary import Sign as Sign
from rlx.ops.arithmetic.unary import Square as Square
