"""Every table of the installation: importing this module describes all of them in `METADATA`.

The migrations are compared with it. A capability's tables are described in its own modules, which are listed here and
nowhere else.
"""

from app.conversations import models as conversations
from app.core.tables import METADATA
from app.index import models as index
from app.memory import memory_models as memories
from app.memory import models as facts
from app.tenancy import models as tenancy

DESCRIBED = (tenancy, conversations, index, memories, facts)
__all__ = ["DESCRIBED", "METADATA"]
