"""The server, the pools and tenancy: the part of the object graph that commands about keys need.

Hides the order of their start. It imports no capability above tenancy, so these commands start quickly.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from app.core.database.reader import DatabaseReader
from app.core.database.servers import Server, require_data
from app.core.database.transactions import Database, Transaction
from app.core.errors import NotFound
from app.core.ids import ConversationId, TenantId
from app.settings import Settings
from app.tenancy.schemas import Caller, TokenEpochs
from app.tenancy.service import Tenancy, installation_secret


async def _no_epoch(_tx: Transaction, _tenant_id: TenantId, _conversation_id: ConversationId) -> None:
    return None


async def _not_moved(_tx: Transaction, _tenant_id: TenantId, _conversation_id: ConversationId) -> bool:
    return False


async def _not_reachable(_caller: Caller, _tx: Transaction, _conversation_id: ConversationId) -> None:
    raise NotFound("not_found", "There is no such conversation.")


WITHOUT_CONVERSATIONS = TokenEpochs(current=_no_epoch, move=_not_moved, require_reachable=_not_reachable)
"""For commands about keys: no conversation token is valid."""


@dataclass(frozen=True, slots=True)
class Foundation:
    """The base of all services: the server, the pools of the application and of the ops role, and tenancy."""

    server: Server
    database: Database
    ops: Database
    reader: DatabaseReader
    tenancy: Tenancy


@asynccontextmanager
async def open_foundation(
    settings: Settings, *, migrate: bool, epochs: TokenEpochs = WITHOUT_CONVERSATIONS
) -> AsyncGenerator[Foundation]:
    """Start the server, the pools and tenancy."""
    async with AsyncExitStack() as stack:
        if not migrate:
            require_data(settings.database)
        server = Server(settings.database)
        stack.push_async_callback(server.stop)
        await server.start()
        if migrate:
            await server.migrate()
        await server.require_migrated()
        database = server.pool(server.app, name="turnkeep")
        ops = server.pool(server.ops, name="turnkeep-ops")
        for pool in (database, ops):
            stack.push_async_callback(pool.close)
            await pool.open()
            await pool.require_role_without_bypass()
        reader = await server.reader(database)
        stack.push_async_callback(reader.close)
        given = settings.tenancy.secret_key
        secret = await installation_secret(ops) if given is None else given.get_secret_value().encode()
        tenancy = Tenancy(
            database,
            ops,
            secret=secret,
            settings=settings.tenancy,
            rates=settings.rates,
            epochs=epochs,
            oidc=settings.oidc,
        )
        try:
            yield Foundation(server, database, ops, reader, tenancy)
        finally:
            await tenancy.close()
