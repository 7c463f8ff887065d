"""``rlx-xla trace``: a function as a graph, printed or written to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rlx.errors import RunError
from rlx_xla.cli.group import Json, Traceback
from rlx_xla.cli.program import Arguments, Params, Program, Sizes, Specs, given, traced
from rlx_xla.cli.progress import Steps

SUFFIXES = (".txt", ".html", ".dot", ".svg", ".json", ".rlx", ".mlir")


def trace(
    program: Program,
    specs: Specs = None,
    arguments: Arguments = None,
    params: Params = None,
    sizes: Sizes = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=f"Write the graph to a file, by its ending: {', '.join(SUFFIXES)} (.json is for "
            "Model Explorer).",
            show_default=False,
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--graph", help="Print the whole graph.", show_default=False)
    ] = False,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Trace a JAX function into an RLX graph and say what it holds.

    Example: rlx-xla trace model:apply --spec "f32[batch, 64]"

    Example: rlx-xla trace model:apply --args model:example --params 0 -o graph.html
    """
    if output is not None and output.suffix not in SUFFIXES:
        raise typer.BadParameter(
            f"--output: a file that ends in one of {', '.join(SUFFIXES)} is required; got "
            f"{output.name}."
        )
    found = given(program, specs, arguments, params, sizes)
    steps = Steps(quiet=as_json)
    made = steps.run("trace", lambda: traced(found))
    graph = getattr(made, "graph", made)
    coverage = made.coverage() if hasattr(made, "coverage") else None
    if output is not None:
        _write(graph, output)
    if as_json:
        result: dict[str, Any] = {
            "name": graph.name,
            "inputs": [{"name": v.name, "type": str(v.type)} for v in graph.inputs],
            "params": [{"name": v.name, "type": str(v.type)} for v in graph.params],
            "outputs": [str(v.type) for v in graph.outputs],
            "nodes": graph.node_count(nested=True),
            "seconds": steps.seconds["trace"],
            "coverage": None
            if coverage is None
            else {
                "modelled": coverage.modelled,
                "external": coverage.external,
                "by_primitive": coverage.by_primitive,
            },
        }
        if show:
            result["graph"] = str(graph)
        if output is not None:
            result["output"] = str(output)
        typer.echo(json.dumps(result))
        return
    typer.echo(str(graph) if show else graph.summary())
    if coverage is not None:
        typer.echo(f"\n{coverage}")
    if output is not None:
        typer.echo(f"\nwritten: {output}")


def _write(graph: Any, path: Path) -> None:
    """Write a graph in the form of the file's ending."""
    import rlx
    import rlx_xla

    makers: dict[str, Any] = {
        ".txt": lambda: f"{graph}\n",
        ".html": lambda: f"<!doctype html>\n<meta charset=utf-8>\n{graph._repr_html_()}\n",
        ".dot": graph.to_dot,
        ".svg": graph.to_svg,
        ".json": graph.to_model_explorer,
        ".mlir": lambda: rlx_xla.stablehlo(graph),
    }
    try:
        if path.suffix == ".rlx":
            rlx.save(graph, path)
        else:
            path.write_text(makers[path.suffix](), encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"trace: a file that can be written is required; {path} gives {error}. Name another."
        ) from error
