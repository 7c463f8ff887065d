"""A second opinion: StableHLO's own reference interpreter, which shares no code with XLA.

It is slow (about a million multiplications in a second) and lacks ops; where it does, it ends its
process, so it has one of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from rlx.dtypes import DType
from rlx.errors import CompileError, RunError
from rlx.ir.graph import Graph, Value
from rlx.ir.rewrite import splice
from rlx.ops.convert import Convert
from rlx.ops.io import Input
from rlx_xla.lowering.text import stablehlo

_SECONDS = 300.0
_START = """
import json, sys
from pathlib import Path
sys.path[:] = json.loads(sys.argv[1])
from rlx_xla._jax_compat.reference_child import main
main(Path(sys.argv[2]), int(sys.argv[3]))
"""


@final
@dataclass(frozen=True)
class Unavailable:
    """Why the reference interpreter gives no result."""

    reason: str


def reference_run(graph: Any, *inputs: Any) -> list[np.ndarray[Any, Any]]:
    """Run a graph in StableHLO's reference interpreter.

    Args:
        graph: a static Graph, or a Traced. Its params come after its inputs.
        inputs: arrays for inputs, then params.

    Raises:
        RunError: the number of arrays is wrong.
        LoweringError: the graph has no portable form.
        CompileError: the interpreter lacks an op or a dtype of it.
    """
    (result,) = reference_runs([(graph, inputs)])
    if isinstance(result, Unavailable):
        raise CompileError(
            f"reference_run: StableHLO's interpreter is required to run the graph; {result.reason}."
            " Compare with rlx.interpret instead."
        )
    return result


def reference_runs(
    programs: Sequence[tuple[Any, Sequence[Any]]], *, timeout: float = _SECONDS
) -> list[list[np.ndarray[Any, Any]] | Unavailable]:
    """Run many graphs, in as few processes as can be.

    Args:
        programs: graphs with arrays for their inputs, then params.
        timeout: seconds for each process.
    """
    results: list[list[np.ndarray[Any, Any]] | Unavailable] = []
    with tempfile.TemporaryDirectory(prefix="rlx-reference-") as name:
        folder = Path(name)
        graphs = [getattr(graph, "graph", graph) for graph, _ in programs]
        for number, (graph, (_, arrays)) in enumerate(zip(graphs, programs, strict=True)):
            _write(folder, number, graph, arrays)
        while len(results) < len(programs):
            ended = _run(folder, len(results), timeout)
            while len(results) < len(programs):
                found = _read(folder, len(results), graphs[len(results)])
                if found is None:
                    results.append(Unavailable(ended))
                    break
                results.append(found)
    return results


def _write(folder: Path, number: int, graph: Graph, arrays: Sequence[Any]) -> None:
    leaves = (*graph.inputs, *graph.params)
    if len(arrays) != len(leaves):
        raise RunError(
            f"reference_run {graph.name}: {len(leaves)} arrays are required, for inputs and then "
            f"params; got {len(arrays)}."
        )
    plain = _plain(graph)
    text = stablehlo(plain, portable=True)
    (folder / f"{number}.mlir").write_text(text, encoding="utf-8")
    held: Any = {
        str(i): np.asarray(a).astype(v.type.dtype.numpy)
        for i, (a, v) in enumerate(zip(arrays, plain.inputs, strict=True))
    }
    np.savez(folder / f"{number}.npz", **held)


def _plain(graph: Graph) -> Graph:
    """The graph between conversions, so that NumPy has every dtype of its inputs and outputs."""
    inputs: list[Value] = []
    taken: list[Value] = []
    for leaf in (*graph.inputs, *graph.params):
        dtype = leaf.type.dtype
        held: Value = Input(name=leaf.name, dtype=_held(dtype), shape=leaf.type.shape)()
        inputs.append(held)
        taken.append(held if held.type == leaf.type else Convert(dtype=dtype)(held))
    results = splice(graph, taken)[: len(graph.outputs)]
    outputs: list[Value] = []
    for value in results:
        wider = _held(value.type.dtype)
        outputs.append(value if wider is value.type.dtype else Convert(dtype=wider)(value))
    return Graph(inputs, (), outputs, name=graph.name)


def _held(dtype: DType) -> DType:
    """What values cross the process boundary as, exactly: a dtype that NumPy has itself."""
    if dtype.numpy.isbuiltin == 1:
        return dtype
    if dtype.is_float:
        return DType.F32
    return DType.U8 if dtype.label.startswith("u") else DType.I8


def _run(folder: Path, number: int, timeout: float) -> str:
    """Run modules from a number on; say how the process ended."""
    command = [sys.executable, "-c", _START, json.dumps(sys.path), str(folder), str(number)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout, check=False, cwd=folder
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {timeout:.0f} s"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    said = next((line for line in lines if "LLVM ERROR" in line or "what()" in line), "")
    return f"its process ended with code {done.returncode}: {(said or ' '.join(lines[-1:]))[:300]}"


def _read(
    folder: Path, number: int, graph: Graph
) -> list[np.ndarray[Any, Any]] | Unavailable | None:
    refused = folder / f"{number}.error"
    if refused.is_file():
        return Unavailable(" ".join(refused.read_text(encoding="utf-8").split())[:300])
    path = folder / f"{number}.out.npz"
    if not path.is_file():
        return None
    with np.load(path) as file:
        return [
            file[str(i)].astype(value.type.dtype.numpy) for i, value in enumerate(graph.outputs)
        ]
