"""What the generators and tests need of the README: its text, sections, code blocks, markers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def section(text: str, heading: str) -> str:
    """Return what stands under a heading, up to the next one of its level or a higher one.

    Args:
        text: the page.
        heading: the whole line, ``"## First example"``.

    Raises:
        ValueError: the page has no such heading.
    """
    level = len(heading) - len(heading.lstrip("#"))
    lines = _without_code(text).splitlines()
    if heading not in lines:
        raise ValueError(f"README: a heading {heading!r} is required; there is none.")
    start = lines.index(heading) + 1
    ends = (i for i, line in enumerate(lines[start:], start) if re.match(rf"#{{1,{level}}} ", line))
    end = next(ends, len(lines))
    return "\n".join(text.splitlines()[start:end])


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def generated(text: str, name: str) -> str:
    """Return what stands between the markers of a generated part.

    Raises:
        ValueError: the markers are not there, or not once.
    """
    return _marked(text, name).group(2)


def with_generated(text: str, name: str, content: str) -> str:
    """Return the page with a generated part replaced.

    Raises:
        ValueError: the markers are not there, or not once.
    """
    found = _marked(text, name)
    return text[: found.start(2)] + f"\n{content}\n" + text[found.end(2) :]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column is left-aligned, as is every other."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _marked(text: str, name: str) -> re.Match[str]:
    found = list(re.finditer(rf"(<!-- generated: {name} -->)(.*?)<!-- end -->", text, re.DOTALL))
    if len(found) != 1:
        raise ValueError(
            f"README: the markers of {name!r} are required once; found {len(found)} times."
        )
    return found[0]


def _without_code(text: str) -> str:
    """Blank the code blocks, in which a line may begin as a heading does."""
    return re.sub(
        r"^```.*?^```$",
        lambda m: "\n" * m.group().count("\n"),
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
