"""How an implementation is chosen for a node: kernel, lowering rule or decomposition."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from typing import cast, final

from rlx.errors import CompileError, did_you_mean


@final
class KernelPolicy(enum.Enum):
    """RLX's dispatch policies.

    PREFER_NATIVE takes a kernel where one is supported; FORCE_COMMON takes no kernel at all;
    FORCE_NATIVE refuses to compile where a kernel exists for the op but cannot be used.
    """

    PREFER_NATIVE = "prefer_native"
    FORCE_COMMON = "force_common"
    FORCE_NATIVE = "force_native"


@final
@dataclass(frozen=True, kw_only=True)
class KernelDispatch:
    """Which implementations may be chosen.

    Attributes:
        policy: the rule for every op that is not named below.
        common_ops: names of ops that take no kernel.
        native_ops: names of ops that must take a kernel.
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
        if op_name in self.common_ops:
            return KernelPolicy.FORCE_COMMON
        if op_name in self.native_ops:
            return KernelPolicy.FORCE_NATIVE
        return self.policy


def dispatch_from_env() -> KernelDispatch:
    """The dispatch that ``RLX_KERNEL_DISPATCH`` names: a policy's value, or nothing.

    Raises:
        CompileError: the variable holds another text.
    """
    text = os.environ.get("RLX_KERNEL_DISPATCH", "").strip().lower().replace("-", "_")
    if not text:
        return KernelDispatch()
    known = [p.value for p in KernelPolicy]
    if text not in known:
        raise CompileError(
            f"RLX_KERNEL_DISPATCH: required one of {', '.join(known)}; got {text!r}."
        )
    return KernelDispatch(policy=KernelPolicy(text))
