"""The one place where a node's implementation is chosen.

Order: forced by option → highest priority that is supported → lowering rule → decomposition →
refusals, which ``legalize`` puts into one error with those of every other node.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points

from rlx.errors import KernelError, RegistryError, did_you_mean
from rlx.ir.graph import Node
from rlx.ir.op import Op
from rlx.ir.plan import Implementation, Refusal, Refusals
from rlx.options.dispatch import KernelDispatch, KernelPolicy
from rlx.types import TensorType
from rlx_xla.kernels.base import AbstractKernel, Refused
from rlx_xla.lowering.registry import rule_for, rule_refusal
from rlx_xla.rule_table import Rule

_KERNELS: dict[str, AbstractKernel] = {}
_BY_OP: dict[type[Op], list[AbstractKernel]] = {}
_OTHERS: set[str] = set()  # names that no module of this project registered
_loaded = False


def register_kernel(kernel: AbstractKernel) -> AbstractKernel:
    """Make a kernel known under its name; an equal one may come again.

    Raises:
        RegistryError: another kernel has the name, or this is no kernel.
    """
    if not isinstance(kernel, AbstractKernel):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RegistryError(
            "register_kernel: an instance of rlx_xla.kernels.base.AbstractKernel is required; got "
            f"{kernel!r}."
        )
    other = _KERNELS.get(kernel.name)
    if other is not None and other != kernel:
        raise RegistryError(
            f"register_kernel: the name {kernel.name!r} is taken by {_described(other)}; the "
            f"second one is {_described(kernel)}. Rename one."
        )
    if other is None:
        _KERNELS[kernel.name] = kernel
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if caller == __name__ or caller.partition(".")[0] != "rlx_xla":  # here: of entry points
            _OTHERS.add(kernel.name)
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


def other_kernels() -> list[AbstractKernel]:
    """Kernels that other packages brought or registered so far, by name.

    Our own library is imported only where an entry point brings kernels.
    """
    if entry_points(group="rlx_xla.kernels"):
        load_kernels()
    return [_KERNELS[name] for name in sorted(_OTHERS.intersection(_KERNELS))]


def load_kernels() -> None:
    """Import our kernel library, and ask the entry points ``rlx_xla.kernels`` for theirs.

    Such an entry point names a function without arguments that returns kernels.

    Raises:
        RegistryError: two kernels have one name, or a package does not load.
    """
    global _loaded
    if _loaded:
        return
    package = importlib.import_module("rlx_xla.kernels.library")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for point in entry_points(group="rlx_xla.kernels"):
        for kernel in _brought(point):
            register_kernel(kernel)
    _loaded = True


def _brought(point: EntryPoint) -> Iterable[AbstractKernel]:
    try:
        bring = point.load()
    except (ImportError, AttributeError) as error:
        owner = point.dist.name if point.dist is not None else "an unknown package"
        raise RegistryError(
            f"kernels of {owner}: {point.value} does not load: {error}. Reinstall or uninstall "
            "that package."
        ) from error
    return bring()


def _described(kernel: AbstractKernel) -> str:
    cls = type(kernel)
    return f"a kernel for {kernel.op.op_name!r} ({cls.__module__}.{cls.__qualname__})"


def choose(node: Node, platform: str, dispatch: KernelDispatch) -> Implementation | Refusals:
    """Choose how a node is carried out.

    Returns:
        The choice; refusals where nothing carries the node out, or where an option demands a
        kernel and every one refuses. A kernel of another platform refuses with that reason.

    Raises:
        KernelError: an option names an unknown kernel.
    """
    load_kernels()
    if dispatch.forced or dispatch.forbidden:
        _check_names(dispatch, platform)
    op = node.op
    refused: list[Refusal] = []
    kernels = _BY_OP.get(type(op), ())
    types = [v.type for v in node.inputs]
    if kernels:
        policy = dispatch.policy_for(op.op_name)
        for kernel in sorted(kernels, key=lambda k: _rank(k, platform, dispatch)):
            forced = kernel.name in dispatch.forced
            if policy is KernelPolicy.FORCE_COMMON and not forced and platform in kernel.platforms:
                refused.append(Refusal(kernel.name, "kernel_dispatch forces common lowering"))
                continue
            reason = _refusal(kernel, op, types, platform, dispatch)
            if reason is None:
                return Implementation("kernel", kernel.name, kernel.lower, tuple(refused))
            refused.append(Refusal(kernel.name, reason))
            if forced:
                return Refusals(tuple(refused), demanded=True)
        if policy is KernelPolicy.FORCE_NATIVE:
            return Refusals(tuple(refused), demanded=True)
    elif op.op_name in dispatch.native_ops:
        reason = f"no kernel for {op.op_name!r} is registered on any platform"
        return Refusals((Refusal("kernel_dispatch", reason),), demanded=True)
    rule = rule_for(type(op), platform)
    if rule is not None:
        reason = rule_refusal(op, types, platform)
        if reason is None:
            if not refused:
                return _by_rule(op.op_name, rule)
            return Implementation("rule", op.op_name, rule, tuple(refused))
        refused.append(Refusal("rule", reason))
    if op.has_decompose:
        return Implementation("decomposition", op.op_name, None, tuple(refused))
    return Refusals(tuple(refused))


@functools.lru_cache(maxsize=1024)
def _by_rule(name: str, rule: Rule) -> Implementation:
    """The choice of a rule where nothing was refused: the same for every node of an op."""
    return Implementation("rule", name, rule)


def _rank(kernel: AbstractKernel, platform: str, dispatch: KernelDispatch) -> tuple[object, ...]:
    """Forced ones first, then those of the platform by priority."""
    elsewhere = platform not in kernel.platforms
    return (kernel.name not in dispatch.forced, elsewhere, -kernel.priority, kernel.name)


def _refusal(
    kernel: AbstractKernel,
    op: Op,
    types: Sequence[TensorType],
    platform: str,
    dispatch: KernelDispatch,
) -> str | None:
    """Why a kernel does not carry out an op; None where it does."""
    if kernel.name in dispatch.forbidden:
        return "forbidden by kernel_dispatch"
    if platform not in kernel.platforms:
        return f"registered for {', '.join(kernel.platforms)}; the platform asked is {platform}"
    if kernel.unproven is not None and kernel.name not in dispatch.forced:
        return f"taken only where kernel_dispatch forces it: {kernel.unproven}"
    verdict = kernel.supports(op, types, platform)
    return verdict.reason if isinstance(verdict, Refused) else None


def _check_names(dispatch: KernelDispatch, platform: str) -> None:
    for name in sorted(dispatch.forced | dispatch.forbidden):
        if name not in _KERNELS:
            listing = ", ".join(f"{k.name} ({', '.join(k.platforms)})" for k in _KERNELS.values())
            raise KernelError(
                f"kernel_dispatch: kernel {name!r} is not registered (asked for on {platform!r}); "
                f"kernels are {listing or 'none'}.{did_you_mean(name, _KERNELS)}"
            )
