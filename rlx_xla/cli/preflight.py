"""``rlx-xla preflight``: would a program fit and run on an accelerator that is not there?"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rlx_xla.cli.group import Json, Traceback
from rlx_xla.cli.program import Arguments, Params, Program, Sizes, Specs, given
from rlx_xla.cli.progress import Steps


def preflight(
    program: Program,
    targets: Annotated[
        list[str],
        typer.Option(
            "--target",
            "-t",
            help="What to compile for: tpu:v5e:2x2, v5litepod-8, cuda:h100, …; several in turn.",
            metavar="NAME",
            show_default=False,
        ),
    ],
    specs: Specs = None,
    arguments: Arguments = None,
    params: Params = None,
    sizes: Sizes = None,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds after which the target's compiler is stopped.", min=1.0),
    ] = 600.0,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Compile for accelerators that are not there: memory, time, what is not supported.

    Ends with 0 where the program compiles and fits on every target, and with 1 otherwise.

    Example: rlx-xla preflight model:apply --spec "f32[8, 64]" --target tpu:v5e:1x1
    """
    import rlx_xla
    from rlx_xla.aot import parse_target

    for name in targets:
        parse_target(name)  # a wrong name is refused before any compile
    found = given(program, specs, arguments, params, sizes)
    steps = Steps(quiet=as_json)
    reports = [
        steps.run(
            f"compile for {name}",
            lambda name=name: rlx_xla.preflight(
                found.program,
                *found.args,
                target=name,
                params=found.params,
                timeout=timeout,
                **found.kwargs,
            ),
        )
        for name in targets
    ]
    ok = all(report.ok for report in reports)
    if as_json:
        typer.echo(json.dumps({"ok": ok, "targets": [report.to_dict() for report in reports]}))
    else:
        typer.echo("\n\n".join(str(report) for report in reports))
    if not ok:
        raise typer.Exit(1)
