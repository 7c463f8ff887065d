"""How an implementation is chosen for a node: kernel, lowering rule or decomposition."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast, final

from rlx.errors import CompileError, did_you_mean
from rlx.options import env

if TYPE_CHECKING:
    from rlx.ir.graph import Node

SupportedOps: TypeAlias = "Collection[str] | Callable[[Node], bool]"
"""Names of ops, or a predicate on nodes."""

ALWAYS_SUPPORTED = frozenset({"input", "param", "constant"})
"""Data rather than work: no restriction touches them."""


@final
class KernelPolicy(enum.Enum):
    """RLX's dispatch policies.

    PREFER_NATIVE takes a kernel where one is supported; FORCE_COMMON takes no kernel at all;
    FORCE_NATIVE refuses to compile where a kernel exists for the op, on whatever platform, but
    cannot be used.
    """

    PREFER_NATIVE = "prefer_native"
    FORCE_COMMON = "force_common"
    FORCE_NATIVE = "force_native"


@final
@dataclass(frozen=True, kw_only=True)
class KernelDispatch:
    """Which implementations may be chosen.

    Where several speak of one node: ``forbidden``, then ``forced``, then ``native_ops``, then
    ``common_ops``, then ``policy``.

    Attributes:
        policy: the rule for every op that is not named below.
        common_ops: names of ops that take no kernel (RLX's ``force_common_kinds``).
        native_ops: names of ops that must take a kernel (RLX's ``force_native_kinds``).
        forced: names of kernels that every node of their op must take.
        forbidden: names of kernels never to take.
    """

    policy: KernelPolicy = KernelPolicy.PREFER_NATIVE
    common_ops: frozenset[str] = frozenset()
    native_ops: frozenset[str] = frozenset()
    forced: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.policy), KernelPolicy):
            raise CompileError(
                f"KernelDispatch.policy: required a KernelPolicy; got {self.policy!r}."
            )
        for name in ("common_ops", "native_ops", "forced", "forbidden"):
            value = getattr(self, name)
            if not isinstance(value, (frozenset, set, list, tuple)):
                raise CompileError(
                    f"KernelDispatch.{name}: required a set of names; got {value!r}."
                )
            object.__setattr__(self, name, frozenset(cast("set[str]", value)))
        named = sorted(self.common_ops | self.native_ops)
        if named:
            from rlx.ir.op import all_ops

            known = all_ops()
            unknown = [name for name in named if name not in known]
            if unknown:
                raise CompileError(
                    f"KernelDispatch: op {unknown[0]!r} is not registered."
                    f"{did_you_mean(unknown[0], known)}"
                )

    def policy_for(self, op_name: str) -> KernelPolicy:
        """The policy that holds for one op."""
        if op_name in self.native_ops:
            return KernelPolicy.FORCE_NATIVE
        if op_name in self.common_ops:
            return KernelPolicy.FORCE_COMMON
        return self.policy


_SPELLINGS = {
    **{policy.value: policy for policy in KernelPolicy},
    "common": KernelPolicy.FORCE_COMMON,
    "native": KernelPolicy.FORCE_NATIVE,
}
"""What ``RLX_KERNEL_DISPATCH`` may hold."""


def dispatch_from_env() -> KernelDispatch:
    """The dispatch that ``RLX_KERNEL_DISPATCH`` names: a policy's value, or nothing.

    ``common`` and ``native`` are RLX's short forms of ``force_common`` and ``force_native``.

    Raises:
        CompileError: the variable holds another text.
    """
    text = (env.var("RLX_KERNEL_DISPATCH") or "").lower().replace("-", "_")
    if not text:
        return KernelDispatch()
    if text not in _SPELLINGS:
        raise CompileError(
            f"RLX_KERNEL_DISPATCH: required one of {', '.join(_SPELLINGS)}; got {text!r}."
        )
    return KernelDispatch(policy=_SPELLINGS[text])


def claim_of(supported: SupportedOps | None) -> Callable[[Node], bool] | None:
    """The predicate on nodes that ``CompileOptions.supported_ops`` stands for.

    Args:
        supported: op names, a predicate, or None. An empty collection restricts nothing, as in
            RLX.

    Returns:
        Whether a node may be carried out as it is; None where every node may.

    Raises:
        CompileError: neither of these, or an unknown op name.
    """
    if supported is None:
        return None
    if callable(supported):
        return supported
    if isinstance(supported, str) or not isinstance(cast("object", supported), Collection):
        raise CompileError(
            "CompileOptions.supported_ops: a collection of op names or a predicate on nodes is "
            f"required; got {supported!r}."
        )
    names = frozenset(supported)
    if not names:
        return None
    from rlx.ir.op import all_ops

    known = all_ops()
    unknown = sorted(str(name) for name in names if name not in known)
    if unknown:
        raise CompileError(
            f"CompileOptions.supported_ops: op {unknown[0]!r} is not registered."
            f"{did_you_mean(unknown[0], known)}"
        )
    allowed = names | ALWAYS_SUPPORTED
    return lambda node: node.op.op_name in allowed
