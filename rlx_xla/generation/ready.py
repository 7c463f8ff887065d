"""Programs of language models that load without being traced.

Beside each program of the compile cache lies what it takes to run it again: the program, its module
and the names of its arguments. It is found by everything that tracing it would look at: sizes,
types of weights, options, versions, the sources of this project, other packages' kernels, JAX's
settings, and the processor. Anything else is traced and looked up in the compile cache as before.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, final

import jax

import rlx
import rlx_xla.kernels
from rlx.compiled import CompiledGraph
from rlx.errors import CompileError
from rlx.options.compile import CompileOptions
from rlx_xla._jax_compat import client as jax_client
from rlx_xla.backend import XlaExecutable
from rlx_xla.kernels import ffi
from rlx_xla.kernels.calibration import described
from rlx_xla.kernels.select import all_kernels
from rlx_xla.runtime.cache import program_cache, target_parts
from rlx_xla.runtime.executable import LoadedExecutable
from rlx_xla.runtime.program_cache import ProgramKey

_TARGET = re.compile(r"@(rlx_\w+_cpu)\.([0-9a-f]+)\b")
_SOURCES = ("*.py", "*.cu", "*.so", "*.json")


@final
class ReadyProgram:
    """A program that runs without a graph.

    Attributes:
        params: names of its params, in the order of the model's.
        loaded: what runs.
    """

    def __init__(self, loaded: LoadedExecutable, params: Sequence[str]) -> None:
        """Hold a program whose params are not set yet."""
        self.loaded = loaded
        self.params = tuple(params)

    def arrays(self) -> dict[str, Any]:
        """Params on the device, by name."""
        names = self.loaded.argument_names
        return {names[i]: value for i, value in self.loaded.bound_buffers().items()}

    def __call__(self, *args: Any) -> Any:
        """Run with the arguments of a step; return its results, the caches as the last one."""
        leaves = jax.tree_util.tree_leaves(args)
        caches = jax.tree_util.tree_structure(args[-1])
        results = self.loaded.fast_call(*leaves)
        first = len(results) - caches.num_leaves
        return (*results[:first], jax.tree_util.tree_unflatten(caches, results[first:]))


@final
class ReadyPrograms:
    """Those of one model on one device."""

    def __init__(self, device: Any, model: str, options: CompileOptions) -> None:
        """Say what programs are of.

        Args:
            device: of JAX.
            model: text that tells apart what is traced: sizes, types of weights.
            options: of the compile.
        """
        self._device = device
        self._model = model
        self._options = options

    def load(self, name: str, key: tuple[int, int, int]) -> ReadyProgram | None:
        """The program of a key; None where there is none, or the cache is off."""
        kept = program_cache()
        if kept is None:
            return None
        where = self._key(key)
        found = kept.get(where)
        if found is None:
            return None
        size = int.from_bytes(found[:8], "little")
        try:
            head = json.loads(found[8 : 8 + size])
            return self._made(name, head, found[8 + size :])
        except (CompileError, ValueError, KeyError):
            kept.drop(where)  # of another machine, or not what it was
            return None

    def save(
        self,
        key: tuple[int, int, int],
        compiled: CompiledGraph,
        params: Sequence[str],
        donated: Collection[str],
    ) -> None:
        """Keep a program, where the cache is on and the program is nothing but itself.

        Args:
            key: batch, tokens, capacity.
            compiled: the program.
            params: its params in the order of the model's.
            donated: names of the inputs that a call consumes.
        """
        kept = program_cache()
        executable = compiled._latest("ready").executable
        if kept is None or not isinstance(executable, XlaExecutable):
            return
        loaded = executable.loaded
        names = loaded.argument_names
        inputs = [v.name for v in compiled.graph.inputs]
        plain = (
            [names[i] for i in loaded.unbound] == inputs
            and {names[i] for i in loaded.bound} == set(params)
            and not loaded.resident
            and not compiled.capabilities().staged
            and not compiled.signature.weak_outputs
            and all(compiled.signature.fed or ())
        )
        program = None if executable.cache_key is None else kept.get(executable.cache_key)
        if not plain or program is None:
            return
        head = json.dumps(
            {
                "module": loaded.stablehlo(),
                "names": list(names),
                "params": list(params),
                "donated": [i for i, name in enumerate(inputs) if name in donated],
            }
        ).encode()
        data = len(head).to_bytes(8, "little") + head + program
        name = f"{compiled.graph.name}, ready"
        kept.put(self._key(key), data, name, loaded.compile_seconds)

    def _made(self, name: str, head: Mapping[str, Any], program: bytes) -> ReadyProgram | None:
        library = ffi.load()
        for symbol, digest in set(_TARGET.findall(head["module"])):
            if isinstance(library, ffi.Unavailable) or not library.version.endswith(f"+{digest}"):
                return None
            library.target(symbol)  # registers it
        names, params = list(head["names"]), list(head["params"])
        loaded = LoadedExecutable(
            head["module"],
            device=self._device,
            name=name,
            argument_names=names,
            bound=range(len(names) - len(params), len(names)),
            donated=head["donated"],
            serialized=program,
        )
        return ReadyProgram(loaded, params)

    def _key(self, key: tuple[int, int, int]) -> ProgramKey:
        parts = {
            "ready": self._model,
            "sizes": str(key),
            "options": repr(self._options),
            "sources": _sources(),
            "kernels": ", ".join(kernel.name for kernel in all_kernels()),
            "packages": ", ".join(_packages()),
            "bounds": described(),
            "settings": jax_client.settings_digest(),
            "flags": jax_client.compile_options_digest(self._device, {}),
            **target_parts(self._device),
        }
        return ProgramKey(parts)


@functools.cache
def _sources() -> str:
    """Digest of names, sizes and times of the project's files, as Python looks at sources."""
    digest = hashlib.sha256(sys.version.encode())
    for package in (rlx, rlx_xla):
        for folder in map(Path, package.__path__):
            files = sorted(file for kind in _SOURCES for file in folder.rglob(kind))
            for file in files:
                seen = file.stat()
                line = f"{file.relative_to(folder)} {seen.st_size} {seen.st_mtime_ns}\n"
                digest.update(line.encode())
    return digest.hexdigest()


def _packages() -> list[str]:
    """Packages that bring kernels or backends, with their versions."""
    found: set[str] = set()
    for group in ("rlx_xla.kernels", "rlx.backends"):
        for point in entry_points(group=group):
            owner = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
            found.add(f"{owner}: {point.value}")
    return sorted(found)
