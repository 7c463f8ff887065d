"""Forms of blocks that are made of fused ops, and the count of a block's inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from rlx.errors import LoweringError, RegistryError
from rlx.ir.op import Op

if TYPE_CHECKING:
    from rlx.ir.graph import Value

Form: TypeAlias = "Callable[..., Value]"
_FORMS: dict[type[Op], Form] = {}


def direct(block: type[Op]) -> Callable[[Form], Form]:
    """Register a block's form under the direct policy: a function of the block and its inputs.

    Raises:
        RegistryError: the block has one already.
    """

    def register(form: Form) -> Form:
        other = _FORMS.get(block)
        if other is not None and other.__module__ != form.__module__:
            raise RegistryError(
                f"direct: {block.__name__} has a form, {other.__module__}.{other.__qualname__}; "
                f"{form.__module__}.{form.__qualname__} would be the second."
            )
        _FORMS[block] = form
        return form

    return register


def direct_form(block: Op) -> Form | None:
    """The form of a block under the direct policy; None where `decompose` is the only one."""
    return _FORMS.get(type(block))


def given(block: Op, expected: int, *inputs: Value | None, bias: bool = False) -> tuple[Any, ...]:
    """Return the inputs that are there, after counting them.

    Args:
        block: the block, for the message.
        expected: how many there must be.
        inputs: all of the block's, None for those that are missing.
        bias: whether the last of the expected ones is a bias.

    Raises:
        LoweringError: there are more or fewer; RLX's texts.
    """
    found = tuple(v for v in inputs if v is not None)
    if len(found) == expected:
        return found
    if bias and len(found) == expected - 1:
        raise LoweringError(f"{block.op_name}: bias input required")
    raise LoweringError(f"{block.op_name}: expected {expected} inputs, got {len(found)}")


def are_constants(*weights: Value) -> bool:
    """Whether weights are constants, so that joining them costs nothing when the graph runs."""
    return all(w.node.op.op_name == "constant" for w in weights)
