"""Writes the README's tables of ops and primitives from the registries.

``python -m tests.docs.readme`` prints them; with ``--write`` they go into the README.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Mapping

from rlx.ir import serialize
from rlx.ir import text as text_module
from rlx.ir.op import all_ops, existing_families
from rlx_xla.lowering.registry import PLATFORMS, coverage
from rlx_xla.tracing import registry as tracing
from tests.conformance.harness.table import table as harness_table
from tests.conformance.jax2onnx.table import table as jax2onnx_table
from tests.conformance.targets.results import table as targets_table
from tests.docs.markdown import README, table, with_generated

OPS_PACKAGE = "rlx.ops."
RULES_PACKAGE = "rlx_xla.tracing.primitives."


def ops() -> str:
    """Family by family, the ops with how each platform carries them out; ours alone."""
    covered = coverage()
    classes = all_ops()
    rows: list[list[str]] = []
    count, missing = 0, 0
    for family in existing_families():
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, cls in classes.items():
            if cls.__module__.removeprefix(OPS_PACKAGE).split(".")[0] != family:
                continue
            if not cls.__module__.startswith(OPS_PACKAGE):
                continue
            cells = tuple(_shown(covered[name][platform]) for platform in PLATFORMS)
            groups.setdefault(cells, []).append(name)
            count += 1
            missing += "" in cells
        for cells, names in groups.items():
            rows.append([family, " ".join(f"`{n}`" for n in names), *cells])
    head = (
        f"{count} ops; {missing} of them lack a platform (an empty cell). `rule`: a lowering rule. "
        "`decomposition`: made of other ops.\n`kernel`: an RLX kernel, taken where it supports the "
        "node; what follows it is used elsewhere.\n"
    )
    return f"{head}\n{table(['family', 'ops', *PLATFORMS], rows)}"


def primitives() -> str:
    """Family by family, the JAX primitives that become ops; ours alone."""
    groups: dict[str, list[str]] = {}
    for name in tracing.modelled():
        rule = tracing.rule_for(name)
        module = "" if rule is None else rule.__module__
        if module.startswith(RULES_PACKAGE):
            family = module.removeprefix(RULES_PACKAGE).split(".")[0]
            groups.setdefault(family, []).append(f"`{name}`")
    count = sum(map(len, groups.values()))
    rows = [[family, " ".join(names)] for family, names in sorted(groups.items())]
    head = f"{count} primitives, under the names they have in any supported JAX version.\n"
    return f"{head}\n{table(['family', 'primitives'], rows)}"


def file_format() -> str:
    """What the module that writes containers says about them."""
    return _markdown(_without_title(inspect.getdoc(serialize) or ""))


def text_format() -> str:
    """What the module that prints graphs says about their text."""
    return _markdown(_without_title(inspect.getdoc(text_module) or ""))


TABLES: Mapping[str, Callable[[], str]] = {
    "ops": ops,
    "primitives": primitives,
    "text": text_format,
    "file format": file_format,
    "targets": targets_table,
    "harness": harness_table,
    "jax2onnx": jax2onnx_table,
}


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.readme", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="put them into the README")
    write = parser.parse_args().write
    text = README.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        content = make()
        if not write:
            print(content, end="\n\n")
        text = with_generated(text, name, content)
    if write:
        README.write_text(text, encoding="utf-8")


def _without_title(doc: str) -> str:
    return doc.partition("\n")[2].strip()


def _markdown(doc: str) -> str:
    """A docstring with its table and its literals as Markdown has them."""
    doc = re.sub(r"(?<!`)``(?!`)", "`", doc)
    return re.sub(r"^(=+) +=+\n(.*?)\n\1 +=+\n(.*?)\n\1 +=+$", _table, doc, flags=re.M | re.S)


def _table(found: re.Match[str]) -> str:
    width = len(found.group(1))
    rows: list[list[str]] = []
    for line in f"{found.group(2)}\n{found.group(3)}".splitlines():
        first, second = line[:width].strip(), line[width:].strip()
        if first:
            rows.append([first, second])
        else:  # the cell goes on
            rows[-1][1] += f" {second}"
    return table(rows[0], rows[1:])


def _shown(how: str) -> str:
    return "" if how.startswith("missing") else how.replace("; ", ", else ")


if __name__ == "__main__":
    main()
