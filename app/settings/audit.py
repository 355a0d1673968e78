"""Settings of the audit."""

from typing import Annotated

from pydantic import Field

from app.settings.group import SettingsGroup
from app.settings.kinds import Positive


class AuditSettings(SettingsGroup):
    """When audit entries are written and sealed, and how long they are kept."""

    audit_flush_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=1.0, description="Time after which entries of reads are written; a crash loses them up to this age."
    )
    audit_buffer_entries: Positive = Field(
        default=10_000, description="Entries of reads that wait in memory; beyond it they are counted, not kept."
    )
    audit_seal_interval_s: Annotated[float, Field(ge=1)] = Field(
        default=10.0, description="Time between two passes that add entries to the hash chains."
    )
    audit_retention_days: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Days after which entries are deleted, a whole day at a time; 0 keeps them for ever."
    )
