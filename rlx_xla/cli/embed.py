"""``rlx-xla embed``: texts to vectors, with the compiled MiniLM."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from rlx.errors import RunError
from rlx_xla.cli.group import Device, Json, Traceback
from rlx_xla.cli.progress import Steps

if TYPE_CHECKING:
    import numpy as np

BATCH = 32  # texts per call
SHOWN_VALUES = 6
TABLE_TEXTS = 10  # up to here the whole similarity table is shown
PAIR_TEXTS = 1000  # up to here the closest pairs are shown
SHOWN_PAIRS = 10


def embed(
    texts: Annotated[
        list[str],
        typer.Argument(
            help="Texts to embed. '-' stands for the lines of stdin (blank lines are left out).",
            metavar="TEXT…",
            show_default=False,
        ),
    ],
    as_json: Json = False,
    device: Device = "cpu",
    traceback: Traceback = False,
) -> None:
    """Embed texts with all-MiniLM-L6-v2: one unit vector of 384 numbers per text.

    Several texts are also compared: 1 means the same meaning, 0 unrelated.

    Example: rlx-xla embed "a cat" "a kitten"

    Example: cat lines.txt | rlx-xla embed --json -
    """
    texts = gather_texts(texts)
    vectors = embed_texts(texts, device=device, steps=Steps(quiet=as_json))
    if as_json:
        typer.echo(json.dumps({"texts": texts, "embeddings": vectors.tolist()}, allow_nan=False))
        return
    console = Console(highlight=False)
    console.print(vector_table(texts, vectors))
    if len(texts) > 1:
        print_similarity(console, texts, vectors)


def gather_texts(arguments: Sequence[str]) -> list[str]:
    """Return the texts of the arguments, with '-' replaced by the lines of stdin.

    Raises:
        typer.BadParameter: an argument is blank, or there is no text at all.
        RunError: stdin is not UTF-8.
    """
    texts: list[str] = []
    for position, argument in enumerate(arguments, start=1):
        if argument == "-":
            texts.extend(_stdin_lines())
        elif not argument.strip():
            raise typer.BadParameter(f"text {position} is empty; give a text with words in it.")
        else:
            texts.append(argument)
    if not texts:
        raise typer.BadParameter("stdin holds no text; pipe lines into it or give texts.")
    return texts


def _stdin_lines() -> list[str]:
    data = typer.get_binary_stream("stdin").read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RunError(
            f"embed [stdin]: stdin must be UTF-8 text; line {line} holds the byte "
            f"0x{data[error.start]:02x}. Convert it, for example with iconv."
        ) from error
    return [line.strip("\r") for line in text.split("\n") if line.strip()]


def require_model_libraries() -> None:
    """Check that flax is there, before the module of the model imports it.

    Raises:
        RunError: it is not installed; the message has the line that installs it.
    """
    if importlib.util.find_spec("flax") is None:
        raise RunError(
            "rlx-xla [library]: the model requires flax, which is not installed. "
            'Run: pip install "rlx-xla[models]"'
        )


def embed_texts(texts: list[str], *, device: str, steps: Steps) -> np.ndarray:
    """Return f32[len(texts), 384]: compiled once, run in batches of `BATCH` texts.

    Args:
        texts: at least one text; what is beyond the model's token limit is cut, with a note.
        device: a device name of `rlx.Session`.
        steps: shows the progress.
    """
    require_model_libraries()
    import numpy as np

    import rlx
    import rlx_xla
    from rlx_xla.models import minilm, minilm_tokenizer

    session = rlx.Session(device)
    tokenizer = steps.run("load tokenizer", minilm.load_tokenizer)
    counts = steps.run("tokenize", lambda: tokenizer.token_counts(texts))
    most = minilm_tokenizer.MAX_TOKENS
    for text, count in zip(texts, counts, strict=True):
        if count > most:
            steps.console.print(
                Text(
                    f"note: {shorten(text)!r} is longer than {most} tokens; the rest is left out."
                ),
                soft_wrap=True,
            )
    params = steps.run("load weights", minilm.load_params)
    # One shape for all batches, so that there is one compilation.
    rows, length = min(len(texts), BATCH), min(max(counts), most)
    ids, mask = tokenizer(texts, length=length)
    missing = -len(texts) % rows
    ids, mask = (np.pad(array, ((0, missing), (0, 0))) for array in (ids, mask))
    traced = steps.run(
        "trace", lambda: rlx_xla.trace(minilm.embed, params, ids[:rows], mask[:rows], params=0)
    )
    compiled = steps.run("compile", lambda: session.compile(traced))
    starts = track(
        range(0, len(ids), rows),
        description="embed",
        console=steps.console,
        transient=True,
        disable=len(ids) == rows,
    )
    parts = [np.asarray(compiled(ids[i : i + rows], mask[i : i + rows])) for i in starts]
    return np.concatenate(parts)[: len(texts)]


def shorten(text: str, width: int = 48) -> str:
    """Return the text on one line of at most `width` printable characters."""
    # Cut before the split: a huge text costs nothing.
    line = " ".join(text[: 4 * width].split())
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return line if len(line) <= width and len(text) <= 4 * width else line[: width - 1] + "…"


def vector_table(texts: Sequence[str], vectors: np.ndarray) -> Table:
    """Return the table of the first values and the norm of each vector."""
    import numpy as np

    table = Table(title=f"{len(texts)} × {vectors.shape[1]}", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("text", ratio=1)
    table.add_column(f"first {SHOWN_VALUES} values", no_wrap=True)
    table.add_column("norm", justify="right", no_wrap=True)
    for i, (text, vector) in enumerate(zip(texts, vectors, strict=True), start=1):
        values = " ".join(f"{value:.3f}" for value in vector[:SHOWN_VALUES])
        table.add_row(str(i), Text(shorten(text)), values, f"{np.linalg.norm(vector):.4f}")
    return table


def similarity_table(texts: Sequence[str], vectors: np.ndarray) -> Table:
    """Return the table of all cosine similarities."""
    similarity = vectors @ vectors.T
    table = Table(title="cosine similarity", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("text", ratio=1)
    for i in range(len(texts)):
        table.add_column(str(i + 1), justify="right", no_wrap=True)
    for i, text in enumerate(texts):
        cells = [
            Text(f"{value:.2f}", style="bold" if i != j and value >= 0.5 else "")
            for j, value in enumerate(similarity[i])
        ]
        table.add_row(str(i + 1), Text(shorten(text)), *cells)
    return table


def print_similarity(console: Console, texts: Sequence[str], vectors: np.ndarray) -> None:
    """Print all similarities of a few texts, the closest pairs of many."""
    import numpy as np

    count = len(texts)
    if count <= TABLE_TEXTS:
        console.print(similarity_table(texts, vectors))
        return
    if count > PAIR_TEXTS:
        console.print(f"{count} texts are too many to compare here; use --json.")
        return
    first, second = np.triu_indices(count, k=1)
    values = (vectors @ vectors.T)[first, second]
    table = Table(title=f"the {SHOWN_PAIRS} closest pairs", title_justify="left")
    table.add_column("similarity", justify="right", no_wrap=True)
    table.add_column("text", ratio=1)
    table.add_column("text", ratio=1)
    for k in np.argsort(-values, kind="stable")[:SHOWN_PAIRS]:
        i, j = int(first[k]), int(second[k])
        left, right = (Text(f"{n + 1}: {shorten(texts[n])}") for n in (i, j))
        table.add_row(f"{values[k]:.3f}", left, right)
    console.print(table)
