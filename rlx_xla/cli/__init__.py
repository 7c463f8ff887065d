"""The command line ``rlx-xla``: one file per command, put together in `main`."""

import importlib.util

# The command's entry point imports this first, so a plain install ends in one line here.
MISSING = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
if MISSING:
    raise SystemExit(
        f"error: rlx-xla [library]: the command line requires typer and rich; missing: "
        f'{", ".join(MISSING)}. Run: pip install "rlx-xla[models]"'
    )
