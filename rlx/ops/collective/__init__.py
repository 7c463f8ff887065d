"""Computations that are spread over the devices of a mesh, and what devices exchange."""

from __future__ import annotations

from rlx.ops.collective.constraint import ShardingConstraint as ShardingConstraint
from rlx.ops.collective.exchange import AllGather as AllGather
from rlx.ops.collective.exchange import AllToAll as AllToAll
from rlx.ops.collective.exchange import AxisIndex as AxisIndex
from rlx.ops.collective.exchange import Ppermute as Ppermute
from rlx.ops.collective.exchange import ReduceScatter as ReduceScatter
from rlx.ops.collective.manual import ShardMap as ShardMap
from rlx.ops.collective.reduce import Pmax as Pmax
from rlx.ops.collective.reduce import Pmin as Pmin
from rlx.ops.collective.reduce import Psum as Psum

COLLECTIVES = (AllGather, AllToAll, AxisIndex, Pmax, Pmin, Ppermute, Psum, ReduceScatter)
"""Ops whose result depends on the device: they stand inside of a ``shard_map``."""
