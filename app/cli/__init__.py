"""The command line. `main` runs it; each module beside `root` has the commands of one group.

A module of commands imports what `--help` needs and nothing else: each command imports what it runs when it is run, so
that `turnkeep --help` answers at once. `server` and `screens` are imported by commands only.
"""

from app.cli.root import cli, main

__all__ = ["cli", "main"]
