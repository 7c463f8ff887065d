"""What a process of its own does: runs StableHLO's reference interpreter on modules.

The interpreter ends the process where it lacks an op.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.mlir import ir, stablehlo


def main(folder: Path, number: int) -> None:
    """Run a folder's modules from a number on, until there is no further one.

    Args:
        folder: has ``N.mlir`` and ``N.npz`` (arrays ``0``, ``1``, …). ``N.out.npz`` is left, or
            ``N.error`` where the interpreter refuses.
        number: the first.
    """
    while (folder / f"{number}.mlir").is_file():
        text = (folder / f"{number}.mlir").read_text(encoding="utf-8")
        with np.load(folder / f"{number}.npz") as file:
            arrays = [file[str(i)] for i in range(len(file.files))]
        try:
            results = run(text, arrays)
        except (ir.MLIRError, ValueError, TypeError, RuntimeError) as error:
            (folder / f"{number}.error").write_text(str(error)[:2000], encoding="utf-8")
        else:
            held: Any = {str(i): result for i, result in enumerate(results)}
            np.savez(folder / f"{number}.out.npz", **held)
        number += 1


def run(text: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Results of one module; dtypes are those that NumPy has itself."""
    context = mlir.new_context()
    with context, ir.Location.unknown():
        module = mlir.parse_module(text, context)
        results: Any = stablehlo.eval_module(module, [mlir.dense_elements(a) for a in arrays])
        types = mlir.main_types(module)[1]
        return [
            np.array(r).astype(dtype).reshape(shape)
            for r, (dtype, shape) in zip(results, types, strict=True)
        ]
