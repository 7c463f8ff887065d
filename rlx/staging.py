"""Runs a split graph: what params alone decide is computed once per binding of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from rlx.backend import AbstractExecutable
from rlx.errors import RunError
from rlx.hidden import PREPARED
from rlx.ir.graph import Graph
from rlx.signature import Signature


@final
class PrepareStage:
    """The program that has no inputs, and its results for the params that are bound now.

    Programs of other sizes share it where their first graphs are the same.

    Attributes:
        params: names of the params that it reads.
    """

    def __init__(self, graph: Graph, executable: AbstractExecutable) -> None:
        """Hold the compiled program; nothing runs yet."""
        self.params = tuple(v.name for v in graph.params)
        self._graph = graph
        self._executable = executable
        self._bound: dict[str, Any] = {}
        self._results: dict[str, Any] | None = None
        self._lock = threading.Lock()

    def bind(self, params: Mapping[str, Any]) -> None:
        """Bind device arrays; what was computed of others is stale."""
        with self._lock:
            changed = {
                name: params[name]
                for name in self.params
                if name in params and params[name] is not self._bound.get(name)
            }
            if changed:
                self._executable.bind(changed)
                self._bound = {**self._bound, **changed}
                self._results = None

    def results(self) -> dict[str, Any]:
        """Prepared values by the name of the param that takes each; runs when they are stale.

        Raises:
            RunError: a param has no value.
        """
        with self._lock:
            if self._results is None:
                missing = [n for n in self.params if n not in self._bound]
                if missing:
                    raise RunError(
                        f"prepare {self._graph.name}: every param must have a value; "
                        f"{', '.join(map(repr, missing))} has none. Set it with set_param."
                    )
                made = self._executable.fast_call()
                self._results = {f"{PREPARED}{i}": array for i, array in enumerate(made)}
            return self._results

    def clone(self) -> PrepareStage:
        """The same program with nothing bound."""
        return PrepareStage(self._graph, self._executable.clone())


@final
class StagedExecutable(AbstractExecutable):
    """The program of every run, with the stage that comes before it.

    ``bind`` only remembers; the next call (or ``refresh``) computes what is stale and binds all
    of it at once, so that a call sees all old or all new params.
    """

    def __init__(
        self, main: AbstractExecutable, params: Sequence[str], stage: PrepareStage
    ) -> None:
        """Put the two together; ``params`` are those that ``main`` takes."""
        self._main = main
        self._names = frozenset(params)
        self._stage = stage
        self._pending: dict[str, Any] = {}
        self._stale = True
        self._lock = threading.Lock()
        self.phases, self.decisions = main.phases, main.decisions
        self.fast_call = self._fresh(main.fast_call)

    def _fresh(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def staged(*args: Any, **kwargs: Any) -> Any:
            if self._stale:
                self.refresh()
            return call(*args, **kwargs)

        return staged

    def caller(self, signature: Signature) -> Callable[..., Any]:
        return self._fresh(self._main.caller(signature))

    def bind(self, params: Mapping[str, Any]) -> None:
        resident = {
            n: v for n, v in params.items() if n not in self._names and n not in self._stage.params
        }
        if resident:
            self._main.bind(resident)
        if len(resident) == len(params):
            return
        with self._lock:
            self._stage.bind(params)
            self._pending.update({n: v for n, v in params.items() if n in self._names})
            self._stale = True

    def refresh(self) -> None:
        """Compute what is stale.

        Raises:
            RunError: a param that the first stage reads has no value.
        """
        with self._lock:
            if self._stale:
                self._main.bind({**self._pending, **self._stage.results()})
                self._pending = {}
                self._stale = False

    def resident(self) -> dict[str, Any]:
        return self._main.resident()

    def clone(self) -> AbstractExecutable:
        return StagedExecutable(self._main.clone(), tuple(self._names), self._stage.clone())

    def stablehlo(self, *, kernels: bool = False) -> str:
        return self._main.stablehlo(kernels=kernels)

    def cost(self) -> dict[str, float]:
        return self._main.cost()

    def memory(self) -> dict[str, int]:
        return self._main.memory()
