"""Programs of language models that load without being traced, and what makes them be traced."""

from __future__ import annotations

import json
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

import rlx  # noqa: E402  (after importorskip)
from rlx.errors import CompileError  # noqa: E402
from rlx.ops import Add  # noqa: E402
from rlx_xla._jax_compat import client as jax_client  # noqa: E402
from rlx_xla.generation import ready  # noqa: E402
from rlx_xla.generation.model import LanguageModel  # noqa: E402
from rlx_xla.kernels import select  # noqa: E402
from rlx_xla.kernels.calibration import all_bounds, bounds  # noqa: E402
from rlx_xla.kernels.calibration.store import Calibration  # noqa: E402
from rlx_xla.kernels.select import all_kernels, register_kernel  # noqa: E402
from rlx_xla.lowering import registry as lowering_rules  # noqa: E402
from rlx_xla.runtime.cache import (  # noqa: E402
    clear_cache,
    disable_cache,
    enable_cache,
    program_cache,
)
from rlx_xla.runtime.program_cache import ProgramKey  # noqa: E402
from rlx_xla.tracing import jax_registry as jax_rules  # noqa: E402
from rlx_xla.tracing import registry as tracing_rules  # noqa: E402
from rlx_xla.tracing import trace as tracing  # noqa: E402
from tests.rlx_xla import tiny_gguf  # noqa: E402

PROMPT = "the sea the"


@pytest.fixture(autouse=True)
def two_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short prompts get a program too."""
    monkeypatch.setattr("rlx_xla.generation.model.STEPPED", 0)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    before = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    enable_cache(tmp_path / "cache")
    yield tmp_path / "cache"
    disable_cache()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens a call of each program that is traced."""
    found: list[int] = []
    trace = tracing.trace

    def counted(function: Any, *args: Any, **words: Any) -> Any:
        found.append(args[1].shape[1])
        return trace(function, *args, **words)

    monkeypatch.setattr(tracing, "trace", counted)
    return found


def said(path: Path, **words: Any) -> tuple[list[int], list[float]]:
    (found,) = LanguageModel(path, **words).generate(PROMPT, max_tokens=4)
    return found.tokens, found.logprobs


@pytest.mark.parametrize("layers", [pytest.param(2, marks=pytest.mark.slow), 5])
def test_a_second_model_traces_nothing(
    layers: int, cache: Path, traced: list[int], tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng, layers=layers)
    first = said(path)
    assert traced == [16, 1]
    model = LanguageModel(path)
    (found,) = model.generate(PROMPT, max_tokens=4)
    assert (found.tokens, found.logprobs) == first
    assert traced == [16, 1]
    # Graphs are made when somebody asks for them, over the same arrays.
    compiled = model.programs()
    assert [*compiled] == [(1, 16, 128), (1, 1, 128)]
    assert sorted(traced) == [1, 1, 16, 16]
    assert model.report().weight_bytes == model.packed_bytes
    values = [c.params() for c in compiled.values()]
    assert all(values[0][name] is values[1][name] for name in values[0])
    (found,) = model.generate(PROMPT, max_tokens=4)
    assert (found.tokens, found.logprobs) == first
    # Weights of the same types in another file need no other program.
    other = tiny_gguf.write(tmp_path / "o.gguf", rng, layers=layers)
    traced.clear()
    told = said(other)
    assert traced == []
    disable_cache()
    assert said(other) == told


def test_whatever_a_program_depends_on_makes_it_be_traced(
    cache: Path,
    traced: list[int],
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng)
    model = LanguageModel(path)
    store = model._programs._store()
    parts = dict(store._key((1, 16, 128)).parts)
    assert dict(LanguageModel(path)._programs._store()._key((1, 16, 128)).parts) == parts

    def changed() -> set[str]:
        now = LanguageModel(path)._programs._store()._key((1, 16, 128)).parts
        assert now.keys() == parts.keys()
        return {name for name in parts if now[name] != parts[name]}

    with jax.default_matmul_precision("highest"):
        assert changed() == {"settings"}
    with jax.default_prng_impl("rbg"):
        assert changed() == {"settings"}
    with monkeypatch.context() as patch:
        patch.setattr(ready, "_sources", lambda: "other")
        assert changed() == {"sources"}
    with monkeypatch.context() as patch:
        patch.setattr(select, "_KERNELS", {k.name: k for k in all_kernels()})
        patch.setattr(select, "_BY_OP", {})
        patch.setattr(select, "_OTHERS", set())
        assert changed() == set()
        register_kernel(replace(all_kernels()[0], name="of.others"))  # all parts are ours
        assert changed() == {"kernels"}
    with monkeypatch.context() as patch:
        patch.setattr(ready, "_packages", lambda: ["kernels 1.0"])
        assert changed() == {"packages"}
    with monkeypatch.context() as patch:
        # Measured again, with other results: the file and the number of bounds are the same.
        bound = all_bounds()[0]
        for size in (bound.value + 1, bound.value + 2):
            patch.setattr(bounds, "_read", Calibration({bound.name: size}))
            assert changed() == {"bounds"}
            parts["bounds"] = store._key((1, 16, 128)).parts["bounds"]
    parts["bounds"] = store._key((1, 16, 128)).parts["bounds"]
    with monkeypatch.context() as patch:
        patch.setattr(jax_client, "compile_options_digest", lambda *args: "other")
        assert changed() == {"flags"}
    keys = {json.dumps(dict(store._key((1, n, 128)).parts)) for n in (1, 16, 64)}
    assert len(keys) == 3
    for words in ({"inputs": "exact"}, {"weights": "q8_0"}):
        other = dict(LanguageModel(path, **words)._programs._store()._key((1, 16, 128)).parts)
        # These weights are packed in the file, which `weights` leaves as it is.
        assert (other["ready"] != parts["ready"]) is ("inputs" in words)
    wider = tiny_gguf.write(tmp_path / "w.gguf", rng, changes={"rope.freq_base": 20_000.0})
    assert LanguageModel(wider)._programs._store()._key((1, 16, 128)).parts != parts


