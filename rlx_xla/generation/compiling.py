"""Programs of a language model that are compiled in a process of their own.

Compiling takes modules, traces and a heap that a process keeps: 30 MiB for a small model, a third
of its weights. A child takes them with it when it ends, and this process loads what was made as it
loads programs of the compile cache. The child is a fresh interpreter (nothing is forked), starts
with the settings of this one, and compiles nothing where its program would depend on anything else.
Where it cannot help, the program is compiled here, and the report says why.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, final

import jax
import jax.monitoring

from rlx_xla._jax_compat import client as jax_client
from rlx_xla.generation.program_child import CACHE, ORDER, REFUSED, Order, made_file
from rlx_xla.runtime.program_cache import ProgramCache

if TYPE_CHECKING:
    from rlx_xla.generation.programs import Programs
    from rlx_xla.generation.ready import ReadyProgram, ReadyPrograms

PAYS = (32 << 20, 1 << 30)
"""Bytes of weights, least and most, for which 30 MiB are worth the second that a child takes more.

The process without weights has five times 30 MiB already.
"""

SECONDS = 600.0
"""How long a child may take, in seconds, before its program is compiled here."""

TRACER = "rlx_xla.tracing.trace"
"""The module that traces; where it is loaded, much of what a child saves is spent already."""

_POLL = 0.004
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rlx_xla.generation.program_child import main; main(sys.argv[2])"
)
_PLAIN = (bool, int, float, str)


@final
class ProgramMaker:
    """Gets programs from a child, one child at a time.

    Attributes:
        made: key of a program → where it was compiled, and why there.
    """

    def __init__(self, device: str, wanted: bool | None) -> None:
        """Say where programs run.

        Args:
            device: a device name of ``rlx.Session``.
            wanted: compile in a child; None where that pays.
        """
        self.made: dict[Any, str] = {}
        self._device = device
        self._wanted = wanted
        self._child: _Child | None = None

    def program(
        self, programs: Programs, store: ReadyPrograms, name: str, keys: Sequence[Any]
    ) -> ReadyProgram | None:
        """The first of some programs as a child compiles it; None where this process has to.

        Args:
            programs: of a model.
            store: of the same.
            name: of the program.
            keys: of the program, and of those that will be asked for next: the child goes on with
                them meanwhile.
        """
        key = keys[0]
        why = self._problem(programs.weight_bytes) or store.problem()
        if why is None:
            began, found = time.perf_counter(), None
            try:
                child = self._child_for(programs, store, keys)
                why = child.wait(key)
                if why is None:
                    found = store.load(name, key, child.cache)
                    why = "what the child made does not load"
                if found is not None:
                    # Told here as other compiles are: nobody listens in the child.
                    seconds = store.adopt(key, child.cache)
                    jax.monitoring.record_event_duration_secs(
                        jax_client.BACKEND_COMPILE_EVENT, seconds
                    )
            except OSError as error:
                why = f"no child can be started: {error}"
            finally:
                if found is None:  # after an interrupt too
                    self.close()
            if found is not None:
                seconds = time.perf_counter() - began
                self.made[key] = f"compiled by a child process, {seconds:.1f} s"
                return found
        self.made[key] = f"compiled in this process: {why}"
        return None

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _problem(self, weights: int) -> str | None:
        if self._wanted is False:
            return "compile_in_child=False"
        if not self._device.startswith("cpu"):
            return f"{self._device} belongs to one process"
        if jax_client.backend_platforms() != ["cpu"]:
            return "a child could take an accelerator from this process"
        if not sys.executable or getattr(sys, "frozen", False):  # a bundle starts itself again
            return "this Python has no program file"
        if self._wanted is None and not PAYS[0] <= weights <= PAYS[1]:
            return f"a child does not pay for {weights / 2**20:,.1f} MiB of weights"
        if self._wanted is None and TRACER in sys.modules:
            return "it has loaded what traces"
        return None

    def _child_for(self, programs: Programs, store: ReadyPrograms, keys: Sequence[Any]) -> _Child:
        """The child that makes a program: the one that is there, or a new one."""
        if self._child is None or keys[0] not in self._child.numbers:
            self.close()
            parts = {key: store.parts(key) for key in keys}
            self._child = _Child(Order(programs.without_weights(), self._device, parts))
        return self._child


@final
class _Child:
    """A child that compiles some programs, one after the other.

    Attributes:
        numbers: of the programs, by their keys.
        cache: what it puts programs into.
    """

    def __init__(self, order: Order) -> None:
        """Start it.

        Raises:
            OSError: no process, or no folder, can be made.
        """
        self.numbers = {key: number for number, key in enumerate(order.parts)}
        self._folder = tempfile.TemporaryDirectory(prefix="rlx-programs-")
        self._place = Path(self._folder.name)
        self.cache = ProgramCache(self._place / CACHE)
        self._limit = time.monotonic() + SECONDS
        try:
            with (self._place / ORDER).open("wb") as file:
                pickle.dump(_settings(), file)
                pickle.dump(order, file)
            self._log: IO[bytes] = (self._place / "log").open("wb")
            with self._log:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _START, json.dumps(_search_path()), str(self._place)],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    cwd=self._place,
                )
        except OSError:
            self._folder.cleanup()
            raise
        # Also when nobody holds it any more, and when this process ends.
        self._finish = weakref.finalize(self, _finish, self._process, self._folder)

    def wait(self, key: Any) -> str | None:
        """Wait until a program is there; return why it will not be, or None."""
        made = made_file(self._place, self.numbers[key])
        while not made.exists():
            if self._process.poll() is not None:
                return None if made.exists() else self._end()
            if time.monotonic() > self._limit:
                return f"the child took more than {SECONDS:.0f} s"
            time.sleep(_POLL)
        return None

    def close(self) -> None:
        """End it, and delete what it left."""
        self._finish()

    def _end(self) -> str:
        """Why it ended."""
        if not self._finish.alive:
            return "another call of the model ended the child"
        refused = self._place / REFUSED
        if refused.exists():
            return f"a child was started, and {refused.read_text(encoding='utf-8')}"
        log = (self._place / "log").read_text(encoding="utf-8", errors="replace")
        last = "".join(log.strip().splitlines()[-1:])[:200]
        return f"the child ended with code {self._process.returncode}{': ' * bool(last)}{last}"


def _finish(process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    folder.cleanup()


def _search_path() -> list[str]:
    """Where modules are found, also from another working directory.

    What is no text finds nothing; what is no place, such as a name that an editable install hooks,
    stays as it is.
    """
    found = [place for place in sys.path if isinstance(place, str)]
    return [str(Path.cwd() / at) if not at or Path(at).exists() else at for at in found]


def _settings() -> dict[str, Any]:
    """JAX's settings that have plain values."""
    values: Mapping[str, Any] = jax.config.values
    return {name: v for name, v in values.items() if v is None or type(v) in _PLAIN}
