"""Kept inputs: they live on the device and are fed from an output of each run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Mapping
from typing import Any, cast, final

import numpy as np

from rlx.backend import AbstractBackend
from rlx.deferred import Specialization
from rlx.errors import CompileError, RunError, did_you_mean
from rlx.host_values import cast_array
from rlx.ir.graph import Graph
from rlx.param_values import listing, param_value


def check_feeds(graph: Graph, feeds: Mapping[str, int], where: str) -> None:
    """Check that each kept input exists and that its output has its type.

    Raises:
        CompileError: it does not; fitting outputs are named.
    """
    inputs = {v.name: v for v in graph.inputs}
    for name, output in feeds.items():
        if name not in inputs:
            raise CompileError(
                f"{where}: an input is required ({listing(graph.inputs)}); got {name!r}."
                f"{did_you_mean(name, inputs)}"
            )
        if isinstance(output, bool) or not isinstance(cast("object", output), int | np.integer):
            raise CompileError(
                f"{where}: the output that feeds {name!r} is required to be its number; got "
                f"{output!r}. Outputs are numbered from 0."
            )
        wanted = inputs[name].type
        if 0 <= output < len(graph.outputs) and graph.outputs[output].type == wanted:
            continue
        fitting = [str(i) for i, v in enumerate(graph.outputs) if v.type == wanted]
        found = "there is no such output"
        if 0 <= output < len(graph.outputs):
            found = f"it is {graph.outputs[output].type}"
        raise CompileError(
            f"{where}: the output that feeds {name!r} is required to have its type {wanted}; got "
            f"output {output}, and {found}. Outputs of that type: {', '.join(fitting) or 'none'}."
        )
    taken: dict[int, str] = {}
    for name, output in feeds.items():
        if output in taken:
            raise CompileError(
                f"{where}: an output is required to feed one input; output {output} feeds "
                f"{taken[output]!r} and {name!r}. Return the value twice."
            )
        taken[output] = name


@final
class KeptInputs:
    """The values of kept inputs, wherever the program is that holds them.

    One program holds them at a time; with symbolic dims they move to the program that runs next.
    """

    def __init__(
        self,
        backend: AbstractBackend,
        graph: Graph,
        feeds: Mapping[str, int],
        *,
        cast: bool = False,
    ) -> None:
        """Start without values; ``cast`` converts values of another dtype."""
        self.feeds = dict(feeds)
        self._backend = backend
        self._types = {v.name: v.type for v in graph.inputs if v.name in feeds}
        self._name = graph.name
        self._cast = cast
        self._moves = bool(graph.symbols)
        self._unset = set(feeds)
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._waiting: dict[str, Any] = {}
        self._holder: Specialization | None = None
        self._busy = threading.Lock()

    def missing(self) -> list[str]:
        """Names without a value, in the order of the feeds."""
        return [name for name in self.feeds if name in self._unset]

    def set(self, name: str, value: Any) -> None:
        """Give an input a value; it is copied, since the first run consumes it.

        Raises:
            RunError: no such kept input, another type, or a call is using it.
        """
        self.require(name, "set_kept")
        type_ = self._types[name]
        if self._cast and not isinstance(value, list | tuple):
            value = cast_array(np.asarray(value), type_.dtype)
        host = np.array(param_value(f"set_kept: kept input {name!r}", value, type_), copy=True)
        array = self._backend.to_device(host, type_)
        with self._alone():
            if self._moves or self._holder is None:
                # The next run may need another program: nobody holds the values until then.
                self._waiting = {**self.values(), name: array}
                self._holder = None
            else:
                self._holder.executable.bind({name: array})
            self._unset.discard(name)
            self._sizes[name] = tuple(host.shape)

    def get(self, name: str) -> Any:
        """The device array that an input has now.

        Raises:
            RunError: no such kept input, or it has no value.
        """
        self.require(name, "kept")
        if name in self._unset:
            raise RunError(
                f"kept: {name!r} has no value yet. Use set_kept, or pass it to the first run."
            )
        return self.values()[name]

    def values(self) -> dict[str, Any]:
        """Device arrays of the inputs that have a value."""
        held = self._waiting
        if self._holder is not None:
            found, padded = self._holder.executable.resident(), self._holder.padded
            if padded is not None:
                found = {n: padded.narrowed(n, x, self._sizes[n]) for n, x in found.items()}
            held = {**held, **found}
        return {name: array for name, array in held.items() if name not in self._unset}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Sizes of the values."""
        return {n: sizes for n, sizes in self._sizes.items() if n not in self._unset}

    def reset(self, name: str | None) -> None:
        """Forget the value of one input, or of all.

        Raises:
            RunError: no such kept input, or a call is using it.
        """
        if name is not None:
            self.require(name, "reset_kept")
        with self._alone():
            self._unset.update(self.feeds if name is None else (name,))

    @contextlib.contextmanager
    def held_by(self, program: Specialization) -> Generator[None]:
        """Let a program hold the values while the block runs, and from then on.

        Raises:
            RunError: another call is using them.
        """
        with self._alone():
            self.move(program)
            yield

    def move(self, program: Specialization) -> None:
        """Make a program the one that holds the values."""
        if program is self._holder:
            return
        values = self.values()
        if program.padded is not None:
            values = program.padded.widened(values)
        if values:
            program.executable.bind(values)
        self._holder, self._waiting = program, {}

    def adopt(self, other: KeptInputs) -> None:
        """Take copies of another graph's values."""
        for name, array in other.values().items():
            if name in self.feeds:
                self.set(name, self._backend.from_device(array))

    def require(self, name: str, where: str) -> None:
        """Refuse a name that is not kept."""
        if not isinstance(cast("object", name), str) or name not in self.feeds:
            listed = ", ".join(map(repr, self.feeds)) or "none"
            raise RunError(
                f"{where}: a kept input is required ({listed}); got {name!r}."
                f"{did_you_mean(name, self.feeds)} Declare it with keep(name, from_output=...)."
            )

    def missing_error(self) -> RunError:
        """The error of a call while inputs have no value."""
        missing = [f"{name!r}: {self._types[name]}" for name in self.missing()]
        return RunError(
            f"call of {self._name}: kept inputs are required to have a value; "
            f"{', '.join(missing)} has none. Pass every input to the first call, or use set_kept."
        )

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        if not self._busy.acquire(blocking=False):
            names = ", ".join(map(repr, self.feeds))
            raise RunError(
                f"call of {self._name}: a resident input belongs to one call at a time; {names} "
                "is in use by a concurrent call. Give each thread its own clone."
            )
        try:
            yield
        finally:
            self._busy.release()
