"""Ops that move elements without computing: layouts, slices, joins and counters."""

from rlx.ops.shape.counters import DimValue as DimValue
from rlx.ops.shape.counters import Iota as Iota
from rlx.ops.shape.edges import EdgeMode as EdgeMode
from rlx.ops.shape.edges import PadEdges as PadEdges
from rlx.ops.shape.edges import StridedSlice as StridedSlice
from rlx.ops.shape.edges import Trilu as Trilu
from rlx.ops.shape.images import Interpolate3d as Interpolate3d
from rlx.ops.shape.images import ResizeNearest2x as ResizeNearest2x
from rlx.ops.shape.joins import Concatenate as Concatenate
from rlx.ops.shape.joins import Pad as Pad
from rlx.ops.shape.joins import Tile as Tile
from rlx.ops.shape.layouts import BroadcastInDim as BroadcastInDim
from rlx.ops.shape.layouts import Expand as Expand
from rlx.ops.shape.layouts import Reshape as Reshape
from rlx.ops.shape.layouts import Reverse as Reverse
from rlx.ops.shape.layouts import Transpose as Transpose
from rlx.ops.shape.slices import Narrow as Narrow
from rlx.ops.shape.slices import Roll as Roll
from rlx.ops.shape.slices import Slice as Slice
from rlx.ops.shape.slices import Split as Split
