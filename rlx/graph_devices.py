"""One graph on several devices: compiled where it is used, with the same params everywhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from rlx.compiled import CompiledGraph
from rlx.devices import DevicePick, DevicePolicy, Program, candidates, pick_device
from rlx.errors import CompileError, DeviceError, KernelError, LoweringError
from rlx.options.compile import CompileOptions
from rlx.session import Session, TracedFunction

_FALLS_THROUGH = (DeviceError, LoweringError, KernelError, CompileError)
"""What makes a chain go on to the next device; a wrong input is wrong on every device."""


@final
class GraphDevices:
    """A graph that is compiled for a device when it first runs there.

    Attributes:
        policy: which devices may be used, in which order.
        failures: device → why it was left out of a chain, of the devices that failed.

    Example:
        >>> import rlx
        >>> b = rlx.GraphBuilder()
        >>> graph = b.build(-b.input("x", "f32[2]"))
        >>> policy = rlx.devices.DevicePolicy.only("interpret")
        >>> on = GraphDevices(graph, policy)
        >>> on.run({"x": [1.0, 2.0]})[0].tolist(), on.device
        ([-1.0, -2.0], 'interpret')
    """

    def __init__(
        self,
        graph: Program,
        policy: DevicePolicy | None = None,
        options: CompileOptions | None = None,
    ) -> None:
        """Hold a graph; nothing is compiled yet.

        Args:
            graph: what a session compiles.
            policy: which devices; None is what the environment says.
            options: options of every compile.
        """
        self.policy = DevicePolicy.from_env() if policy is None else policy
        self.failures: dict[str, str] = {}
        self._graph = graph
        self._options = CompileOptions() if options is None else options
        self._compiled: dict[str, CompiledGraph] = {}
        self._params: dict[str, Any] = {}
        self._pick: DevicePick | None = None
        self._lock = threading.RLock()
        if isinstance(graph, TracedFunction):
            self._params = {k: v for k, v in graph.params.items() if v is not None}

    @property
    def pick(self) -> DevicePick:
        """The device that was picked and why; picked at the first use, once.

        Raises:
            DeviceError: no device that the policy allows can run the graph.
        """
        with self._lock:
            if self._pick is None:
                self._pick = pick_device(self._graph, self.policy, self._options)
            return self._pick

    @property
    def device(self) -> str:
        """Name of the device that was picked."""
        return self.pick.device

    def devices(self) -> list[str]:
        """Devices that can run the graph, in the policy's order."""
        return candidates(self._graph, self.policy, self._options)[0]

    def on(self, device: str) -> CompiledGraph:
        """The graph compiled for a device, once; it has every param that was set.

        Raises:
            DeviceError, LoweringError, KernelError, CompileError: as ``Session.compile``.
        """
        session = Session(device)
        with self._lock:
            made = self._compiled.get(session.device)
            if made is None:
                made = session.compile(self._graph, options=self._options)
                if self._params:
                    made.set_params(self._params)
                self._compiled[session.device] = made
            return made

    def set_params(self, values: Mapping[str, Any]) -> None:
        """Bind params on every device, those compiled later included.

        Raises:
            RunError: as ``CompiledGraph.set_params``, from the first device that refuses.
        """
        with self._lock:
            for made in list(self._compiled.values()) or [self.on(self.device)]:
                made.set_params(values)
            self._params = {**self._params, **values}

    def run(
        self, inputs: Mapping[str, Any] | None = None, *, outputs: Sequence[int] | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """``CompiledGraph.run`` on the device that was picked."""
        return self.on(self.device).run(inputs, outputs=outputs)

    def run_on(
        self,
        device: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        outputs: Sequence[int] | None = None,
    ) -> list[np.ndarray[Any, Any]]:
        """``CompiledGraph.run`` on a device by name."""
        return self.on(device).run(inputs, outputs=outputs)

    def run_chain(
        self, inputs: Mapping[str, Any] | None = None, *, outputs: Sequence[int] | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """Run on the first device of the policy's order that compiles and runs the graph.

        A device that failed is in ``failures`` and is not tried again.

        Raises:
            DeviceError: every device failed; each with its reason.
            RunError: the inputs are wrong.
        """
        able, rejected = candidates(self._graph, self.policy, self._options)
        for device in able:
            if device in self.failures:
                continue
            try:
                return self.run_on(device, inputs, outputs=outputs)
            except _FALLS_THROUGH as error:
                self.failures[device] = str(error)
        reasons = "".join(f"\n  {d}: {why}" for d, why in {**rejected, **self.failures}.items())
        raise DeviceError(
            f"run_chain: a device that runs the graph is required; every one failed:{reasons}\n"
            "Allow another device, or change what the reasons name."
        )

    def warm_all(self) -> list[str]:
        """Compile for every device that can run the graph; return their names."""
        able = self.devices()
        for device in able:
            self.on(device)
        return able

    def benchmark(
        self, inputs: Mapping[str, Any] | None = None, *, repeats: int = 5
    ) -> dict[str, float]:
        """Seconds of one ``run`` on every device that can run the graph, the least of several.

        Args:
            inputs: what to run with.
            repeats: runs that are timed on each device, after one that is not.
        """
        found: dict[str, float] = {}
        for device in self.warm_all():
            made = self.on(device)
            made.run(inputs)
            taken: list[float] = []
            for _ in range(max(repeats, 1)):
                started = time.perf_counter()
                made.run(inputs)
                taken.append(time.perf_counter() - started)
            found[device] = min(taken)
        return found

    def report(self) -> str:
        """The pick, what is compiled, and what failed, as text."""
        lines = [str(self.pick)]
        lines += [f"compiled: {', '.join(self._compiled) or 'nothing'}"]
        lines += [f"failed: {device}: {why}" for device, why in self.failures.items()]
        return "\n".join(lines)
