"""Rules by key, registered by the modules of one package, which are imported at the first look-up.

The decorators ``lowers``, ``traces``, ``imports`` and ``to_jax_rule`` each have one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, final

from rlx.errors import RegistryError

Rule: TypeAlias = Callable[..., Any]
Key = TypeVar("Key")


@final
class RuleTable(dict[Key, Rule]):
    """Key → rule, as far as modules are imported; ``find`` imports them all first."""

    def __init__(self, decorator: str, package: str) -> None:
        """Make an empty table.

        Args:
            decorator: name of what registers, for messages.
            package: every module of it registers its rules when it is imported.
        """
        super().__init__()
        self._decorator = decorator
        self._package = package
        self._complete = False

    def claim(self, key: Key, rule: Rule, what: str) -> None:
        """Register a rule; a module that is imported again may bring its own once more.

        Args:
            key: what it is looked up by.
            rule: the function.
            what: the key in words: ``op 'sort' on cpu``.

        Raises:
            RegistryError: another module has a rule for the key; both are named.
        """
        other = self.get(key)
        if other is not None and other.__module__ != rule.__module__:
            raise RegistryError(
                f"{self._decorator}: {what} has a rule {_name(other)}; {_name(rule)} is a second "
                "one."
            )
        self[key] = rule

    def find(self, key: Key) -> Rule | None:
        """The rule of a key, or None, with every module imported."""
        if not self._complete:
            self.load()
        return self.get(key)

    def load(self) -> None:
        """Import every module of the package, once."""
        if self._complete:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        self._complete = True


def _name(rule: Rule) -> str:
    return f"{rule.__module__}.{rule.__qualname__}"
