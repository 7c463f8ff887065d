"""Run the command line as ``python -m rlx_xla.cli``."""

from rlx_xla.cli.main import app

app(prog_name="rlx-xla")
