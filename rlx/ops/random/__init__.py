"""Random numbers: JAX's counter-based bits, RLX's streams, and draws from distributions."""

from rlx.ops.random.counter import RngAlgorithm as RngAlgorithm
from rlx.ops.random.counter import RngBitGenerator as RngBitGenerator
from rlx.ops.random.counter import Threefry2x32 as Threefry2x32
from rlx.ops.random.draws import RngNormal as RngNormal
from rlx.ops.random.draws import RngUniform as RngUniform
from rlx.ops.random.philox import PhiloxBits as PhiloxBits
from rlx.ops.random.sample import Sample as Sample
from rlx.ops.random.seeded import RANDOM_OPS as RANDOM_OPS
from rlx.ops.random.seeded import draw as draw
from rlx.ops.random.seeded import seeded as seeded
