"""``rlx-xla report``: compile a program and print what was decided."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rlx_xla.cli.group import Device, Json, Traceback
from rlx_xla.cli.program import (
    Arguments,
    Params,
    Program,
    Sizes,
    Specs,
    given,
    sizes_required,
    traced,
)
from rlx_xla.cli.progress import Steps


def report(
    program: Program,
    specs: Specs = None,
    arguments: Arguments = None,
    params: Params = None,
    sizes: Sizes = None,
    device: Device = "cpu",
    validate: Annotated[
        bool,
        typer.Option(
            "--validate", help="Prove each pass on drawn inputs; slow.", show_default=False
        ),
    ] = False,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Compile a program and print its passes, kernels with reasons, memory and cost.

    Example: rlx-xla report model:apply --spec "f32[batch, 64]" --size batch=8
    """
    import rlx

    found = given(program, specs, arguments, params, sizes)
    steps = Steps(quiet=as_json)
    session = rlx.Session(device)
    made = steps.run("trace", lambda: traced(found))
    graph = getattr(made, "graph", made)
    if graph.symbols:
        raise sizes_required(graph.symbols)
    options = rlx.CompileOptions(validate=validate)
    compiled = steps.run("compile", lambda: session.compile(made, options=options))
    shown = compiled.report()
    typer.echo(json.dumps(shown.to_dict()) if as_json else str(shown))
