"""Every table of the installation: importing this module describes all of them in `METADATA`.

The migrations are compared with it. A capability's tables are described in its own modules, which are listed here and
nowhere else.
"""

from app.audit import tables as audit
from app.conversations import tables as conversations
from app.core.database.metadata import METADATA
from app.governance import tables as governance
from app.index import tables as index
from app.memory.facts import tables as facts
from app.memory.longterm import tables as memories
from app.operations import tables as operations
from app.tenancy import tables as tenancy
from app.transfer import tables as transfer
from app.webhooks import tables as webhooks

DESCRIBED = (audit, tenancy, operations, conversations, index, memories, facts, governance, transfer, webhooks)
__all__ = ["DESCRIBED", "METADATA"]
