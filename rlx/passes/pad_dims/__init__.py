"""Padding of dims with proof: the analysis, the masks, and what it refuses."""

from rlx.passes.pad_dims.walk import PaddedGraph as PaddedGraph
from rlx.passes.pad_dims.walk import Unsafe as Unsafe
from rlx.passes.pad_dims.walk import pad_dims as pad_dims
