"""What a process of its own does: compiles programs of a language model into a folder.

Its parent has put a pickled `Order` there. ``N.made`` is left for each program that lies in the
folder's cache, and ``refused`` where a program that is made here would not be the parent's. What
compiling takes and keeps goes back to the system when the process ends.
"""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import jax

from rlx_xla.runtime.program_cache import ProgramCache

if TYPE_CHECKING:
    from rlx_xla.generation.programs import Programs

ORDER, REFUSED, CACHE = "order", "refused", "programs"
"""Names in the folder."""


@final
@dataclass(frozen=True)
class Order:
    """What to compile.

    Attributes:
        programs: of the parent, without weights and session.
        device: name of the device.
        parts: what each program depends on, as the parent sees it, by the program's key.
    """

    programs: Programs
    device: str
    parts: Mapping[Any, Mapping[str, str]]


def made_file(folder: Path, number: int) -> Path:
    """The file that says that a program is compiled."""
    return folder / f"{number}.made"


def main(place: str) -> None:
    """Compile what the folder's order says, one program after the other.

    Args:
        place: the folder.
    """
    gc.disable()  # a short life: searching for cycles takes longer than it gives
    folder, parent = Path(place), os.getppid()
    with (folder / ORDER).open("rb") as file:
        # The parent's own. Settings come first: reading the order makes arrays' types.
        _set(pickle.load(file))
        order: Order = pickle.load(file)
    programs = order.programs.revived(order.device)
    cache = ProgramCache(folder / CACHE)
    for number, (key, parts) in enumerate(order.parts.items()):
        if os.getppid() != parent:
            break
        why = programs.compile_into(cache, key, parts)
        if why is not None:
            (folder / REFUSED).write_text(why, encoding="utf-8")
            break
        made_file(folder, number).touch()
    if os.getppid() != parent:  # it was killed, and deletes nothing any more
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nobody waits for pools of threads to come down


def _set(settings: Mapping[str, Any]) -> None:
    """Make JAX's settings the parent's."""
    mine = jax.config.values
    for name, value in settings.items():
        if name in mine and mine[name] != value:
            jax.config.update(name, value)
