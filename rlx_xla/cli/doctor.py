"""``rlx-xla doctor``: what is installed and attached, and what is wrong."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlx_xla.cli.group import Json, Traceback
from rlx_xla.cli.progress import Steps


def doctor(
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Start the devices, in a child process.")
    ] = True,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Show versions, devices, who holds them and what is wrong, with the line that mends it.

    Ends with 0 where nothing serious is wrong, and with 1 otherwise.

    Example: rlx-xla doctor

    Example: rlx-xla doctor --no-probe --json
    """
    import rlx_xla

    steps = Steps(quiet=True)
    found = steps.run("looking at devices", lambda: rlx_xla.doctor(probe=probe))
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for name, text in found.rows():
            table.add_row(Text(name), Text(text))
        console = Console(highlight=False)
        console.print(table)
        console.print()
        if not found.findings:
            console.print("nothing is wrong")
        for finding in found.findings:
            sign, style = ("!", "bold red") if finding.serious else ("-", "yellow")
            console.print(Text(f"{sign} {finding.what}", style=style), soft_wrap=True)
            console.print(Text(f"    {finding.fix}"), soft_wrap=True)
    if not found.ok:
        raise typer.Exit(1)
