"""Every op class, by family; families load on first use.

``rlx.ops.Softmax(axis=1)(x)`` makes a node. ``dir(rlx.ops)`` lists all classes.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.ir.op import Op

_classes: dict[str, type[Op]] = {}


def _load() -> dict[str, type[Op]]:
    if not _classes:
        from rlx.ir.op import all_ops

        _classes.update(
            (cls.__name__, cls)
            for cls in all_ops().values()
            if cls.__module__.startswith("rlx.ops.")
        )
    return _classes


def __getattr__(name: str) -> type[Op]:
    known = _classes.get(name)
    if known is not None:  # before modules are looked for on disk
        return known
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is not None:
        raise AttributeError(name)  # of a module: the import statement then loads it
    found = _load().get(name)
    if found is None:
        from rlx.errors import did_you_mean

        raise AttributeError(f"rlx.ops has no op class {name!r}.{did_you_mean(name, _classes)}")
    return found


def __dir__() -> list[str]:
    return sorted(_load())
