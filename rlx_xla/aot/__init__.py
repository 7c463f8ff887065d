"""Compiling for accelerators that are not there: ``preflight``, ``aot`` and what they return."""

from rlx_xla.aot.artifact import Artifact as Artifact
from rlx_xla.aot.artifact import LoadedArtifact as LoadedArtifact
from rlx_xla.aot.artifact import aot as aot
from rlx_xla.aot.artifact import load_artifact as load_artifact
from rlx_xla.aot.compiling import Compilation as Compilation
from rlx_xla.aot.compiling import Failure as Failure
from rlx_xla.aot.compiling import FailureKind as FailureKind
from rlx_xla.aot.compiling import missing as missing
from rlx_xla.aot.preflight import Bound as Bound
from rlx_xla.aot.preflight import Preflight as Preflight
from rlx_xla.aot.preflight import preflight as preflight
from rlx_xla.aot.targets import Target as Target
from rlx_xla.aot.targets import known_targets as known_targets
from rlx_xla.aot.targets import parse_target as parse_target
