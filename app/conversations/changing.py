"""Changes what of a conversation may change, in the transaction of whoever changes it."""

from app.conversations import store
from app.conversations.covering import retain_job
from app.conversations.finding import get_conversation, lock_conversation
from app.conversations.policies import compaction_policy, facts_job, facts_policy
from app.conversations.schemas import ConversationUpdate, Facts, Retention
from app.conversations.store import ConversationRow
from app.conversations.title_schemas import TitleSource
from app.conversations.titles import DerivedTitles
from app.conversations.views import participants_column
from app.core.db import Transaction
from app.core.ids import ConversationId
from app.core.jobs import JobQueue
from app.tenancy.schemas import Caller


async def change_conversation(
    caller: Caller,
    tx: Transaction,
    conversation_id: ConversationId,
    body: ConversationUpdate,
    *,
    jobs: JobQueue,
    titles: DerivedTitles,
) -> ConversationRow:
    """Change what was given; everything left out stays. What is not to be kept any more, a job erases.

    A conversation whose title is cleared gets a derived one.
    """
    given = body.model_fields_set
    await lock_conversation(caller, tx, conversation_id)
    # read only now that the head is held, so that no change made meanwhile is lost
    row = await get_conversation(caller, tx, conversation_id)
    retention = body.retention.value if "retention" in given else row.retention
    facts = facts_policy(body.facts, row.facts)
    await store.update_conversation(
        tx,
        caller.tenant_id,
        conversation_id,
        title=body.title if "title" in given else row.title,
        participants=participants_column(body.participants) if "participants" in given else row.participants,
        metadata=body.metadata if "metadata" in given else row.metadata,
        retention=retention,
        compaction=compaction_policy(body.compaction, row.compaction),
        facts=facts,
        ttl_s=body.ttl_s if "ttl_s" in given else row.ttl_s,
    )
    if (
        not Facts.model_validate(row.facts).enabled
        and Facts.model_validate(facts).enabled
        and row.facts_seq < row.last_seq
    ):
        await jobs.enqueue(tx, caller.tenant_id, [facts_job(conversation_id)])
    if "title" in given and body.title is None and row.derived_title_source != TitleSource.MODEL:
        await titles.renew(caller, tx, row)
    if retention not in {row.retention, Retention.FULL.value}:
        await jobs.enqueue(tx, caller.tenant_id, [retain_job(conversation_id)])
    return await get_conversation(caller, tx, conversation_id)
