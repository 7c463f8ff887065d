"""``rlx_xla.quantize``: a traced function whose weights are packed."""

from rlx.packing import SHORT as SHORT
from rlx.packing import Quantized as Quantized
from rlx.packing import QuantizedWeight as QuantizedWeight
from rlx.packing import quantize as quantize
from rlx.packing import repacked as repacked
