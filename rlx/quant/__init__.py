"""Number formats of quantised tensors: schemes of packed weights, scaled small floats, codecs."""

from rlx.quant.calibration import CalibrationRecord as CalibrationRecord
from rlx.quant.calibration import TensorScale as TensorScale
from rlx.quant.encoding import encode as encode
from rlx.quant.encoding import pack as pack
from rlx.quant.gguf import GgufFile as GgufFile
from rlx.quant.gguf import open_gguf as open_gguf
from rlx.quant.gguf import write_gguf as write_gguf
from rlx.quant.minifloat import ScaledFormat as ScaledFormat
from rlx.quant.minifloat import Specials as Specials
from rlx.quant.packed import decode as decode
from rlx.quant.packed import unpack as unpack
from rlx.quant.safetensors import SafetensorsFile as SafetensorsFile
from rlx.quant.safetensors import open_safetensors as open_safetensors
from rlx.quant.scaled import ScaledQuantConfig as ScaledQuantConfig
from rlx.quant.scaled import ScaleKind as ScaleKind
from rlx.quant.scaled import ScaleLayout as ScaleLayout
from rlx.quant.scaled import dequantize_scaled as dequantize_scaled
from rlx.quant.scaled import quantize_scaled as quantize_scaled
from rlx.quant.schemes import QuantScheme as QuantScheme
from rlx.quant.schemes import SchemeKind as SchemeKind
from rlx.quant.schemes import all_schemes as all_schemes
