"""Softmax and the norms: composites whose statistics are f32 for narrower floats."""

from rlx.ops.normalization.adaptive import AdaLayerNorm as AdaLayerNorm
from rlx.ops.normalization.adaptive import GatedResidual as GatedResidual
from rlx.ops.normalization.affine import BatchNormInference as BatchNormInference
from rlx.ops.normalization.affine import GroupNorm as GroupNorm
from rlx.ops.normalization.affine import LayerNorm as LayerNorm
from rlx.ops.normalization.affine import LayerNorm2d as LayerNorm2d
from rlx.ops.normalization.affine import RmsNorm as RmsNorm
from rlx.ops.normalization.softmax import LogSoftmax as LogSoftmax
from rlx.ops.normalization.softmax import Softmax as Softmax
