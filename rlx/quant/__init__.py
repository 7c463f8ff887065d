"""Number formats of quantised tensors: schemes of packed weights, scaled small floats, codecs."""

from rlx.quant.minifloat import ScaledFormat as ScaledFormat
from rlx.quant.minifloat import Specials as Specials
from rlx.quant.scaled import ScaledQuantConfig as ScaledQuantConfig
from rlx.quant.scaled import ScaleKind as ScaleKind
from rlx.quant.scaled import ScaleLayout as ScaleLayout
from rlx.quant.scaled import dequantize_scaled as dequantize_scaled
from rlx.quant.scaled import quantize_scaled as quantize_scaled
