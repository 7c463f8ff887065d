"""The parameters of ``jax.jit`` and ``rlx_xla.jit``: what each means, and which go together.

| parameter | in JAX 0.7.2 to 0.12 | here |
| --- | --- | --- |
| ``static_argnums``, ``static_argnames`` | as here | as in ``jax.jit`` |
| ``donate_argnums``, ``donate_argnames`` | as here | as in ``jax.jit``, its warning included |
| ``in_shardings``, ``out_shardings`` | as here | ``jax.jit`` places every call |
| ``keep_unused`` | as here | as in ``jax.jit``; programs of RLX keep all arguments in any case |
| ``compiler_options`` | as here | joined with ``CompileOptions.compiler_options`` |
| ``inline`` | bool; 0.12 has an enum too | the function's equations stand in the caller's jaxpr |
| ``device`` | deprecated | a name or a ``jax.Device``; not deprecated; results are committed |
| ``backend`` | deprecated | the first device of a platform |
| ``abstracted_axes`` | gone after 0.7 | refused: ``dims`` is what stands for it |
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast, final

import jax

from rlx.errors import TraceError, also
from rlx.options.compile import CompileOptions
from rlx_xla.runtime.client import device_name, find_device
from rlx_xla.tracing.errors import refuse_unreferable

Names = str | Sequence[str]
Numbers = int | Sequence[int]


class JitOptions(TypedDict, total=False):
    """The keywords of ``rlx_xla.jit``; see there."""

    device: Any
    options: CompileOptions | None
    params: Numbers
    static_argnums: Numbers | None
    static_argnames: Names | None
    donate_argnums: Numbers | None
    donate_argnames: Names | None
    dims: Any
    buckets: Any
    on_unsafe: str | None
    in_shardings: Any
    out_shardings: Any
    keep_unused: bool
    backend: str | None
    inline: Any
    compiler_options: Mapping[str, Any] | None
    abstracted_axes: Any


@final
@dataclass(frozen=True, eq=False)
class Chosen:
    """What the keywords of ``rlx_xla.jit`` come to.

    Attributes:
        options: how programs are compiled.
        device: where they run; None follows the arguments.
        for_jax: the keywords of ``jax.jit``.
        is_placed: shardings are given, so that every call is JAX's to place.
        is_inline: the function leaves no call in a caller's jaxpr.
        keep_unused: arguments that nothing needs are kept.
    """

    options: CompileOptions
    device: Any
    for_jax: Mapping[str, Any]
    is_placed: bool
    is_inline: bool
    keep_unused: bool

    def jitted(self, function: Callable[..., Any]) -> Any:
        """A function under ``jax.jit`` with these keywords."""
        if self.device is None:
            return jax.jit(function, **self.for_jax)
        with warnings.catch_warnings():  # of a parameter that is not deprecated here
            warnings.simplefilter("ignore", DeprecationWarning)
            return jax.jit(function, device=self.device, **self.for_jax)


def chosen(name: str, given: JitOptions) -> Chosen:
    """Check the keywords of ``rlx_xla.jit`` against each other.

    Args:
        name: of the function.
        given: the keywords that were given, and differ from None.

    Raises:
        TraceError: some exclude each other, or one has no meaning any more.
        DeviceError: no such device.
    """
    device, backend = given.get("device"), given.get("backend")
    shardings = [n for n in ("in_shardings", "out_shardings") if n in given]
    if "abstracted_axes" in given:
        raise also(TraceError, TypeError)(
            f"jit of {name!r}: parameters of jax.jit 0.10 are required; got abstracted_axes, which "
            "JAX has no more. Name sizes that vary in dims, as in dims=('f32[n, 3]', None)."
        )
    if device is not None and backend is not None:
        raise also(TraceError, ValueError)(
            f"jit of {name!r}: device or backend is required, not both; got device={device!r} and "
            f"backend={backend!r}. Leave out backend."
        )
    if shardings and (device is not None or backend is not None):
        raise also(TraceError, ValueError)(
            f"jit of {name!r}: a device or shardings are required, not both; got "
            f"{'device' if backend is None else 'backend'} and {shardings[0]}. Say the device in "
            "the sharding."
        )
    unfit = [n for n in ("dims", "buckets", "params") if given.get(n, ()) not in ((), None)]
    if shardings and unfit:
        raise TraceError(
            f"jit of {name!r}: with {shardings[0]} every argument is required to come with its "
            f"call, since JAX places it; got {unfit[0]} too. Leave one of the two out."
        )
    found = None if device is None else find_device(device)
    if backend is not None:
        found = find_device(backend)
    keys = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
    keys += ("in_shardings", "out_shardings", "keep_unused", "inline", "compiler_options")
    inline = given.get("inline", False)
    return Chosen(
        _compile_options(given),
        found,
        {key: value for key, value in given.items() if key in keys},
        bool(shardings),
        inline is True or getattr(inline, "name", "") == "JAX_EARLY",
        bool(given.get("keep_unused")),
    )


def _compile_options(given: JitOptions) -> CompileOptions:
    """The options with what ``jit`` was given beside them."""
    found = given.get("options")
    if found is not None and not isinstance(cast("object", found), CompileOptions):
        raise TraceError(
            f"jit [options]: a CompileOptions is required; got {type(found).__name__}. Write "
            "options=rlx.CompileOptions(...)."
        )
    made = CompileOptions() if found is None else found
    if "buckets" in given:
        made = made.replace(buckets=given["buckets"])
    if "on_unsafe" in given:
        made = made.replace(on_unsafe=given["on_unsafe"])
    flags = given.get("compiler_options")
    if flags:
        made = made.replace(compiler_options={**made.compiler_options, **flags})
    if made.buckets is not None and given.get("dims") is None:
        raise TraceError(
            "jit: buckets round named dims up, so dims is required with them; got dims=None. Name "
            "the dims, as in dims=('f32[n]',)."
        )
    return made if found is None or made != found else found


def portable(given: JitOptions) -> JitOptions:
    """The keywords in a form that other processes read: devices by name."""
    device = given.get("device")
    if not isinstance(device, jax.Device):
        return given
    return {**given, "device": device_name(device)}


def check_function(fn: object) -> None:
    """Refuse what is no function that can be traced.

    Raises:
        TraceError: it cannot be called, or it is a generator or a static method.
    """
    what = ""
    if isinstance(fn, staticmethod):
        what = "a staticmethod"
    elif not callable(fn):
        what = repr(fn)
    elif inspect.isgeneratorfunction(fn):
        what = f"the generator function {fn.__name__!r}"
    if what:
        raise also(TraceError, TypeError)(
            f"jit: a function that returns its results is required; got {what}. Pass the function "
            "itself, and options by keyword."
        )
    refuse_unreferable(cast("Callable[..., Any]", fn), "jit")
