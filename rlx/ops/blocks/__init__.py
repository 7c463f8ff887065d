"""Blocks: layers of a model as one node each, which stand at HIR only.

A block may be made with inputs missing or to spare, as in RLX: they are counted when the block is
lowered, with `LoweringError`, and until then a block that lacks what its type depends on has the
type of its first input. What is there is checked at once.

`decompose` makes primitives and composites (fusion policy fusable); a block that has a form made
of fused ops (policy direct) registers it with `forms.direct`.
"""

from rlx.ops.blocks.decoder import LlamaDecoderBlock as LlamaDecoderBlock
from rlx.ops.blocks.layers import AttentionBlock as AttentionBlock
from rlx.ops.blocks.layers import DepthwiseConv1dCausal as DepthwiseConv1dCausal
from rlx.ops.blocks.layers import ResidualRmsNorm as ResidualRmsNorm
from rlx.ops.blocks.layers import SwigluBlock as SwigluBlock
from rlx.ops.blocks.linear import Linear as Linear
from rlx.ops.blocks.linear import LinearFused as LinearFused
from rlx.ops.blocks.linear import SharedLinearPair as SharedLinearPair
