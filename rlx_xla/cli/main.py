"""The app behind the command ``rlx-xla``."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Annotated

import typer

from rlx_xla.cli import bench, cache, chat, demo, doctor, embed, generate, preflight, report, trace
from rlx_xla.cli.group import CommandGroup, Traceback

DISTRIBUTIONS = ("rlx-xla", "jax", "jaxlib", "numpy")

app = typer.Typer(
    name="rlx-xla",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _print_version(value: bool) -> None:
    if not value:
        return
    parts = [f"{name} {_version(name)}" for name in DISTRIBUTIONS]
    typer.echo(f"{parts[0]} ({', '.join(parts[1:])}, python {platform.python_version()})")
    raise typer.Exit


EXIT_CODES = (
    "Exit codes: 0 all is well; 1 an error, or the answer is no (preflight: it does not compile or "
    "fit; doctor: something serious is wrong); 2 the command line is wrong; 130 interrupted."
)


@app.callback(epilog=f"Start with: rlx-xla demo\n\n{EXIT_CODES}")
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the versions of rlx-xla and of what it stands on.",
            callback=_print_version,
            is_eager=True,
            show_default=False,
        ),
    ] = False,
    traceback: Traceback = False,
) -> None:
    """Trace JAX functions into RLX graphs, compile them with XLA, and see every decision."""


app.command("demo")(demo.demo)
app.command("embed")(embed.embed)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("trace")(trace.trace)
app.command("report")(report.report)
app.command("preflight")(preflight.preflight)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
app.add_typer(cache.app, name="cache")
