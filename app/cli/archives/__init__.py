"""Commands for exports and imports: `export`, `import` and `convert`.

Public API: `commands`. Both transfers are clients of a running server; nothing here reads the database.
"""

from app.cli.archives.commands import commands

__all__ = ["commands"]
