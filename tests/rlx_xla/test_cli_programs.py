"""Commands about a program of the user's: trace, report, preflight, bench; and doctor."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import rlx
import rlx_xla
from rlx.errors import DeviceError
from rlx_xla.cli.bench import _difference
from rlx_xla.cli.main import app

MODEL = """
import jax
import jax.numpy as jnp
import numpy as np

import rlx

CONSTANT = 3


def apply(x, w):
    return jax.nn.softmax(x @ w)


def masked(x, mask):
    return jnp.where(mask, x, 0)


def tree(params, x):
    return jnp.argmax(x @ params["w"], -1)


def example():
    return {"w": np.ones((16, 4), np.float32)}, np.ones((3, 16), np.float32)


def one():
    return np.ones(3, np.float32)


def interrupted(x):
    raise KeyboardInterrupt


def bad(x):
    return x + jnp.ones(7)


builder = rlx.GraphBuilder("built")
graph = builder.build(-builder.input("x", "f32[3]"))
open_graph = builder.build(-builder.input("y", "f32[n]"))
"""


class Outcome(NamedTuple):
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str


Runner = Callable[..., Outcome]


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Runner]:
    """A runner in a folder that has a module of the user's."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    name = f"model_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODEL)

    def run_app(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        with pytest.raises(SystemExit) as info:
            app([a.replace("model:", f"{name}:") for a in arguments], prog_name="rlx-xla")
        captured = capsys.readouterr()
        out, err = (text.replace(name, "model") for text in (captured.out, captured.err))
        assert isinstance(info.value.code, int)
        return Outcome(info.value.code, out, err)

    yield run_app
    sys.modules.pop(name, None)


APPLY = ("model:apply", "--spec", "f32[batch, 64]", "--spec", "f32[64, 10]")


@pytest.mark.parametrize("command", ["trace", "report", "preflight", "bench", "doctor"])
def test_every_command_has_help_json_and_traceback(run: Runner, command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    for option in ("--json", "--traceback"):
        assert option in result.stdout
    assert command in run("--help").stdout


@pytest.mark.parametrize(
    "command",
    ["trace", "report", "preflight", "bench", "doctor", "demo", "embed", "generate", "chat",
     "cache list", "cache clear", "cache diff"],
)  # fmt: skip
def test_every_command_shows_an_example(run: Runner, command: str) -> None:
    result = run(*command.split(), "--help")
    assert f"Example: rlx-xla {command}" in result.stdout or f"| rlx-xla {command}" in result.stdout


def test_inputs_have_one_default(run: Runner) -> None:
    shown = run("generate", "--help").stdout
    assert "(int8; exact on GPUs)" in shown
    assert "default: exact" not in shown


def test_exit_codes_are_said(run: Runner) -> None:
    shown = " ".join(run("--help").stdout.split())
    assert (
        "Exit codes: 0 all is well; 1 an error, or the answer is no (preflight: it does not "
        "compile or fit; doctor: something serious is wrong); 2 the command line is wrong; 130 "
        "interrupted." in shown
    )


def test_an_interrupt_ends_with_130(run: Runner) -> None:
    result = run("trace", "model:interrupted", "--spec", "f32[3]")
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr


def test_trace_prints_a_summary_and_the_coverage(run: Runner) -> None:
    result = run("trace", *APPLY)
    assert result.exit_code == 0
    assert "graph 'apply'" in result.stdout
    assert "f32[batch, 64]" in result.stdout
    assert "external" in result.stdout
    assert "trace: " in result.stderr


def test_trace_json_is_one_object(run: Runner) -> None:
    result = run("trace", "model:tree", "--args", "model:example", "-p", "0", "--graph", "--json")
    found = json.loads(result.stdout)
    assert [p["name"] for p in found["params"]] == ["params/w"]
    assert found["coverage"]["external"] == 0
    assert found["outputs"] == ["i32[3]"]
    assert rlx.same(rlx.parse(found["graph"]), rlx.parse(found["graph"]))
    assert result.stderr == ""


def test_trace_takes_names_and_graphs(run: Runner) -> None:
    named = run("trace", "model:masked", "-s", "f32[8]", "-s", "mask=bool[8]", "--graph")
    assert 'input %mask "mask": bool[8]' in named.stdout
    sized = run("trace", "model:open_graph", "--size", "n=5", "--json")
    assert json.loads(sized.stdout)["outputs"] == ["f32[5]"]
    built = run("trace", "model:graph", "--json")
    assert json.loads(built.stdout)["coverage"] is None


@pytest.mark.parametrize(
    ("suffix", "start"),
    [
        (".txt", 'graph "apply"'),
        (".html", "<!doctype html>"),
        (".dot", 'digraph "apply"'),
        (".json", '[{"label": "apply"'),
        (".mlir", "module @rlx_apply"),
    ],
)
def test_trace_writes_files_by_their_ending(
    run: Runner, tmp_path: Path, suffix: str, start: str
) -> None:
    path = tmp_path / f"g{suffix}"
    result = run("trace", *APPLY, "--size", "batch=8", "-o", str(path))
    assert result.exit_code == 0, result.stderr
    assert f"written: {path}" in result.stdout
    assert path.read_text(encoding="utf-8").startswith(start)


def test_trace_saves_what_load_reads(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "g.rlx"
    found = run("trace", *APPLY, "-o", str(path), "--json", "--graph")
    assert str(rlx.load(path)) == json.loads(found.stdout)["graph"]


def test_files_that_cannot_be(run: Runner, tmp_path: Path) -> None:
    result = run("trace", *APPLY, "-o", "g.png")
    assert result.exit_code == 2
    assert "a file that ends in one of .txt, .html, .dot, .svg, .json, .rlx" in result.stderr
    missing = tmp_path / "no" / "g.txt"
    refused = run("trace", *APPLY, "-o", str(missing))
    assert refused.exit_code == 1
    assert refused.stderr.splitlines()[-1].startswith(
        f"error: trace: a file that can be written is required; {missing} gives "
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["model"],
            "rlx-xla: a program is required as MODULE:NAME, such as model:apply; got 'model'.",
        ),
        (
            ["no_such_module:f"],
            "no_such_module:f: a module that can be imported is required; there is no "
            "'no_such_module' here or installed. Run the command in its folder.",
        ),
        (
            ["some/model.py:f"],
            "some/model.py:f: the name of a module is required; got a file's. Write model:f, in "
            "the folder of the file.",
        ),
        (
            ["model:apply"],
            "model:apply: a --spec for each argument is required, as it is (x, w); missing a "
            "required argument: 'x'. Give them in order, as NAME=TYPE, or together with --args.",
        ),
        (
            ["model:bad", "-s", "f32[b]", "-s", "f32[3]", "--size", "b=3"],
            "model:bad: a --spec for each argument is required, as it is (x); too many positional "
            "arguments. Give them in order, as NAME=TYPE, or together with --args.",
        ),
        (["model:aply"], "model:aply: model has no 'aply'. Did you mean 'apply'?"),
        (
            ["model:CONSTANT"],
            "model:CONSTANT: a JAX function, a Graph or a Traced is required; got int. Name "
            "another.",
        ),
        (
            ["model:graph", "-s", "f32[3]"],
            "model:graph: arguments are for functions; this is a Graph. Leave --spec and --args "
            "out.",
        ),
        (
            ["model:apply", "-s", "f32[3]", "--args", "model:example"],
            "rlx-xla: --args or --spec is required; got both. Leave one out.",
        ),
        (
            ["model:apply", "--args", "model:one"],
            "--args model:one: a tuple of arguments is required; got ndarray. Write (x,) for one.",
        ),
        (
            ["model:apply", "-s", "f33[3]"],
            "--spec 'f33[3]': type: 'f33' is not a dtype in 'f33[3]'. Did you mean 'f32'?",
        ),
        (
            ["model:apply", "-s", "f32[b]", "--size", "b"],
            "--size: NAME=N is required, such as batch=8; got 'b'.",
        ),
        (
            ["model:apply", "-s", "f32[batch]", "--size", "bach=3"],
            "--size bach=3: a symbol of the program is required (batch); got 'bach'. Did you mean "
            "'batch'?",
        ),
        (
            ["model:graph", "--size", "b=3"],
            "--size b=3: a symbol of the program is required (it has none); got 'b'.",
        ),
    ],
)
def test_what_is_refused(run: Runner, arguments: list[str], message: str) -> None:
    result = run("trace", *arguments)
    assert result.exit_code == 1
    assert result.stderr == f"error: {message}\n"
    assert result.stdout == ""


def test_a_module_that_misses_another_one_says_so(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text("import missing_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="missing_dependency"):
        app(["trace", "half:f"], prog_name="rlx-xla")


def test_the_users_own_errors_keep_their_traceback(run: Runner) -> None:
    name = next(path.stem for path in Path.cwd().glob("model_*.py"))
    with pytest.raises(TypeError, match="incompatible shapes"):
        app(["trace", f"{name}:bad", "-s", "f32[3]"], prog_name="rlx-xla")


def test_report(run: Runner) -> None:
    text = run("report", *APPLY, "--size", "batch=8")
    assert text.exit_code == 0, text.stderr
    assert text.stdout.startswith("apply on cpu\n")
    assert "implementations" in text.stdout
    found = run("report", *APPLY, "--size", "batch=8", "--json", "--validate")
    assert json.loads(found.stdout)["device"] == "cpu"
    assert found.stderr == ""


def test_report_needs_sizes(run: Runner) -> None:
    result = run("report", *APPLY)
    assert result.exit_code == 2
    assert "sizes are required for batch; give, for instance, --size batch=8." in result.stderr


def test_report_on_a_device_that_is_not_there(run: Runner) -> None:
    result = run("report", *APPLY, "--size", "batch=8", "--device", "metal")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: device Metal")


def test_preflight_needs_sizes(run: Runner) -> None:
    result = run("preflight", *APPLY, "-t", "tpu:v5e:1x1")
    assert result.exit_code == 2
    assert "sizes are required for batch; give, for instance, --size batch=8." in result.stderr
    assert "dim_binding" not in result.stderr


class _Report:
    """What preflight returns, as far as the command looks."""

    def __init__(self, target: str, *, ok: bool) -> None:
        self.target, self.ok = target, ok

    def to_dict(self) -> dict[str, Any]:
        return {"target": self.target, "ok": self.ok}

    def __str__(self) -> str:
        return f"on {self.target}: {self.ok}"


def test_preflight_asks_for_each_target(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def preflight(fn: Any, *args: Any, target: str, **options: Any) -> _Report:
        asked.append((fn.__name__, args, target, options))
        return _Report(target, ok="v5e" in target)

    monkeypatch.setattr(rlx_xla, "preflight", preflight)
    good = run("preflight", *APPLY, "--size", "batch=8", "-t", "tpu:v5e:1x1", "--timeout", "9")
    assert good.exit_code == 0
    assert good.stdout == "on tpu:v5e:1x1: True\n"
    assert asked == [
        ("apply", ("f32[8, 64]", "f32[64, 10]"), "tpu:v5e:1x1", {"params": (), "timeout": 9.0})
    ]
    both = run("preflight", *APPLY, "-t", "v5e-1", "-t", "cuda:h100", "--json")
    assert both.exit_code == 1
    assert json.loads(both.stdout) == {
        "ok": False,
        "targets": [{"target": "v5e-1", "ok": True}, {"target": "cuda:h100", "ok": False}],
    }


def test_an_answer_is_kept_where_another_compiler_is_missing(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preflight(fn: Any, *args: Any, target: str, **options: Any) -> _Report:
        if "cuda" in target:
            raise DeviceError("target 'cuda:h100': the compiler for cuda is required")
        return _Report(target, ok=True)

    monkeypatch.setattr(rlx_xla, "preflight", preflight)
    absent = "target 'cuda:h100': the compiler for cuda is required"
    text = run("preflight", *APPLY, "-t", "cuda:h100", "-t", "v5e-1")
    assert text.exit_code == 1
    assert text.stdout == f"on v5e-1: True\n\n{absent}\n"
    machine = run("preflight", *APPLY, "-t", "v5e-1", "-t", "cuda:h100", "--json")
    assert machine.exit_code == 1
    assert json.loads(machine.stdout)["targets"] == [
        {"target": "v5e-1", "ok": True},
        {"target": "cuda:h100", "ok": False, "error": absent},
    ]
    alone = run("preflight", *APPLY, "-t", "cuda:h100")
    assert alone.exit_code == 1
    assert alone.stderr.startswith(f"error: {absent}")


def test_preflight_refuses_an_unknown_target_first(run: Runner) -> None:
    result = run("preflight", "no_such_module:f", "-t", "tpu:v99")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: target 'tpu:v99' is unknown")
    assert run("preflight", *APPLY).exit_code == 2


def test_bench_compares_with_jax_jit(run: Runner) -> None:
    text = run("bench", *APPLY, "--rounds", "3")
    assert text.exit_code == 0, text.stderr
    assert "with jax.jit (median of 3)" in text.stdout
    assert "two copies of jax.jit" in text.stdout
    ready = ("model:tree", "--args", "model:example", "-p", "0")
    found = json.loads(run("bench", *ready, "--rounds", "2", "--json").stdout)
    assert found["largest_difference"] == 0
    assert found["timing"]["rounds"] == 2
    assert set(found["seconds"]) == {
        "trace", "compile", "first call", "compile jax.jit", "measure",
    }  # fmt: skip


def test_bench_needs_a_function(run: Runner) -> None:
    result = run("bench", "model:graph")
    assert result.exit_code == 1
    assert result.stderr.endswith(
        "bench model:graph: a JAX function is required, to compare with jax.jit; got Graph. Name "
        "the function.\n"
    )


def test_differences_of_special_values() -> None:
    a = np.float32([np.nan, np.inf, -0.0, 1.0])
    assert _difference(a, a.copy()) == 0
    assert _difference(a, np.float32([np.nan, np.inf, 0.0, 1.5])) == 0.5
    assert np.isnan(_difference(a, np.float32([0, 0, 0, 0])))
    assert _difference(np.bool_([True]), np.bool_([False])) == 1


def test_doctor(run: Runner) -> None:
    result = run("doctor", "--no-probe")
    assert "jaxlib" in result.stdout
    found = run("doctor", "--json")
    data = json.loads(found.stdout)
    assert found.exit_code == (0 if data["ok"] else 1)
    assert data["versions"]["Python"]


def test_doctor_ends_with_1_where_something_is_wrong(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    module = sys.modules["rlx_xla.doctor"]
    healthy = rlx_xla.doctor()
    ill = dataclasses.replace(healthy, findings=(module.Finding("It is broken.", "Mend [it]."),))
    monkeypatch.setattr(rlx_xla, "doctor", lambda probe: ill)
    result = run("doctor")
    assert result.exit_code == 1
    assert "! It is broken.\n    Mend [it]." in result.stdout


def test_traceback_lets_errors_through(run: Runner) -> None:
    with pytest.raises(DeviceError):
        app(["preflight", "a:b", "-t", "tpu:v99", "--traceback"], prog_name="rlx-xla")
