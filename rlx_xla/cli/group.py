"""What all commands share: how errors are shown, and the option ``--traceback``."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any, final

import typer
import typer.core

from rlx.errors import RlxError

TRACEBACK_KEY = "rlx_xla.cli.traceback"


def _remember_traceback(ctx: typer.Context, value: bool) -> bool:
    # ctx.meta is shared by the group and its commands, so the option works in both places.
    ctx.meta[TRACEBACK_KEY] = bool(value or ctx.meta.get(TRACEBACK_KEY))
    return value


Traceback = Annotated[
    bool,
    typer.Option(
        "--traceback",
        help="Show the Python traceback of an error instead of one line.",
        callback=_remember_traceback,
        show_default=False,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object and nothing else on stdout.", show_default=False
    ),
]
Device = Annotated[
    str, typer.Option("--device", help="Where to run: cpu, cuda, cuda:1, tpu, …", metavar="NAME")
]


@final
class CommandGroup(typer.core.TyperGroup):
    """A group whose commands end with one clear line on an error of RLX, exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; print an `RlxError` to stderr and exit with 1."""
        for stream in (sys.stdout, sys.stderr):
            # A text that the terminal's encoding lacks is shown escaped, not raised.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except RlxError as error:
            if ctx.meta.get(TRACEBACK_KEY):
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
