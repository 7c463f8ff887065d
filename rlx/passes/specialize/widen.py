"""Chains of elementwise bf16 ops in f32, rounded once where another op reads them.

XLA's CPU rounds to bf16 and back after every op of such a chain, which costs more than the ops
themselves. bf16 has the exponents of f32, so nothing overflows here that did not there. The bodies
of loops stay as they are: what such a loop carries is small, and there the rounded chain was seen
to be twice as fast (``bench_models``, the Mamba-like model).
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Op
from rlx.ir.rewrite import Rule, sweep
from rlx.ops.activation import (
    Elu,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    LogSigmoid,
    Mish,
    Relu,
    Silu,
    Softplus,
    Softsign,
)
from rlx.ops.arithmetic import (
    Abs,
    Add,
    Clamp,
    Div,
    IntegerPow,
    Max,
    Min,
    Mul,
    Neg,
    OneMinusSquare,
    Pow,
    Square,
    Sub,
)
from rlx.ops.compare import Select
from rlx.ops.convert import Convert
from rlx.ops.special import Erf, Erfc
from rlx.ops.transcendental import (
    Atan2,
    Exp,
    Exp2,
    Expm1,
    Log,
    Log1p,
    Log2,
    Logistic,
    Rsqrt,
    Sqrt,
    Tanh,
)

ROUNDING: tuple[type[Op], ...] = (
    *(Add, Sub, Mul, Div, Square, IntegerPow, Pow, OneMinusSquare),
    *(Exp, Exp2, Expm1, Log, Log2, Log1p, Logistic, Tanh, Sqrt, Rsqrt, Erf, Erfc, Atan2),
    *(Gelu, Silu, Softplus, Mish, Softsign, LogSigmoid, Elu, LeakyRelu, HardSigmoid, HardSwish),
)
"""Continuous ops that round: a better operand gives a better result."""

EXACT: tuple[type[Op], ...] = (Neg, Abs, Max, Min, Clamp, Relu, Select)
"""Ops that pick or flip: they join a chain and begin none."""


def widen_chains(graph: Graph) -> tuple[Graph, int]:
    """Return the graph with bf16 chains in f32, and how many ops that are."""
    count = 0

    def start() -> Rule:
        wide: dict[Value, Value] = {}
        chained: set[Value] = set()  # what a chain gives; ``wide`` has what it reads, too

        def visit(node: Node) -> Value | None:
            nonlocal count
            if not _is_narrow(node):
                return None
            if isinstance(node.op, EXACT) and chained.isdisjoint(node.inputs):
                return None
            count += 1
            result: Value = node.op(*(_widened(v, wide) for v in node.inputs))
            narrow: Value = Convert(dtype=DType.BF16)(result)
            wide[narrow] = result
            chained.add(narrow)
            return narrow

        return visit

    begin: Callable[[], Rule] = start
    return sweep(graph, begin, nested=False), count


def _is_narrow(node: Node) -> bool:
    return node.types[0].dtype is DType.BF16 and isinstance(node.op, (*ROUNDING, *EXACT))


def _widened(value: Value, wide: dict[Value, Value]) -> Value:
    """The f32 value behind a bf16 one, made once; other dtypes (a predicate) as they are."""
    if value.type.dtype is not DType.BF16:
        return value
    found = wide.get(value)
    if found is None:
        found = wide[value] = Convert(dtype=DType.F32)(value)
    return found
