"""Every module keeps every rule, and every rule can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.policy import rules
from tests.policy.sources import Module, modules

Rule = Callable[[Module], Iterator[str]]


@pytest.mark.parametrize("rule", rules.ALL, ids=lambda rule: rule.__name__)
def test_rule(rule: Rule) -> None:
    findings = [finding for module in modules() for finding in rule(module)]
    assert not findings, "\n".join([rule.__doc__ or "", *findings])


BREAKS = [
    (rules.size, "rlx/a.py", "x = 1\n" * 601),
    (rules.file_name, "rlx/utils.py", ""),
    (rules.file_name, "rlx_xla/_helpers.py", ""),
    (rules.file_name, "rlx/common/a.py", ""),
    (rules.core_imports, "rlx/a.py", "def f():\n    import jax.numpy as jnp"),
    (rules.core_imports, "rlx/a.py", "from rlx_xla.kernels import ffi"),
    (rules.core_imports, "rlx/a.py", "import jaxlib"),
    (rules.unstable_imports, "rlx_xla/a.py", "import jaxlib.xla_client"),
    (rules.unstable_imports, "rlx_xla/a.py", "from jax._src import core"),
    (rules.unstable_imports, "rlx_xla/a.py", "from jax import _src"),
    (rules.environment, "rlx/a.py", "import os\nos.environ['RLX_X']"),
    (rules.environment, "rlx_xla/a.py", "import os\nos.getenv('HOME')"),
    (rules.environment, "rlx_xla/a.py", "from os import environ as e"),
    (rules.environment, "rlx/optionsx.py", "import os\nos.environ.get('RLX_X')"),
    (rules.broad_except, "rlx/a.py", "try:\n    f()\nexcept:\n    pass"),
    (rules.broad_except, "rlx/a.py", "try:\n    f()\nexcept Exception as e:\n    pass"),
    (rules.broad_except, "rlx/a.py", "try:\n    f()\nexcept (OSError, BaseException):\n    pass"),
    (rules.error_classes, "rlx/a.py", "class Bad(ValueError): ..."),
    (rules.error_classes, "rlx_xla/a.py", "class BadError(errors.RlxError): ..."),
    (rules.abstract_or_final, "rlx/a.py", "class A: ..."),
    (rules.abstract_or_final, "rlx/a.py", "@dataclass(frozen=True)\nclass A(AbstractPass): ..."),
    (rules.abstract_or_final, "rlx/a.py", "@define_op('b')\nclass B(A): ..."),
]


@pytest.mark.parametrize(("rule", "path", "text"), BREAKS)
def test_rule_can_fail(rule: Rule, path: str, text: str) -> None:
    findings = list(rule(Module(path, text)))
    assert len(findings) == 1
    assert findings[0].startswith(path)


KEEPS = [
    (rules.size, "rlx/a.py", "x = 1\n" * 600),
    (rules.core_imports, "rlx/a.py", "import jaxtyping\nfrom rlx.ir import graph"),
    (rules.core_imports, "rlx/ir/a.py", "from . import jax"),
    (rules.core_imports, "rlx_xla/a.py", "import jax"),
    (rules.unstable_imports, "rlx_xla/_jax_compat/a.py", "import jaxlib"),
    (rules.unstable_imports, "rlx_xla/a.py", "import jax.extend"),
    (rules.environment, "rlx/options/a.py", "import os\nos.environ['RLX_X']"),
    (rules.environment, "rlx_xla/doctor.py", "import os\nos.environ['X']"),
    (rules.environment, "rlx_xla/aot/pjrt.py", "import os\nos.environ['X']"),
    (rules.broad_except, "rlx/a.py", "try:\n    f()\nexcept (OSError, ValueError):\n    pass"),
    (rules.error_classes, "rlx/errors.py", "class BadError(ValueError): ..."),
    (rules.abstract_or_final, "rlx/a.py", "@final\nclass A(AbstractPass): ..."),
    (rules.abstract_or_final, "rlx/a.py", "class _AbstractA: ..."),
    (rules.abstract_or_final, "rlx/a.py", "class Kind(enum.Enum): ..."),
    (rules.abstract_or_final, "rlx/a.py", "@define_op('b')\nclass B(Op): ..."),
]


@pytest.mark.parametrize(("rule", "path", "text"), KEEPS)
def test_rule_lets_good_code_pass(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Module(path, text))) == []


def test_both_packages_are_seen() -> None:
    assert {module.package for module in modules()} == {"rlx", "rlx_xla"}
