"""Reductions over axes: plain, arg-, cumulative and with a computation of one's own."""

from rlx.ops.reduction.arguments import Argmax as Argmax
from rlx.ops.reduction.arguments import Argmin as Argmin
from rlx.ops.reduction.composite import LogSumExp as LogSumExp
from rlx.ops.reduction.composite import Mean as Mean
from rlx.ops.reduction.cumulative import CumLogSumExp as CumLogSumExp
from rlx.ops.reduction.cumulative import CumMax as CumMax
from rlx.ops.reduction.cumulative import CumMin as CumMin
from rlx.ops.reduction.cumulative import CumProd as CumProd
from rlx.ops.reduction.cumulative import CumSum as CumSum
from rlx.ops.reduction.general import Reduce as Reduce
from rlx.ops.reduction.histogram import Histogram as Histogram
from rlx.ops.reduction.plain import ReduceAnd as ReduceAnd
from rlx.ops.reduction.plain import ReduceMax as ReduceMax
from rlx.ops.reduction.plain import ReduceMin as ReduceMin
from rlx.ops.reduction.plain import ReduceOr as ReduceOr
from rlx.ops.reduction.plain import ReduceProd as ReduceProd
from rlx.ops.reduction.plain import ReduceSum as ReduceSum
from rlx.ops.reduction.plain import ReduceXor as ReduceXor
