"""A program: compiles StableHLO modules for an absent device, in a process of its own.

A vendor's compiler may abort, hang or take all memory; the process that asked lives on. Argument:
a folder with ``request.json`` and modules ``0.mlir``, ``1.mlir`` and so on. It leaves ``0.json``
for each, and ``0.hlo`` and ``0.bin`` where the module compiles and the program is asked for.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    """Compile the folder's modules from the first that is asked for, and write what came of it."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    number = int(request["first"])
    started = time.perf_counter()
    from rlx_xla._jax_compat import ahead  # what it imports reads the environment

    try:
        devices = ahead.compile_only_devices(
            request["platform"], request["topology"], request["options"]
        )
    except ahead.ERRORS as error:  # the compiler's answer; anything else ends this process
        _write(folder, number, {"unstarted": _said(error)})
        return
    about = {
        "devices": len(devices),
        "kind": str(devices[0].device_kind),
        "start_seconds": time.perf_counter() - started,
    }
    while (folder / f"{number}.mlir").is_file():
        text = (folder / f"{number}.mlir").read_text(encoding="utf-8")
        result: dict[str, Any] = dict(about)
        before = time.perf_counter()
        try:
            executable = ahead.compile_ahead(
                text, devices, request["partitions"], request["compiler_options"]
            )
            result["compile_seconds"] = time.perf_counter() - before
            if request["keep"]:
                found = ahead.describe(executable)
                (folder / f"{number}.hlo").write_text(found.pop("hlo", ""), encoding="utf-8")
                result |= found
                (folder / f"{number}.bin").write_bytes(executable.serialize())
        except ahead.ERRORS as error:
            result["error"] = _said(error)
        _write(folder, number, result)
        number += 1


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _write(folder: Path, number: int, result: dict[str, Any]) -> None:
    """Write a result whole: the one that asked looks for the file while this process runs."""
    half = folder / f"{number}.json.half"
    half.write_text(json.dumps(result), encoding="utf-8")
    half.rename(folder / f"{number}.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
