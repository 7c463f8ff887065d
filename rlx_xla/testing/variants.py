"""One test body, run without jit, with ``jax.jit`` and with ``rlx_xla.jit``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, final

import jax

from rlx.errors import RegistryError, did_you_mean
from rlx_xla.tracing.jit import jit

Test = Callable[..., Any]


def _without_jit(fn: Test, **options: Any) -> Test:
    """The function itself, on arrays on the device."""
    del options

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call


def _with_jit(fn: Test, **options: Any) -> Test:
    return jax.jit(fn, **options)


def _with_rlx(fn: Test, **options: Any) -> Test:
    return jit(fn, **options)


VARIANTS: dict[str, Callable[..., Test]] = {
    "without_jit": _without_jit,
    "with_jit": _with_jit,
    "with_rlx": _with_rlx,
}


@final
class Variant:
    """What a test body calls on its function: ``variant(fn, static_argnums=…)``.

    Attributes:
        name: ``without_jit``, ``with_jit`` or ``with_rlx``.
        calls: how often it was called.
    """

    def __init__(self, name: str) -> None:
        """Count from zero."""
        self.name = name
        self.calls = 0

    def __call__(self, fn: Test | None = None, **options: Any) -> Any:
        """The function in this variant; without a function, a decorator.

        Args:
            fn: any JAX function.
            options: ``static_argnums``, ``static_argnames`` and ``donate_argnums``, as for
                ``jax.jit``.
        """
        self.calls += 1
        if fn is None:
            return lambda function: VARIANTS[self.name](function, **options)
        return VARIANTS[self.name](fn, **options)

    def __repr__(self) -> str:
        return f"<Variant {self.name}>"


def variants(*names: str) -> Callable[[Any], Any]:
    """Run a test once for each variant.

    A function with an argument ``variant`` is parametrised for pytest. A method of a
    ``unittest.TestCase`` class, chex's and absl's included, uses ``self.variant``, and becomes one
    method for each variant (``test_x_with_jit``); absl's ``parameterized`` may stand below.

    Args:
        names: ``without_jit``, ``with_jit``, ``with_rlx``; all three when there is none.

    Raises:
        RegistryError: a name is unknown.

    Example:
        >>> @variants("with_jit", "with_rlx")
        ... def test_sum(variant):
        ...     assert variant(lambda x: x + x)(2.0) == 4.0
    """
    chosen = names or tuple(VARIANTS)
    for name in chosen:
        if name not in VARIANTS:
            raise RegistryError(
                f"variants: names are required to be among {', '.join(VARIANTS)}; got {name!r}."
                f"{did_you_mean(name, VARIANTS)}"
            )

    def decorate(test: Any) -> Any:
        if not isinstance(test, Iterable) and "variant" in inspect.signature(test).parameters:
            return _parametrised(test, chosen)
        return _Methods(test, chosen)

    return decorate


def all_variants(test: Any) -> Any:
    """Run a test in every variant; see ``variants``."""
    return variants()(test)


def _parametrised(test: Test, names: Iterable[str]) -> Test:
    import pytest

    @functools.wraps(test)
    def run(*args: Any, variant: Variant, **kwargs: Any) -> Any:
        return _checked(variant, lambda: test(*args, variant=variant, **kwargs), test)

    made = [pytest.param(Variant(name), id=name) for name in names]
    return pytest.mark.parametrize("variant", made)(run)


def _checked(variant: Variant, call: Callable[[], Any], test: Any) -> Any:
    """A test that never uses its variant tests nothing of it."""
    variant.calls = 0
    result = call()
    if not variant.calls:
        raise AssertionError(
            f"{test!r} is required to call its variant; it never did, in {variant.name}. "
            "Wrap the function under test: variant(fn)(x)."
        )
    return result


@final
class _Methods:
    """A method of a test class, to be replaced by one for each variant."""

    def __init__(self, test: Any, names: Iterable[str]) -> None:
        self._many = isinstance(test, Iterable)  # absl's parameterized
        self._tests: list[Test] = list(test) if self._many else [test]
        self._names = tuple(names)

    def __set_name__(self, owner: type, name: str) -> None:
        """Put the methods in the class in place of this one."""
        delattr(owner, name)
        for number, test in enumerate(self._tests):
            for variant in self._names:
                part = f"{name}_{number}" if self._many else name
                method = _method(test, variant)
                method.__name__ = f"{part}_{variant}"
                method.__qualname__ = f"{owner.__qualname__}.{method.__name__}"
                setattr(owner, method.__name__, method)


def _method(test: Test, name: str) -> Any:
    @functools.wraps(test)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.variant = Variant(name)
        return _checked(self.variant, lambda: test(self, *args, **kwargs), test)

    return run
