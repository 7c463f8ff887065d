"""Programs of language models that a child process compiles, and why one does not."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

from rlx_xla.generation import compiling  # noqa: E402  (after importorskip)
from rlx_xla.generation.model import LanguageModel  # noqa: E402
from rlx_xla.generation.program_child import ORDER, Order  # noqa: E402
from rlx_xla.generation.sampling import SamplingOptions  # noqa: E402
from rlx_xla.runtime.cache import disable_cache, enable_cache  # noqa: E402
from rlx_xla.runtime.program_cache import ProgramCache  # noqa: E402
from rlx_xla.tracing import trace as tracing  # noqa: E402
from tests.rlx_xla import tiny_gguf  # noqa: E402

PROMPT = "the sea the"


@pytest.fixture(autouse=True)
def two_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short prompts get a program too."""
    monkeypatch.setattr("rlx_xla.generation.model.STEPPED", 0)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[subprocess.Popen[bytes]]:
    """The processes that were started; their folders are made in an own one."""
    return _watched(monkeypatch, tmp_path)


def _watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[subprocess.Popen[bytes]]:
    found: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def started(*args: Any, **words: Any) -> subprocess.Popen[bytes]:
        found.append(start(*args, **words))
        return found[-1]

    (tmp_path / "folders").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "folders"))
    monkeypatch.setattr(compiling.subprocess, "Popen", started)
    return found


