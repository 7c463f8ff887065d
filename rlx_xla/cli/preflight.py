"""``rlx-xla preflight``: would a program fit and run on an accelerator that is not there?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from rlx.errors import DeviceError, DimError
from rlx_xla.cli.group import Json, Traceback
from rlx_xla.cli.program import Arguments, Params, Program, Sizes, Specs, given, sizes_required
from rlx_xla.cli.progress import Steps

if TYPE_CHECKING:
    from rlx_xla.aot import Preflight


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

    Ends with 0 where the program compiles and fits on every target, and with 1 otherwise. Of
    several targets, one whose compiler is not installed is named after the others' answers.

    Example: rlx-xla preflight model:apply --spec "f32[8, 64]" --target tpu:v5e:1x1
    """
    import rlx_xla
    from rlx_xla.aot import parse_target

    for name in targets:
        parse_target(name)  # a wrong name is refused before any compile
    found = given(program, specs, arguments, params, sizes)
    steps = Steps(quiet=as_json)
    reports: list[Preflight] = []
    absent: dict[str, DeviceError] = {}
    for name in targets:
        try:
            report = steps.run(
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
        except DeviceError as error:
            # What was found for the other targets is not lost.
            if len(targets) == 1:
                raise
            absent[name] = error
            continue
        except DimError as error:
            if not found.symbols:
                raise
            raise sizes_required(found.symbols) from error
        reports.append(report)
    ok = not absent and all(report.ok for report in reports)
    if as_json:
        refused = [{"target": n, "ok": False, "error": str(e)} for n, e in absent.items()]
        answers = [report.to_dict() for report in reports] + refused
        typer.echo(json.dumps({"ok": ok, "targets": answers}))
    else:
        typer.echo("\n\n".join([*map(str, reports), *map(str, absent.values())]))
    if not ok:
        raise typer.Exit(1)
