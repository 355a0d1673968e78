"""Commands that run the service: `serve` and `worker`.

Public API: `commands`. `server` has what one process runs; `supervisor` starts several processes on one port, without
the code of the service in its own memory.
"""

from app.cli.serving.commands import commands

__all__ = ["commands"]
