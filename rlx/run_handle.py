"""``RunHandle``: a run that was started, whose outputs are read later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from rlx.backend import AbstractBackend
from rlx.errors import RunError


@final
class RunHandle:
    """Outputs of a run that may still be under way.

    Attributes:
        outputs: device arrays, in the order that was asked for.
    """

    __slots__ = ("_backend", "_indices", "outputs")

    def __init__(
        self, backend: AbstractBackend, outputs: Sequence[Any], indices: Sequence[int]
    ) -> None:
        """Hold device arrays and the numbers of the outputs that they are."""
        self._backend = backend
        self._indices = tuple(indices)
        self.outputs = list(outputs)

    def done(self) -> bool:
        """Whether every output has been computed; never waits."""
        return all(self._backend.is_ready(value) for value in self.outputs)

    def result(self) -> list[np.ndarray[Any, Any]]:
        """Wait for the outputs and return them as NumPy arrays.

        Raises:
            RunError: an output was donated to a later call, as one that feeds a kept input is.
        """
        return [self._backend.from_device(value) for value in self.outputs]

    def row(self, output: int = 0, row: int = -1) -> np.ndarray[Any, Any]:
        """Read back one row (along axis 0) of one output.

        Args:
            output: number of the output in the graph.
            row: its place; negative ones count from the end.

        Raises:
            RunError: the output was not asked for, has rank 0, or has no such row.
        """
        if output not in self._indices:
            listed = ", ".join(map(str, self._indices)) or "none"
            raise RunError(
                f"row: an output of this run is required ({listed}); got {output!r}. Name it in "
                "outputs when the run is started."
            )
        value = self.outputs[self._indices.index(output)]
        shape = tuple(int(n) for n in value.shape)
        if not shape:
            raise RunError(
                f"row: an output with rows is required; output {output} has rank 0. Use result()."
            )
        if not -shape[0] <= row < shape[0]:
            raise RunError(
                f"row: output {output} has rows 0 to {shape[0] - 1}; got {row}. Use one of them."
            )
        return self._backend.from_device(value[row % shape[0]])

    def __repr__(self) -> str:
        return f"<RunHandle of outputs {list(self._indices)}>"
