"""Matrix products: the general contraction, matmul, and products of computed groups."""

from rlx.ops.dot.general import DEFAULT_PRECISION as DEFAULT_PRECISION
from rlx.ops.dot.general import DotAlgorithm as DotAlgorithm
from rlx.ops.dot.general import DotGeneral as DotGeneral
from rlx.ops.dot.general import DotPrecision as DotPrecision
from rlx.ops.dot.general import accumulator as accumulator
from rlx.ops.dot.general import check_product as check_product
from rlx.ops.dot.grouped import GroupedMatmul as GroupedMatmul
from rlx.ops.dot.grouped import LoraMatmul as LoraMatmul
from rlx.ops.dot.matmul import Matmul as Matmul
from rlx.ops.dot.ragged import RaggedDot as RaggedDot
