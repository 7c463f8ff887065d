"""The one place where a node's implementation is chosen.

Order: forced by option → highest priority that is supported → lowering rule → decomposition →
an error that lists every refusal.
"""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import entry_points

from rlx.errors import KernelError, RegistryError, did_you_mean
from rlx.ir.graph import Node
from rlx.ir.op import Op
from rlx.ir.plan import Implementation, Refusal, Refusals
from rlx.options.dispatch import KernelDispatch, KernelPolicy
from rlx_xla.kernels.base import AbstractKernel, Refused
from rlx_xla.lowering.registry import rule_for

_KERNELS: dict[str, AbstractKernel] = {}
_BY_OP: dict[type[Op], list[AbstractKernel]] = {}
_loaded = False


def register_kernel(kernel: AbstractKernel) -> AbstractKernel:
    """Make a kernel known under its name.

    Raises:
        RegistryError: another kernel has the name.
    """
    other = _KERNELS.get(kernel.name)
    if other is not None and other is not kernel:
        raise RegistryError(
            f"register_kernel: the name {kernel.name!r} is taken by a kernel for "
            f"{other.op.op_name!r}; the second one is for {kernel.op.op_name!r}."
        )
    if other is None:
        _KERNELS[kernel.name] = kernel
        _BY_OP.setdefault(kernel.op, []).append(kernel)
    return kernel


def kernels_for(op: type[Op], platform: str) -> list[AbstractKernel]:
    """Kernels for an op on a platform, highest priority first."""
    load_kernels()
    found = [k for k in _BY_OP.get(op, []) if platform in k.platforms]
    return sorted(found, key=lambda k: (-k.priority, k.name))


def all_kernels() -> list[AbstractKernel]:
    """Every registered kernel, by name."""
    load_kernels()
    return sorted(_KERNELS.values(), key=lambda k: k.name)


def load_kernels() -> None:
    """Import our kernel library and the modules of the entry-point group ``rlx_xla.kernels``."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    package = importlib.import_module("rlx_xla.kernels.library")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for point in entry_points(group="rlx_xla.kernels"):
        for kernel in point.load()():
            register_kernel(kernel)


def choose(node: Node, platform: str, dispatch: KernelDispatch) -> Implementation | Refusals:
    """Choose how a node is carried out.

    Raises:
        KernelError: an option names an unknown kernel, or demands a kernel that refuses.
    """
    op = node.op
    kernels = kernels_for(type(op), platform)
    policy = dispatch.policy_for(op.op_name)
    refused: list[Refusal] = []
    if dispatch.forced or dispatch.forbidden:
        _check_names(dispatch)
    if kernels:
        kernels = sorted(kernels, key=lambda k: k.name not in dispatch.forced)
        types = [v.type for v in node.inputs]
        for kernel in kernels:
            forced = kernel.name in dispatch.forced
            if kernel.name in dispatch.forbidden:
                refused.append(Refusal(kernel.name, "forbidden by kernel_dispatch"))
                continue
            if policy is KernelPolicy.FORCE_COMMON and not forced:
                refused.append(Refusal(kernel.name, "kernel_dispatch forces common lowering"))
                continue
            verdict = kernel.supports(op, types, platform)
            if not isinstance(verdict, Refused):
                return Implementation("kernel", kernel.name, kernel.lower, tuple(refused))
            refused.append(Refusal(kernel.name, verdict.reason))
            if forced:
                raise _demanded(node, platform, refused)
        if policy is KernelPolicy.FORCE_NATIVE:
            raise _demanded(node, platform, refused)
    rule = rule_for(type(op), platform)
    if rule is not None:
        return Implementation("rule", op.op_name, rule, tuple(refused))
    if op.has_decompose:
        return Implementation("decomposition", op.op_name, None, tuple(refused))
    return Refusals(tuple(refused))


def _check_names(dispatch: KernelDispatch) -> None:
    for name in (*dispatch.forced, *dispatch.forbidden):
        if name not in _KERNELS:
            raise KernelError(
                f"kernel_dispatch: kernel {name!r} is not registered; kernels are "
                f"{', '.join(sorted(_KERNELS))}.{did_you_mean(name, _KERNELS)}"
            )


def _demanded(node: Node, platform: str, refused: list[Refusal]) -> KernelError:
    where = f" at {node.location}" if node.location else ""
    reasons = "".join(f"\n  {r}" for r in refused)
    return KernelError(
        f"kernel_dispatch: a kernel is required for {node.op.op_name!r} on {platform!r}{where}; "
        f"every one refuses:{reasons}\nAllow the lowering rule, or change what the reasons name."
    )
