"""Programs of language models that load without being traced.

Beside each program of the compile cache lies what it takes to run it again: the program, its module
and the names of its arguments. It is found by everything that tracing it would look at: sizes,
types of weights, options, versions, the sources of this project, JAX's settings, the sizes that
kernels are taken from, and the processor. Anything else is traced and looked up in the compile
cache as before, and so is everything while other packages bring kernels or rules, while sources are
newer than this process, and while somebody asks for what only a compile shows.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import re
import sys
import time
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
from rlx_xla.kernels.calibration import measured
from rlx_xla.kernels.select import other_kernels
from rlx_xla.lowering import registry as lowering_rules
from rlx_xla.runtime.cache import program_cache, target_parts
from rlx_xla.runtime.executable import LoadedExecutable
from rlx_xla.runtime.program_cache import ProgramCache, ProgramKey
from rlx_xla.tracing import jax_registry as jax_rules
from rlx_xla.tracing import registry as tracing_rules

_TARGET = re.compile(r"@(rlx_\w+_cpu)\.([0-9a-f]+)\b")
_SOURCES = ("*.py", "*.cu", "*.so", "*.json")
_OWN = ("rlx", "rlx_xla")
_IMPORTED = time.time_ns()


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

    def load(
        self, name: str, key: tuple[Any, ...], kept: ProgramCache | None = None
    ) -> ReadyProgram | None:
        """The program of a key; None where there is none, or the cache is off.

        Args:
            name: of the program.
            key: sizes and what else tells programs of a model apart.
            kept: where it lies; in the compile cache if left out.
        """
        kept = self._cache() if kept is None else kept
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
        except (CompileError, ValueError, KeyError, TypeError):
            kept.drop(where)  # of another machine, or not what it was
            return None

    def save(
        self,
        key: tuple[Any, ...],
        compiled: CompiledGraph,
        params: Sequence[str],
        donated: Collection[str],
        into: ProgramCache | None = None,
    ) -> bool:
        """Keep a program, where the cache is on and the program is nothing but itself.

        Args:
            key: sizes and what else tells programs of a model apart.
            compiled: the program.
            params: its params in the order of the model's.
            donated: names of the inputs that a call consumes.
            into: where it is kept; in the compile cache if left out.

        Returns:
            Whether it is kept.
        """
        kept = self._cache() if into is None else into
        executable = compiled._latest("ready").executable
        if kept is None or not isinstance(executable, XlaExecutable):
            return False
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
        program = None if into is None or not loaded.is_fresh else loaded.serialize()
        cache = program_cache()
        if program is None and cache is not None and executable.cache_key is not None:
            program = cache.get(executable.cache_key)
        if not plain or program is None:
            return False
        arguments, results = loaded.argument_types, loaded.result_types
        head = json.dumps(
            {
                "module": base64.b64encode(loaded.bytecode).decode(),
                "targets": sorted(set(_TARGET.findall(loaded.stablehlo()))),
                "types": [[(t.dtype.name, t.shape) for t in side] for side in (arguments, results)],
                "names": list(names),
                "params": list(params),
                "donated": [i for i, name in enumerate(inputs) if name in donated],
            }
        ).encode()
        data = len(head).to_bytes(8, "little") + head + program
        name = f"{compiled.graph.name}, ready"
        kept.put(self._key(key), data, name, loaded.compile_seconds)
        return True

    def _made(self, name: str, head: Mapping[str, Any], program: bytes) -> ReadyProgram | None:
        library = ffi.load()
        for symbol, digest in head["targets"]:
            if isinstance(library, ffi.Unavailable) or not library.version.endswith(f"+{digest}"):
                return None
            library.target(symbol)  # registers it
        names, params = list(head["names"]), list(head["params"])
        loaded = LoadedExecutable(
            base64.b64decode(head["module"], validate=True),
            *([(dtype, shape) for dtype, shape in side] for side in head["types"]),
            device=self._device,
            name=name,
            argument_names=names,
            bound=range(len(names) - len(params), len(names)),
            donated=head["donated"],
            serialized=program,
        )
        return ReadyProgram(loaded, params)

    def parts(self, key: tuple[Any, ...]) -> Mapping[str, str]:
        """What a program depends on."""
        return self._key(key).parts

    def adopt(self, key: tuple[Any, ...], source: ProgramCache) -> float:
        """Take a program of another cache into the compile cache, where that is on.

        Returns:
            What its compile took, in seconds; 0 where it is gone, as another thread's call ended.
        """
        kept, where = self._cache(), self._key(key)
        entry = next((one for one in source.entries() if one.key == where.digest), None)
        if entry is None:
            return 0.0
        data = None if kept is None else source.get(where)
        if kept is not None and data is not None:
            kept.put(where, data, entry.name, entry.seconds)
        return entry.seconds

    def problem(self) -> str | None:
        """Why a program that is found could differ from one that is compiled here, or None."""
        options = self._options
        shown = (
            options.verbose,
            options.fusion_report,
            options.dispatch_report,
            options.ir_dump is not None,
        )
        if any(shown):
            return "options ask for what only a compile shows"
        if not _all_ours():
            return "other packages bring rules or kernels"
        return "sources are newer than this process" if _sources() is None else None

    def _cache(self) -> ProgramCache | None:
        """Where programs are kept; None where one that is found could differ from one compiled."""
        return None if self.problem() is not None else program_cache()

    def _key(self, key: tuple[Any, ...]) -> ProgramKey:
        parts = {
            "ready": self._model,
            "sizes": str(key),
            "options": repr(self._options),
            "sources": str(_sources()),
            "kernels": ", ".join(kernel.name for kernel in other_kernels()),
            "packages": ", ".join(_packages()),
            "bounds": ", ".join(f"{name} {size}" for name, size in sorted(measured().items())),
            "settings": jax_client.settings_digest(),
            "flags": jax_client.compile_options_digest(self._device, {}),
            **target_parts(self._device),
        }
        return ProgramKey(parts)


@functools.cache
def _sources() -> str | None:
    """Digest of names, sizes and times of the project's files, as Python looks at sources.

    None where one was written after this process had read it: what runs is not what lies there.
    """
    digest = hashlib.sha256(sys.version.encode())
    for package in (rlx, rlx_xla):
        for folder in map(Path, package.__path__):
            files = sorted(file for kind in _SOURCES for file in folder.rglob(kind))
            for file in files:
                seen = file.stat()
                if max(seen.st_mtime_ns, seen.st_ctime_ns) > _IMPORTED:
                    return None
                line = f"{file.relative_to(folder)} {seen.st_size} {seen.st_mtime_ns}\n"
                digest.update(line.encode())
    return digest.hexdigest()


def _all_ours() -> bool:
    """Whether all that an op of this project becomes is of its sources, which the key tells apart.

    Ops of other packages are in no model; what they become is no matter. What is not imported yet
    is of this project, or brought by an entry point.
    """
    found: list[Any] = [*tracing_rules._RULES.values()]
    found += [rule for (op, _), rule in lowering_rules._RULES.items() if _is_ours(op)]
    found += [rule for op, rule in jax_rules._RULES.items() if _is_ours(op)]
    for kernel in other_kernels():
        parts = (getattr(kernel, field.name) for field in dataclasses.fields(kernel))
        if _is_ours(kernel.op):
            found += [type(kernel), *(part for part in parts if callable(part))]
    return all(map(_is_ours, found))


def _is_ours(made: Any) -> bool:
    """Whether a class or a function is of this project."""
    function = made.func if isinstance(made, functools.partial) else made
    return str(function.__module__).partition(".")[0] in _OWN


def _packages() -> list[str]:
    """Packages that bring kernels or backends, with their versions."""
    found: set[str] = set()
    for group in ("rlx_xla.kernels", "rlx.backends"):
        for point in entry_points(group=group):
            owner = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
            found.add(f"{owner}: {point.value}")
    return sorted(found)
