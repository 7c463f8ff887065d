"""What the compilers said of every program: written by a full run, read for the README's table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from tests.docs.markdown import table as markdown_table

RESULTS = Path(__file__).with_name("results.json")


def write(
    found: Mapping[str, Mapping[str, str]], counts: Mapping[str, int], versions: Mapping[str, str]
) -> None:
    """Keep the refusals of some targets; those of others stay.

    Args:
        found: target → ``op dtype`` → why it is not compiled.
        counts: target → programs that were tried.
        versions: target → the compiler's version.
    """
    kept = read() if RESULTS.is_file() else {}
    for target, refused in found.items():
        kept[target] = {
            "compiler": versions[target],
            "programs": counts[target],
            "refused": dict(sorted(refused.items())),
        }
    text = json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False)
    RESULTS.write_text(text + "\n", encoding="utf-8")


def read() -> dict[str, dict[str, object]]:
    """Target → its compiler, the number of programs, and refusals by ``op dtype``."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


_KNOWN = (
    (r"INT2 is not supported|int2 type usage|span_size|^exit code -4$", "no two-bit integers here"),
    (
        r"X\{64\|128\}|xprecision|Layout::Equal|IsTuple|tuple_shapes|s32\[\d*\] and u32",
        "64-bit numbers are emulated, and not in this op",
    ),
    (r"cusolverGetVersion", "JAX asks cuSOLVER for its version, which is not there"),
    (r"operand type for FFT", "no FFT of 64-bit parts"),
    (r"LuDecomposition", "LU of 32-bit parts only"),
    (r"only supported in SPMD mode", "needs more than one device"),
    (r"less than 2 inactive dims", "windows of at most two axes fewer than the operand has"),
    (r"unimplemented case while compiling clamp", "no clamp of bool"),
)
"""What compilers say in their own terms, and what it means."""


def reason_of(message: str) -> str:
    """A compiler's message in short: without the kind of error, places and numbers."""
    for pattern, words in _KNOWN:
        if re.search(pattern, message):
            return words
    text = re.sub(r"^\w+(?:Error|Exception): (?:[A-Z_]+: )?", "", message.split("\n")[0])
    text = re.sub(r"lowering of \w+ at [^:]+:\d+: ", "", text)
    text = re.sub(r"\b[FE]\d{4} [\d:.]+ +\d+ [\w./-]+:\d+\] ", "", text)  # a log's head
    text = re.sub(r"; (?:WARNING|Failed to find host bounds).*|:? @ 0x[0-9a-f]+.*", "", text)
    text = re.sub(r"%?[\w.-]+ = .*", "…", text)  # the instruction itself
    return " ".join(text.split())[:140].strip()


def table() -> str:
    """The README's table of what a compiler does not take."""
    everything = read()
    lines = [
        f"{name}: {entry['programs']:,} pairs of an op and a dtype, {len(_refused(entry)):,} of "
        f"them not compiled ({entry['compiler']})"
        for name, entry in everything.items()
    ]
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, entry in everything.items():
        for key, reason in _refused(entry).items():
            op, _, dtype = key.partition(" ")
            rows.setdefault((name, reason), {}).setdefault(op, []).append(dtype)
    shown = [
        [name.split(":")[1], reason, "; ".join(f"`{op}` {', '.join(d)}" for op, d in ops.items())]
        for (name, reason), ops in rows.items()
    ]
    shown.sort(key=lambda row: (row[0], -len(row[2])))
    heads = markdown_table(["target", "why", "ops and dtypes"], shown)
    return "\n".join([*(f"* {line}" for line in lines), "", heads])


def refused_for(target: str) -> dict[str, str]:
    """``op dtype`` → why, for one target; nothing for one of which no full run is kept."""
    return _refused(read().get(target, {"refused": {}}))


def refused_anywhere() -> set[str]:
    """``op dtype`` that some target refuses."""
    known = read().values() if RESULTS.is_file() else ()
    return {key for entry in known for key in _refused(entry)}


def _refused(entry: Mapping[str, object]) -> dict[str, str]:
    refused = entry["refused"]
    assert isinstance(refused, dict)
    return refused
