"""A server that stops accepting writes while its connections go on, as in a switchover."""

from tests.support.api import Client, Service, problem


async def test_a_connection_that_accepts_no_more_writes_is_replaced(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    async with service.container.database.transaction(client.tenant_id) as tx:
        await tx.execute("set session characteristics as transaction read only")
    path = f"/v1/conversations/{conversation}/turns"
    answer = await client.post(path, json={"turns": [{"role": "user", "content": "first"}]})
    problem(answer, 503, "database_unavailable")
    assert answer.headers["Retry-After"] == "1"
    await client.append(conversation, "second")
    assert [turn["content"] for turn in await client.history(conversation)] == ["second"]
