"""``rlx-xla bench``: a program's time against ``jax.jit`` of the same function."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from rlx.errors import RunError
from rlx_xla.cli.demo import Timing, measure
from rlx_xla.cli.group import Device, Json, Traceback
from rlx_xla.cli.program import Arguments, Given, Params, Sizes, Specs, given
from rlx_xla.cli.progress import Steps

MaybeProgram = Annotated[
    str | None,
    typer.Argument(
        help="A JAX function by the module it is in.",
        metavar="[MODULE:NAME]",
        show_default=False,
    ),
]


def bench(
    program: MaybeProgram = None,
    specs: Specs = None,
    arguments: Arguments = None,
    params: Params = None,
    sizes: Sizes = None,
    device: Device = "cpu",
    rounds: Annotated[
        int, typer.Option("--rounds", help="Rounds of the timing.", min=1, max=100_000)
    ] = 100,
    seed: Annotated[int, typer.Option(help="Of the arguments that are drawn.", min=0)] = 0,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure from which sizes on kernels gain here."),
    ] = False,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Compile a JAX function with RLX and with jax.jit, and time both in alternation.

    Arguments of --spec are drawn; those of --args are used as they are. The control is a second
    jax.jit of the same function: what two equal programs differ by here.

    With --calibrate no function is taken: each CPU kernel is timed against XLA at a few sizes, for
    a minute or two, and the sizes from which it gains are kept for this machine's programs.

    Example: rlx-xla bench model:apply --spec "f32[batch, 64]" --size batch=8
    """
    if calibrate:
        _calibrate(program, as_json)
        return
    if program is None:
        raise RunError(
            "bench: a program MODULE:NAME is required, or --calibrate; got neither. Name a JAX "
            "function."
        )
    import jax
    import numpy as np

    import rlx
    import rlx_xla
    from rlx_xla.testing.drawing import cases

    found = given(program, specs, arguments, params, sizes)
    _require_function(found, program)
    steps = Steps(quiet=as_json)
    session = rlx.Session(device)
    case = next(cases(found.args, found.kwargs, sizes=(8,), seed=seed))
    traced = steps.run(
        "trace",
        lambda: rlx_xla.trace(found.program, *case.args, params=found.params, **case.kwargs),
    )
    compiled = steps.run("compile", lambda: session.compile(traced))
    fed = [x for i, x in enumerate(case.args) if i not in found.params]
    ours = steps.run("first call", lambda: jax.block_until_ready(compiled(*fed, **case.kwargs)))
    targets = [d for leaf in jax.tree_util.tree_leaves(ours) for d in leaf.devices()]
    place = targets[0] if targets else jax.local_devices()[0]
    fed, named, whole = jax.device_put((fed, case.kwargs, case.args), place)
    # Two functions, because jax.jit would give one function's second jit the same executable.
    first = jax.jit(lambda *a, **k: found.program(*a, **k))
    second = jax.jit(lambda *a, **k: found.program(*a, **k))
    theirs = steps.run(
        "compile jax.jit",
        lambda: [jax.block_until_ready(f(*whole, **named)) for f in (second, first)][1],
    )
    timing = steps.run(
        "measure",
        lambda: measure(
            lambda: compiled(*fed, **named),
            lambda: first(*whole, **named),
            lambda: second(*whole, **named),
            rounds=rounds,
        ),
    )
    pairs = zip(jax.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(theirs), strict=True)
    difference = max((_difference(np.asarray(a), np.asarray(b)) for a, b in pairs), default=0.0)
    kernels = [f"{c.op}: {c.implementation}" for c in compiled.report().kernels]
    if as_json:
        result: dict[str, Any] = {
            "name": traced.graph.name,
            "device": device,
            "timing": asdict(timing),
            "largest_difference": difference,
            "kernels": kernels,
            "seconds": steps.seconds,
        }
        typer.echo(json.dumps(result))
        return
    for line in _lines(timing, difference, kernels):
        typer.echo(line)


def _calibrate(program: str | None, as_json: bool) -> None:
    """Measure and keep the bounds of this machine, with a line for each."""
    if program is not None:
        raise RunError(
            f"bench: no program is required with --calibrate; got {program!r}. Leave one of them "
            "out."
        )
    from rlx_xla.kernels.calibration import described
    from rlx_xla.kernels.calibration.measure import Measured, calibrate
    from rlx_xla.kernels.calibration.store import path

    steps = Steps(quiet=as_json)

    def told(done: int, count: int, measured: Measured) -> None:
        if not as_json:
            steps.console.print(f"  {done}/{count} {measured}", style="dim")

    found = steps.run("measure", lambda: calibrate(told))
    if as_json:
        result: dict[str, Any] = {
            "file": str(path()),
            "bounds": {
                m.bound.name: {
                    "value": m.value,
                    "packaged": m.bound.packaged,
                    "sizes": list(m.bound.sizes),
                    "ratios": list(m.ratios),
                }
                for m in found
            },
            "seconds": steps.seconds,
        }
        typer.echo(json.dumps(result))
        return
    typer.echo(f"kernel bounds: {described()}")


def _require_function(found: Given, program: str) -> None:
    if not callable(found.program):
        raise RunError(
            f"bench {program}: a JAX function is required, to compare with jax.jit; got "
            f"{type(found.program).__name__}. Name the function."
        )


def _difference(ours: Any, theirs: Any) -> float:
    """The largest difference of numbers; two NaNs and two equal infinities do not differ."""
    import numpy as np

    wide = np.complex128 if np.iscomplexobj(ours) else np.float64
    a, b = ours.astype(wide), theirs.astype(wide)
    with np.errstate(all="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(apart.max()) if apart.size else 0.0


def _lines(timing: Timing, difference: float, kernels: list[str]) -> list[str]:
    return [
        f"one call: {timing.rlx * 1e6:,.1f} µs against {timing.jit * 1e6:,.1f} µs with jax.jit "
        f"(median of {timing.rounds})",
        f"ratio: {timing.ratio:.3f}; two copies of jax.jit: {timing.control:.3f}",
        f"largest difference: {difference:.1e}",
        f"kernels: {', '.join(kernels) or 'none'}",
    ]
