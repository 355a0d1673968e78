"""The command line. `main` runs it; each module beside `root` has the commands of one group.

A module of commands imports only what `--help` needs; each command imports its code when it runs, so that `turnkeep
--help` is fast. Only commands import `serving.server` and `screens`.
"""

from app.cli.root import cli, main

__all__ = ["cli", "main"]
