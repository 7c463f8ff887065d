"""The program that a command is about: ``module:function`` with specs or ready arguments."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast, final

import typer

from rlx.errors import ParseError, RunError, did_you_mean

Program = Annotated[
    str,
    typer.Argument(
        help="A JAX function, an RLX graph or a traced function by the module it is in.",
        metavar="MODULE:NAME",
        show_default=False,
    ),
]
Specs = Annotated[
    list[str] | None,
    typer.Option(
        "--spec",
        "-s",
        help='Type of an argument, in order, such as "f32[batch, 64]"; "mask=bool[8]" for one '
        "that is given by name.",
        metavar="TYPE",
        show_default=False,
    ),
]
Arguments = Annotated[
    str | None,
    typer.Option(
        "--args",
        help="In place of --spec: a tuple of arguments, or a function that returns one.",
        metavar="MODULE:NAME",
        show_default=False,
    ),
]
Params = Annotated[
    list[int] | None,
    typer.Option(
        "--params",
        "-p",
        help="Position of an argument that is bound once, as weights are.",
        metavar="N",
        show_default=False,
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size", help="Size of a symbol of the specs.", metavar="NAME=N", show_default=False
    ),
]


@final
@dataclass(frozen=True)
class Given:
    """A program and what it is called with.

    Attributes:
        program: a JAX function, a Graph or a Traced.
        args: positional arguments: arrays, trees of them, or specs.
        kwargs: keyword arguments, the same.
        params: positions of arguments that are params.
        symbols: sizes of the specs, or of the graph, that no ``--size`` gave.
    """

    program: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    params: tuple[int, ...]
    symbols: tuple[str, ...] = ()


def given(
    program: str,
    specs: Sequence[str] | None,
    arguments: str | None,
    params: Sequence[int] | None,
    sizes: Sequence[str] | None = None,
) -> Given:
    """Find what the options of a command name.

    Raises:
        RunError: the module, the name or the arguments are not there, or do not fit.
        ParseError: a spec is no type.
    """
    from rlx import bind
    from rlx.ir.graph import Graph
    from rlx.types import as_type

    found = named(program)
    known = _sizes(sizes or ())
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    if arguments is not None:
        if specs:
            raise RunError("rlx-xla: --args or --spec is required; got both. Leave one out.")
        args = list(_tuple(arguments))
    symbols: dict[str, None] = {}
    for spec in specs or ():
        name, sign, text = spec.partition("=")
        try:
            stated = as_type((text if sign else spec).strip())
            symbols.update(dict.fromkeys(stated.symbols))
            type_ = stated.bind(known)
        except ParseError as error:
            raise ParseError(f"--spec {spec!r}: {error}") from error
        if sign:
            kwargs[name.strip()] = str(type_)
        else:
            args.append(str(type_))
    if isinstance(found, Graph) or hasattr(found, "graph"):
        if args or kwargs:
            raise RunError(
                f"{program}: arguments are for functions; this is a {type(found).__name__}. Leave "
                "--spec and --args out."
            )
        symbols.update(dict.fromkeys(getattr(found, "graph", found).symbols))
    elif not callable(found):
        raise RunError(
            f"{program}: a JAX function, a Graph or a Traced is required; got "
            f"{type(found).__name__}. Name another."
        )
    unknown = [name for name in known if name not in symbols]
    if unknown:
        raise RunError(
            f"--size {unknown[0]}={known[unknown[0]]}: a symbol of the program is required "
            f"({', '.join(symbols) or 'it has none'}); got {unknown[0]!r}."
            f"{did_you_mean(unknown[0], symbols)}"
        )
    if known and isinstance(found, Graph):
        found = bind(found, known)
    elif known and hasattr(found, "graph"):
        whole = cast("Any", found)
        found = dataclasses.replace(whole, graph=bind(whole.graph, known))
    if callable(found) and not isinstance(found, Graph) and not hasattr(found, "graph"):
        _check_arguments(program, found, args, kwargs)
    left = tuple(name for name in symbols if name not in known)
    return Given(found, tuple(args), kwargs, tuple(params or ()), left)


def sizes_required(symbols: Sequence[str]) -> typer.BadParameter:
    """What a command says that compiles for one set of sizes and does not know them."""
    names = " ".join(f"--size {name}=8" for name in symbols)
    return typer.BadParameter(
        f"sizes are required for {', '.join(symbols)}; give, for instance, {names}."
    )


def named(name: str) -> Any:
    """Import what ``module:name`` stands for; the current folder is looked into first.

    Raises:
        RunError: it is not of this form, or there is no such module or name.
    """
    module_name, sign, path = name.partition(":")
    if not sign or not module_name or not path:
        raise RunError(
            f"rlx-xla: a program is required as MODULE:NAME, such as model:apply; got {name!r}."
        )
    if module_name.endswith(".py"):
        module = os.path.basename(module_name)[: -len(".py")]
        raise RunError(
            f"{name}: the name of a module is required; got a file's. Write {module}:{path}, in "
            "the folder of the file."
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise RunError(
            f"{name}: a module that can be imported is required; there is no {error.name!r} here "
            "or installed. Run the command in its folder."
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            public = [n for n in dir(found) if not n.startswith("_")]
            raise RunError(f"{name}: {module_name} has no {part!r}.{did_you_mean(part, public)}")
        found = getattr(found, part)
    return found


def traced(found: Given) -> Any:
    """The program as a Traced, or the Graph that it is.

    Raises:
        TraceError: the function cannot be traced.
    """
    import rlx_xla
    from rlx.ir.graph import Graph

    if isinstance(found.program, Graph) or hasattr(found.program, "graph"):
        return found.program
    return rlx_xla.trace(found.program, *found.args, params=found.params, **found.kwargs)


def _check_arguments(
    program: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Compare what was given with what a function takes, where Python knows that.

    Raises:
        RunError: something is missing, or too much.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # functions of C without a signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise RunError(
            f"{program}: a --spec for each argument is required, as it is {signature}; {error}. "
            "Give them in order, as NAME=TYPE, or together with --args."
        ) from error


def _tuple(name: str) -> tuple[Any, ...]:
    found = named(name)
    made = found() if callable(found) else found
    if not isinstance(made, tuple):
        raise RunError(
            f"--args {name}: a tuple of arguments is required; got {type(made).__name__}. Write "
            "(x,) for one."
        )
    return made


def _sizes(texts: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not name.strip().isidentifier() or not number.strip().isdecimal():
            raise RunError(f"--size: NAME=N is required, such as batch=8; got {text!r}.")
        found[name.strip()] = int(number)
    return found
