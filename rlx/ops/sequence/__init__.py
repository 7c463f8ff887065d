"""Sequence models: recurrences over the steps of a sequence, made of ``scan``."""

from rlx.ops.sequence.delta import GatedDeltaNet as GatedDeltaNet
from rlx.ops.sequence.recurrent import Gru as Gru
from rlx.ops.sequence.recurrent import Lstm as Lstm
from rlx.ops.sequence.recurrent import Rnn as Rnn
from rlx.ops.sequence.state_space import Mamba2 as Mamba2
from rlx.ops.sequence.state_space import SelectiveScan as SelectiveScan