def python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """Let a shell's script stand for Python."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def said(model: LanguageModel) -> tuple[list[int], list[float], list[str]]:
    (found,) = model.generate(PROMPT, max_tokens=4)
    return found.tokens, found.logprobs, [*model._programs.where().values()]


def asked(model: LanguageModel) -> str:
    """What is said of the program of a step, which is not compiled in this process."""
    programs, key = model._programs, (1, 1, 128, None)
    programs._maker.program(programs, programs._store(), "llama", [key])
    return programs.where()[key[:3]]


def test_one_child_makes_all_programs(tmp_path: Path) -> None:
    """In a process where no other test has set or registered what a child could not know."""
    start = "import sys; from tests.rlx_xla import test_generation_child as t; t.alone(sys.argv[1])"
    subprocess.run([sys.executable, "-c", start, str(tmp_path)], check=True, timeout=300)


def alone(place: str) -> None:
    """What the test above runs."""
    tmp_path = Path(place)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    enable_cache(tmp_path / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlx_xla.generation.model.STEPPED", 0)
        _one_child(_watched(patch, tmp_path), tmp_path)


def _one_child(children: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", np.random.default_rng())

    def refused(*args: Any, **words: Any) -> Any:
        raise AssertionError(
            f"nothing is traced here; {[*models[0]._programs._maker.made.values()]}"
        )

    models: list[LanguageModel] = []
    compiles: list[float] = []

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event == compiling.jax_client.BACKEND_COMPILE_EVENT:
            compiles.append(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "trace", refused)
        jax.monitoring.register_event_duration_secs_listener(listen)
        models.append(model := LanguageModel(path, compile_in_child=True))
        tokens, logprobs, where = said(model)
        assert len(children) == 1
        assert children[0].returncode is not None
        assert len(compiles) == 2
        assert min(compiles) > 0
        assert [how.partition(",")[0] for how in where] == ["compiled by a child process"] * 2
        # The compile cache has them now, also for a model that asks for no child.
        again = LanguageModel(path, compile_in_child=False)
        assert said(again) == (tokens, logprobs, ["found in the compile cache"] * 2)
    assert [*(tmp_path / "folders").iterdir()] == []
    disable_cache()
    here = LanguageModel(path, compile_in_child=False)
    why = "compiled in this process: compile_in_child=False"
    assert said(here) == (tokens, logprobs, [why] * 2)
    assert f"1 × 16 tokens, 128 positions: {why}" in str(here.report()).splitlines()
    assert len(children) == 1


def test_a_child_with_other_settings_compiles_nothing(
    children: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng), compile_in_child=True)
    with jax.default_device(jax.devices()[0]):  # not a text that a child could be told
        where = asked(model)
    why = "a child was started, and its program would differ: settings"
    assert where == f"compiled in this process: {why}"
    assert len(children) == 1
    assert [*(tmp_path / "folders").iterdir()] == []


@pytest.mark.parametrize(
    ("body", "seconds", "why"),
    [
        ("echo first; echo no room >&2; exit 3", 600.0, "the child ended with code 3: no room"),
        ("exit 0", 600.0, "the child ended with code 0"),
        ("exec sleep 60", 0.0, "the child took more than 0 s"),
        ('touch "$4/0.made"', 600.0, "what the child made does not load"),
    ],
)
def test_a_child_that_fails_is_told(
    body: str,
    seconds: float,
    why: str,
    children: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "SECONDS", seconds)
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng), compile_in_child=True)
    python(monkeypatch, tmp_path, body)
    assert asked(model) == f"compiled in this process: {why}"
    (child,) = children
    assert child.returncode is not None
    assert [*(tmp_path / "folders").iterdir()] == []


def test_where_no_child_is_started(
    children: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng)

    def why(wanted: bool | None) -> str:
        model = LanguageModel(path, compile_in_child=wanted)
        with monkeypatch.context() as patch:
            patch.setattr(compiling, "_Child", _Refused)
            return asked(model).removeprefix("compiled in this process: ")

    size = LanguageModel(path).packed_bytes / 2**20
    assert why(None) == f"a child does not pay for {size:.1f} MiB of weights"
    assert why(True) == "no child can be started: [Errno 11] too many processes"
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "PAYS", (0, 1 << 30))
        assert why(None) == "it has loaded what traces"
        patch.delitem(sys.modules, compiling.TRACER)
        assert why(None) == "no child can be started: [Errno 11] too many processes"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "")
        assert why(True) == "this Python has no program file"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "frozen", True, raising=False)  # its program file is a program
        assert why(True) == "this Python has no program file"
    with monkeypatch.context() as patch:
        patch.setattr(compiling.jax_client, "backend_platforms", lambda: ["cuda", "cpu"])
        assert why(True) == "a child could take an accelerator from this process"
    with monkeypatch.context() as patch:
        patch.setattr("rlx_xla.generation.ready._sources", lambda: None)
        assert why(True) == "sources are newer than this process"
    monkeypatch.setenv("RLX_VERBOSE", "1")
    assert why(True) == "options ask for what only a compile shows"
    assert compiling.ProgramMaker("tpu", True)._problem(1 << 26) == "tpu belongs to one process"
    assert children == []


def test_a_stream_that_is_left_ends_the_child(
    children: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng), compile_in_child=True)
    monkeypatch.setattr(sys, "executable", _slow(tmp_path))
    stream = model.stream(PROMPT, max_tokens=4)
    next(stream)
    stream.close()
    (child,) = children
    assert child.returncode is not None
    assert [*(tmp_path / "folders").iterdir()] == []


@pytest.mark.parametrize("leave", ["interrupt", "forget"])
def test_no_child_outlives_its_maker(
    leave: str,
    children: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng), compile_in_child=True)
    python(monkeypatch, tmp_path, "exec sleep 60")

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compiling._Child, "wait", interrupt)
        if leave == "forget":
            patch.setattr(compiling.ProgramMaker, "close", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPT, max_tokens=4)
    (child,) = children
    if leave == "forget":
        assert child.returncode is None
        del model
        gc.collect()
    assert child.returncode is not None
    assert [*(tmp_path / "folders").iterdir()] == []


class _Refused:
    """A child for which there is no process."""

    def __init__(self, *args: Any) -> None:
        raise OSError(11, "too many processes")


def _slow(tmp_path: Path) -> str:
    """Python, which after the first program goes on for a minute."""
    script = tmp_path / "slow"
    script.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\nexec sleep 60\n')
    script.chmod(0o755)
    return str(script)


def test_a_child_finds_modules_where_this_process_does(
    children: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng), compile_in_child=True)
    python(monkeypatch, tmp_path, f'echo "$3" > {tmp_path}/told; exit 3')
    place = tmp_path / "place"
    (place / "near").mkdir(parents=True)
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", ["", "near", "__editable__.hooked", Path("/far"), "/far"])
    assert asked(model) == "compiled in this process: the child ended with code 3"
    told = json.loads((tmp_path / "told").read_text())
    assert told == [str(place), str(place / "near"), "__editable__.hooked", "/far"]
    assert len(children) == 1


def test_a_child_ends_with_a_prefill_that_is_interrupted(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng), compile_in_child=False)
    before = said(model)
    ended: list[bool] = []

    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model._programs, "step", interrupted)
        patch.setattr(model._programs, "end_child", lambda: ended.append(True))
        with pytest.raises(KeyboardInterrupt):
            said(model)
    assert ended == [True]
    assert said(model) == before


def test_a_child_that_another_call_ends_is_told(
    children: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng), compile_in_child=True)
    python(monkeypatch, tmp_path, "exec sleep 60")
    maker = model._programs._maker
    monkeypatch.setattr(compiling.time, "sleep", lambda seconds: maker._child and maker.close())
    why = "another call of the model ended the child"
    assert asked(model) == f"compiled in this process: {why}"
    assert children[0].returncode is not None


def test_a_cache_that_is_gone_gives_nothing(tmp_path: Path, rng: np.random.Generator) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng))
    gone = ProgramCache(tmp_path / "gone")
    assert model._programs._store().adopt((1, 1, 128, None), gone) == 0.0


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "jit is off": jax.disable_jit,
    "strict types": lambda: jax.numpy_dtype_promotion("strict"),
    "typed keys": lambda: jax.legacy_prng_key("error"),
    "other draws": lambda: jax.default_prng_impl("rbg"),
    "draws in one piece": lambda: jax.threefry_partitionable(False),
}


def test_what_jax_is_told_of_other_functions_is_nothing_to_a_model(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng)
    drawn = SamplingOptions(temperature=2.0, seed=int(rng.integers(1000)))

    def answer() -> Any:
        model = LanguageModel(path, compile_in_child=False)
        return model.generate("a", max_tokens=6, sampling=drawn)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlx_xla.generation.model.STEPPED", 1 << 31)  # one program
        wanted = answer()
        for name, setting in SETTINGS.items():
            with setting():
                assert answer() == wanted, name


def test_a_child_whose_parent_is_gone_leaves_nothing(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng), compile_in_child=True)
    place = tmp_path / "place"
    place.mkdir()
    parts = {(1, 1, 128, None): {"sizes": "never compared"}}
    with (place / ORDER).open("wb") as file:
        pickle.dump(compiling._settings(), file)
        pickle.dump(Order(model._programs.without_weights(), "cpu:0", parts), file)
    code = (
        "import os; ids = iter([2, 1, 1]); os.getppid = lambda: next(ids); "
        "from rlx_xla.generation.program_child import main; "
        f"main({str(place)!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert not place.exists()
