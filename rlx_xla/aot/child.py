"""A program: compiles one StableHLO module for an absent device, in a process of its own.

A vendor's compiler may abort, hang or take all memory; the process that asked lives on. Argument:
a folder with ``request.json`` and ``module.mlir``. It leaves ``result.json`` and, when the module
compiles, ``module.hlo`` and ``executable.bin``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(folder: Path) -> None:
    """Compile the folder's module and write what came of it."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    started = time.perf_counter()
    from rlx_xla._jax_compat import ahead  # what it imports reads the environment

    result: dict[str, object] = {}
    try:
        devices = ahead.compile_only_devices(
            request["platform"], request["topology"], request["options"]
        )
        result["devices"] = len(devices)
        result["kind"] = str(devices[0].device_kind)
        result["start_seconds"] = time.perf_counter() - started
        text = (folder / "module.mlir").read_text(encoding="utf-8")
        before = time.perf_counter()
        executable = ahead.compile_ahead(
            text, devices, request["partitions"], request["compiler_options"]
        )
        result["compile_seconds"] = time.perf_counter() - before
        found = ahead.describe(executable)
        (folder / "module.hlo").write_text(found.pop("hlo", ""), encoding="utf-8")
        result |= found
        (folder / "executable.bin").write_bytes(executable.serialize())
    except ahead.ERRORS as error:  # the compiler's answer; anything else ends this process
        result["error"] = f"{type(error).__name__}: {error}"
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
