"""``--threads``: how many processors the CPU's programs may use."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from rlx.errors import RunError

Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        help="Processors that programs for the CPU use; all that there are if left out.",
        min=1,
        show_default=False,
    ),
]


def use_threads(count: int | None) -> None:
    """Keep this process to some of its processors, from which XLA takes its number of threads.

    Args:
        count: how many; None changes nothing.

    Raises:
        RunError: the system has no such call, there are fewer, or JAX has started its threads.
    """
    if count is None:
        return
    from rlx_xla._jax_compat.client import has_started

    if sys.platform != "linux":
        raise RunError(
            f"--threads: Linux is required, where a process can be kept to some processors; this "
            f"is {sys.platform}. Leave it out."
        )
    allowed = sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise RunError(
            f"--threads: at most {len(allowed)} is required, the processors of this process; got "
            f"{count}. Lower it."
        )
    if has_started():
        raise RunError(
            "--threads: a process is required in which JAX has not started its threads; it has. "
            "Set it first."
        )
    os.sched_setaffinity(0, allowed[:count])
