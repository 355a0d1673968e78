"""What takes long does so in a thread: while one caller's text is worked on, everybody else is answered."""

import threading

import pytest

from app.index import service as index_service
from tests.support.api import Client


async def test_long_texts_are_looked_through_for_dates_in_a_thread(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_in: set[threading.Thread] = set()
    may_have_dates = index_service.may_have_dates

    def noting(text: str) -> bool:
        looked_in.add(threading.current_thread())
        return may_have_dates(text)

    monkeypatch.setattr(index_service, "may_have_dates", noting)
    conversation = await client.conversation()
    await client.append(conversation, *["last day x " * 1000] * 3)
    fork = await client.post(f"/v1/conversations/{conversation}/fork", json={})
    assert fork.status_code == 201, fork.text
    assert looked_in
    assert threading.current_thread() not in looked_in
