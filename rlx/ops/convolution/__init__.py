"""Convolutions: the general one, RLX's channels-first ones, and what is made of windows."""

from rlx.ops.convolution.general import Conv as Conv
from rlx.ops.convolution.general import ConvGeneralDilated as ConvGeneralDilated
from rlx.ops.convolution.general import ConvTranspose as ConvTranspose
from rlx.ops.convolution.general import divisible as divisible
from rlx.ops.convolution.unfolded import Im2Col as Im2Col
from rlx.ops.convolution.unfolded import PartitionedConv as PartitionedConv
