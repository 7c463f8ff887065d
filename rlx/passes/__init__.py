"""Passes, and ``run`` to apply them by hand."""

from __future__ import annotations

from rlx.passes.base import AbstractPass as AbstractPass
from rlx.passes.base import Fixpoint as Fixpoint
from rlx.passes.base import PassContext as PassContext
from rlx.passes.base import PassRecord as PassRecord
from rlx.passes.base import Pipeline as Pipeline
from rlx.passes.base import run as run
from rlx.passes.canonicalize import Canonicalize as Canonicalize
from rlx.passes.decompose import Decompose as Decompose
from rlx.passes.eliminate import EliminateCommonSubexpressions as EliminateCommonSubexpressions
from rlx.passes.fold_constants import FoldConstants as FoldConstants
from rlx.passes.inline_calls import InlineCalls as InlineCalls
from rlx.passes.pipelines import mir_pipeline as mir_pipeline
