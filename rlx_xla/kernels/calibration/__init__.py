"""From which sizes on kernels are taken: packaged numbers, or those measured on this machine."""

from rlx_xla.kernels.calibration.bounds import Bound as Bound
from rlx_xla.kernels.calibration.bounds import all_bounds as all_bounds
from rlx_xla.kernels.calibration.bounds import bound as bound
from rlx_xla.kernels.calibration.bounds import described as described
from rlx_xla.kernels.calibration.bounds import forget as forget
from rlx_xla.kernels.calibration.bounds import measured as measured
from rlx_xla.kernels.calibration.bounds import open_all as open_all
from rlx_xla.kernels.calibration.store import features as features
