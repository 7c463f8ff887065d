"""Reading and writing at places that are known only at run time."""

from rlx.ops.indexing.dynamic import DynamicSlice as DynamicSlice
from rlx.ops.indexing.dynamic import DynamicUpdateSlice as DynamicUpdateSlice
from rlx.ops.indexing.gathers import GatherGeneral as GatherGeneral
from rlx.ops.indexing.lookups import Gather as Gather
from rlx.ops.indexing.lookups import GatherElements as GatherElements
from rlx.ops.indexing.lookups import GatherNd as GatherNd
from rlx.ops.indexing.lookups import Take as Take
from rlx.ops.indexing.places import IndexMode as IndexMode
from rlx.ops.indexing.scatters import ScatterGeneral as ScatterGeneral
from rlx.ops.indexing.scatters import ScatterKind as ScatterKind
from rlx.ops.indexing.updates import KvAppend as KvAppend
from rlx.ops.indexing.updates import ScatterAdd as ScatterAdd
from rlx.ops.indexing.updates import ScatterElements as ScatterElements
from rlx.ops.indexing.updates import ScatterNd as ScatterNd
