"""``rlx-xla cache``: what the compile cache holds, and why two keys differ."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rlx.errors import CompileError
from rlx_xla.cli.group import CommandGroup, Json
from rlx_xla.runtime.cache import program_cache
from rlx_xla.runtime.program_cache import ProgramCache, ProgramEntry, explain

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="List, clear and compare the programs of a compile cache.",
)

Directory = Annotated[
    str | None,
    typer.Option(
        "--directory",
        help="The cache's directory; the one that JAX_COMPILATION_CACHE_DIR names if left out.",
        metavar="PATH",
        show_default=False,
    ),
]


@app.command("list")
def list_programs(directory: Directory = None, as_json: Json = False) -> None:
    """List programs, most recently used first.

    Example: rlx-xla cache list --directory ~/.cache/jax
    """
    programs = _programs(directory)
    entries = programs.entries()
    if as_json:
        rows = [_row(entry) for entry in entries]
        typer.echo(json.dumps({"directory": str(programs.directory), "programs": rows}, indent=2))
        return
    total = sum(entry.nbytes for entry in entries)
    typer.echo(f"{programs.directory}: {len(entries)} programs, {total / 2**20:.1f} MiB")
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        target = entry.parts.get("target", "").split(" · ")[0]
        typer.echo(
            f"  {entry.key[:12]}  {entry.nbytes / 2**10:8.0f} KiB  {entry.seconds:6.2f} s  {used}  "
            f"{target:<6} {entry.name}"
        )


@app.command("clear")
def clear(directory: Directory = None, as_json: Json = False) -> None:
    """Delete every program.

    Example: rlx-xla cache clear --directory ~/.cache/jax
    """
    programs = _programs(directory)
    count, _ = programs.size()
    freed = programs.clear()
    if as_json:
        typer.echo(json.dumps({"programs": count, "bytes": freed}))
        return
    typer.echo(f"{programs.directory}: deleted {count} programs, {freed / 2**20:.1f} MiB")


@app.command("diff")
def diff(
    first: Annotated[str, typer.Argument(help="The beginning of a key.")],
    second: Annotated[str, typer.Argument(help="The beginning of another.")],
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Say why two programs have different keys.

    Example: rlx-xla cache diff 3f2a 9c01
    """
    programs = _programs(directory)
    one, other = programs.find(first), programs.find(second)
    lines = explain(one, other)
    if as_json:
        typer.echo(json.dumps({"first": one.key, "second": other.key, "differences": lines}))
        return
    typer.echo(f"{one.key[:12]} {one.name} → {other.key[:12]} {other.name}")
    for line in lines or ["the keys are the same"]:
        typer.echo(f"  {line}")


def _programs(directory: str | None) -> ProgramCache:
    found = program_cache(None if directory is None else Path(directory))
    if found is None:
        raise CompileError(
            "compile cache: a directory is required; the cache is off. Pass --directory, or set "
            "JAX_COMPILATION_CACHE_DIR."
        )
    return found


def _row(entry: ProgramEntry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "name": entry.name,
        "bytes": entry.nbytes,
        "used": entry.used,
        "compile_seconds": entry.seconds,
        **entry.parts,
    }
