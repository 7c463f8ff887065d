"""Portable programs: versions of StableHLO by age, modules for several platforms, JAX's file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as _export

from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.jaxpr import enable_x64
from rlx_xla._jax_compat.mlir import func, ir, stablehlo

_AGES = {4: "WEEK_4", 12: "WEEK_12"}
PLATFORM_INDEX = "_platform_index"


def version_of_age(weeks: int) -> str:
    """The version of StableHLO that readers take which are at most so old: 4 or 12 weeks."""
    requirement = getattr(stablehlo.StablehloCompatibilityRequirement, _AGES[weeks])
    return str(stablehlo.get_version_from_compatibility_requirement(requirement))


def choose_by_index(modules: Sequence[ir.Module], names: Sequence[str], title: str) -> ir.Module:
    """A module that takes a platform's index first, and runs that module's ``main``.

    Args:
        modules: of one context, with the same types of ``main``; one for all indices, or one for
            each. They are consumed.
        names: of the arguments of ``main``.
        title: the module's name.
    """
    context = modules[0].context
    first = mlir.main_function(modules[0]).type
    inputs, results = list(first.inputs), list(first.results)
    with context, ir.Location.unknown():
        target = ir.Module.create()
        target.operation.attributes["sym_name"] = ir.StringAttr.get(title)
        made = [
            mlir.merge_module(module, target, f"program_{i}") for i, module in enumerate(modules)
        ]
        index = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        with ir.InsertionPoint(target.body):
            main = func.FuncOp("main", ir.FunctionType.get([index, *inputs], results))
        main.attributes["sym_visibility"] = ir.StringAttr.get("public")
        main.arg_attrs = [
            ir.DictAttr.get({"jax.global_constant": ir.StringAttr.get(PLATFORM_INDEX)}),
            *(ir.DictAttr.get({"jax.arg_info": ir.StringAttr.get(name)}) for name in names),
        ]
        block = main.add_entry_block()
        chosen, *arguments = block.arguments

        def call(name: str) -> Any:
            return func.CallOp(results, ir.FlatSymbolRefAttr.get(name), arguments).results

        with ir.InsertionPoint(block):
            if len(made) == 1:
                func.return_(list(call(made[0])))
            else:
                case = ir.Operation.create(
                    "stablehlo.case", results=results, operands=[chosen], regions=len(made)
                )
                for region, name in zip(case.regions, made, strict=True):
                    with ir.InsertionPoint(region.blocks.append()):
                        ir.Operation.create("stablehlo.return", operands=list(call(name)))
                func.return_(list(case.results))
    target.operation.verify()
    return target


def exported_from(
    artifact: bytes,
    name: str,
    inputs: Sequence[tuple[np.dtype[Any], tuple[int, ...]]],
    outputs: Sequence[tuple[np.dtype[Any], tuple[int, ...]]],
    platforms: Sequence[str],
) -> _export.Exported:
    """JAX's object of an artifact of ours: flat arguments, a list of results.

    Args:
        artifact: portable; with several platforms their index is the first argument of ``main``.
        name: of the function.
        inputs: dtype and shape of each argument.
        outputs: the same of each result.
        platforms: in the order of the index.
    """

    def template(*arguments: Any) -> list[Any]:
        del arguments
        return [jnp.zeros(shape, dtype) for dtype, shape in outputs]

    shapes = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in inputs]
    with enable_x64():
        made = _export.export(jax.jit(template, keep_unused=True), platforms=tuple(platforms))(
            *shapes
        )
    return dataclasses.replace(
        made,
        fun_name=name,
        mlir_module_serialized=artifact,
        module_kept_var_idx=tuple(range(len(inputs))),
    )
