"""Fused ops: several steps under one name, which kernels carry out and passes produce.

Each decomposes into the ops that it stands for, computed in f32 where the operands are narrower
and rounded once.
"""

from rlx.ops.fused.norms import FusedResidualLn as FusedResidualLn
from rlx.ops.fused.norms import FusedResidualRmsNorm as FusedResidualRmsNorm
from rlx.ops.fused.products import FusedConvBiasAct as FusedConvBiasAct
from rlx.ops.fused.products import FusedMatmulBiasAct as FusedMatmulBiasAct
from rlx.ops.fused.products import FusedMatmulResidual as FusedMatmulResidual
from rlx.ops.fused.products import FusedSwiglu as FusedSwiglu
from rlx.ops.fused.regions import BatchElementwiseRegion as BatchElementwiseRegion
from rlx.ops.fused.regions import ElementwiseRegion as ElementwiseRegion
from rlx.ops.fused.regions import RegionPrologue as RegionPrologue
from rlx.ops.fused.regions import TransformRegion as TransformRegion
from rlx.ops.fused.regions import TransformStep as TransformStep
from rlx.ops.fused.transformer import FusedAttentionBlock as FusedAttentionBlock
from rlx.ops.fused.transformer import FusedTransformerLayer as FusedTransformerLayer