def test_where_a_program_could_differ_from_what_lies_there_it_is_traced(
    cache: Path, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng)

    def is_kept() -> bool:
        return LanguageModel(path)._programs._store()._cache() is not None

    monkeypatch.setattr(ready, "_sources", lambda: "digest")
    assert is_kept()
    # What only a compile shows.
    for name in ("RLX_VERBOSE", "RLX_FUSION_REPORT", "RLX_DISPATCH_REPORT", "RLX_IR_DUMP"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert not is_kept()
    # Kernels and rules of others, whose sources no key knows of.
    first = all_kernels()[0]
    check = types.FunctionType(said.__code__, {"__name__": "others.kernels"})
    with monkeypatch.context() as patch:
        for other in (check, "".join):  # one without a module too
            patch.setattr(ready, "other_kernels", lambda other=other: [replace(first, check=other)])
            assert not is_kept()
        patch.setattr(ready, "other_kernels", lambda: [first])
        assert is_kept()
    tables: list[tuple[Any, Any]] = [
        (lowering_rules._RULES, (Add, "cpu")),
        (tracing_rules._RULES, "add"),
        (jax_rules._RULES, Add),
    ]
    for table, entry in tables:
        with monkeypatch.context() as patch:
            patch.setitem(table, entry, check)
            assert not is_kept()
    assert is_kept()


def test_settings_are_the_same_whatever_of_jax_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    context = jax_client._config.trace_context()
    found: list[str] = []
    for added in ((), (None, False), (None, False, True)):
        monkeypatch.setattr(jax_client._config, "trace_context", lambda more=added: context + more)
        found.append(jax_client.settings_digest())
    assert found[0] == found[1] != found[2]


def test_sources_that_change_while_they_run_give_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = ready._sources.__wrapped__
    monkeypatch.setattr(ready, "_IMPORTED", time.time_ns())
    assert sources() is not None
    newest = max(
        max(file.stat().st_mtime_ns, file.stat().st_ctime_ns)
        for file in Path(ready.__file__).parent.glob("*.py")
    )
    monkeypatch.setattr(ready, "_IMPORTED", newest - 1)
    assert sources() is None


@pytest.mark.parametrize("head", ["[]", "3", '{"module": 3}', '{"module": "module {}"}', "{"])
def test_a_damaged_entry_is_dropped(
    head: str, cache: Path, tmp_path: Path, rng: np.random.Generator
) -> None:
    store = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng))._programs._store()
    kept, key = program_cache(), (1, 16, 128)
    assert kept is not None
    data = len(head).to_bytes(8, "little") + head.encode()
    kept.put(store._key(key), data, "llama, ready", 1.0)
    assert store.load("llama", key) is None
    assert kept.entries() == []


@pytest.mark.slow
def test_an_entry_that_does_not_load_is_dropped(
    cache: Path,
    traced: list[int],
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng)
    first = said(path)
    kept = program_cache()
    assert kept is not None
    entries = [e for e in kept.entries() if "ready" in e.parts]
    assert sorted(e.name for e in entries) == ["llama, ready", "llama, ready"]
    with monkeypatch.context() as patch:

        def refuse(*args: Any) -> Any:
            raise CompileError("of another machine")

        patch.setattr(jax_client, "deserialize_executable", refuse)
        traced.clear()
        assert said(path) == first
    assert traced == [16, 1]
    assert [e for e in kept.entries() if "ready" in e.parts] == []
    # What JAX's own cache gave cannot be serialised again, so nothing is; it still runs.
    assert kept.entries() == []
    assert said(path) == first
    # They are written where they are compiled again.
    clear_cache()
    assert said(path) == first
    traced.clear()
    assert said(path) == first
    assert traced == []


@pytest.mark.slow
def test_programs_of_the_compile_cache_get_an_entry(
    cache: Path, traced: list[int], tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng)
    first = said(path)
    kept = program_cache()
    assert kept is not None
    for entry in kept.entries():
        if "ready" in entry.parts:
            kept.drop(ProgramKey(entry.parts))
    traced.clear()
    assert said(path) == first  # traced, and loaded from the compile cache
    assert traced == [16, 1]
    assert said(path) == first
    assert traced == [16, 1]


def test_without_the_cache_nothing_is_kept(
    traced: list[int], tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng)
    if program_cache() is not None:
        pytest.skip("the compile cache is on")
    store = LanguageModel(path)._programs._store()
    assert store.load("llama", (1, 16, 128)) is None


def test_what_the_cache_of_jax_gives_is_not_serialised(cache: Path) -> None:
    builder = rlx.GraphBuilder("waves")
    x = builder.input("x", "f32[64]")
    graph = builder.build(x.tanh() * x.sum())
    values = np.linspace(-1, 1, 64, dtype=np.float32)
    kept = program_cache()
    assert kept is not None
    found: list[Any] = []
    for entries in (1, 0, 0):
        jax.clear_caches()
        (result,) = rlx.Session("cpu").compile(graph).run({"x": values})
        found.append(result)
        assert len(kept.entries()) == entries
        kept.clear()
    np.testing.assert_array_equal(found, found[:1] * 3)
