"""The only reader of ``RLX_*`` variables.

========================== ================================================================
variable                   what it sets
========================== ================================================================
RLX_VERBOSE                ``CompileOptions.verbose``: print each pass while compiling
RLX_KERNEL_DISPATCH        ``CompileOptions.kernel_dispatch``: the policy's name
RLX_CACHE_PARAM_INVARIANT  ``CompileOptions.cache_param_invariant``: compute once per binding
                           of params what depends on nothing else
RLX_DISPATCH_REPORT        ``CompileOptions.dispatch_report``: print how nodes are carried out
RLX_FUSION_REPORT          ``CompileOptions.fusion_report``: print what was fused and missed
RLX_LINT_NUMERICS          ``CompileOptions.lint_numerics``: note constants that are not finite
RLX_IR_DUMP                ``CompileOptions.ir_dump``: folder for the text of every level
RLX_KEEP_LARGE_BUFFERS     keep freed host buffers of 32 MB and more for the next ones;
                           ``rlx_xla/runtime/allocator.py`` has the cost
RLX_DEVICE                 the device of ``Session()``
RLX_DEVICES and others     ``DevicePolicy``; rlx/options/devices.py has their table
========================== ================================================================

A flag is on for any text but ``0``, ``false``, ``off``, ``no`` and the empty one, as in RLX.
Values that code puts in with ``overrides`` come before the process's own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import TypeVar

from rlx.errors import CompileError

_PREFIX = "RLX_"
_OFF = frozenset({"", "0", "false", "off", "no"})
_OVERRIDES: ContextVar[Mapping[str, str | None]] = ContextVar("rlx_overrides")

T = TypeVar("T")


def var(name: str) -> str | None:
    """The text of a variable without blanks around it, or None when it is not set.

    Args:
        name: with or without ``RLX_``, in any case.
    """
    key = _key(name)
    over = _OVERRIDES.get({})
    text = over[key] if key in over else os.environ.get(key)
    return None if text is None else text.strip()


def is_unset(name: str) -> bool:
    """Whether a variable has no value at all; an empty one has."""
    return var(name) is None


def flag(name: str) -> bool:
    """Whether a variable is on."""
    text = var(name)
    return text is not None and text.lower() not in _OFF


def parse_or(name: str, default: T, parse: Callable[[str], T]) -> T:
    """What ``parse`` makes of a variable's text; the default where it is not set or empty.

    Raises:
        CompileError: ``parse`` raises ValueError.
    """
    text = var(name)
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise CompileError(
            f"{_key(name)}: required what {parse.__name__} reads; got {text!r}. "
            "Correct it or unset it."
        ) from error


@contextlib.contextmanager
def overrides(values: Mapping[str, str | None]) -> Generator[None]:
    """Put values before those of the process, in this thread and as long as the block runs.

    Args:
        values: variable → text, or None for one that is to look unset.
    """
    added = {_key(name): text for name, text in values.items()}
    token = _OVERRIDES.set({**_OVERRIDES.get({}), **added})
    try:
        yield
    finally:
        _OVERRIDES.reset(token)


def _key(name: str) -> str:
    upper = name.strip().upper()
    return upper if upper.startswith(_PREFIX) else _PREFIX + upper
