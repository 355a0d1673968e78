"""Forty pieces of personal data go through extraction, and none is in any table: shown by the bytes of a dump.

By the rules, and by a model that gives back all it was shown and besides what it was never to see, in any spelling.
Turns themselves hold what was said; they are taken away before the dump: what is left is what extraction stored.
"""

import json
import os
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import asyncpg
import pytest

from app.memory.pii.model_findings import replace_personal
from app.memory.pii.pii_filter import RedactedTexts, is_personal_fact
from app.memory.pii.redaction import redact
from app.memory.schemas import PersonalKind
from tests.api.test_erased_for_good import dump
from tests.api.test_fact_extraction import told
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, open_fake_chat, says
from tests.support.postgres import Servers, clone_template, drop_database, make_template


class Sample(NamedTuple):
    """What is said, what of it is personal, and a predicate that a model may give it."""

    said: str
    personal: str
    predicate: str


BY_PATTERN = [
    Sample("write to ana.lopez+news@mail.example.co.uk please", "ana.lopez+news@mail.example.co.uk", "reads mail at"),
    Sample("reach me: ana.quokka (at) example (dot) com", "ana.quokka (at) example (dot) com", "is found at"),
    Sample("call +49 30 90182045 today", "+49 30 90182045", "is called on"),
    Sample("call +1 (415) 555-2671", "(415) 555-2671", "answers on"),
    Sample("my UK number is 07700 900123", "07700 900123", "has phone"),
    Sample("我的手机是13800138000", "13800138000", "手机"),
    Sample("هاتف ٠٥٠١٢٣٤٥٦٧", "٠٥٠١٢٣٤٥٦٧", "is heard on"),
    Sample("ring 090-1234-5678", "090-1234-5678", "rings"),
    Sample("(11) 91234-5678 em São Paulo", "91234-5678", "phone number"),
    Sample("card 4111 1111 1111 1111", "4111 1111 1111 1111", "pays with"),
    Sample("amex 378282246310005", "378282246310005", "owns card"),
    Sample("IBAN DE89 3704 0044 0532 0130 00 bitte", "DE89 3704 0044 0532 0130 00", "is paid at"),
    Sample("GB29NWBK60161331926819", "GB29NWBK60161331926819", "bank account"),
    Sample("SSN 078-05-1120", "078-05-1120", "is numbered"),
    Sample("NI: AB 12 34 56 C", "AB 12 34 56 C", "national insurance"),
    Sample("Steuer-ID 86095742719", "86095742719", "tax id"),
    Sample("NIR 2 55 08 14 168 025 38", "2 55 08 14 168 025 38", "registered as"),
    Sample("mi DNI es 12345678Z", "12345678Z", "DNI"),
    Sample("codice fiscale RSSMRA85T10A562S", "RSSMRA85T10A562S", "codice fiscale"),
    Sample("PESEL 44051401359", "44051401359", "pesel"),
    Sample("CPF 529.982.247-25", "529.982.247-25", "CPF"),
    Sample("aadhaar 2341 2341 2346", "2341 2341 2346", "aadhaar"),
    Sample("my TFN is 123 456 782", "123 456 782", "files tax as"),
    Sample("身份证号11010519491231002X", "11010519491231002X", "身份证"),
    Sample("nhs number 943 476 5919", "943 476 5919", "is a patient as"),
    Sample("my passport is 533380006", "533380006", "travels on"),
    Sample("driving licence MORGA657054SM9IJ", "MORGA657054SM9IJ", "drives with"),
    Sample("I live at 221B Baker Street, London", "221B Baker Street", "lives at"),
    Sample("Ich wohne Hauptstraße 12a", "Hauptstraße 12a", "wohnt"),
    Sample("born on 12 May 1985 in Rome", "12 May 1985", "was born"),
]
BY_READING = [
    Sample("My locker word is quokka blue, and I like tea", "quokka blue", "opens the locker by"),
    Sample("mother's maiden name, for the bank, is Featherstonehaugh", "Featherstonehaugh", "mother was called"),
    Sample("the gate opens with hash seven seven one four", "hash seven seven one four", "opens the gate with"),
    Sample(
        "you find me in the yellow house behind\nthe mill in Quorndon", "yellow house behind the mill", "is found in"
    ),
    Sample("my pupil reference is Zebra Tango Ninety", "Zebra Tango Ninety", "is pupil"),
    Sample("ring me on oh seven double oh nine hundred", "oh seven double oh nine hundred", "is rung on"),
    Sample("my first pet, for the recovery question, was Wombatina", "Wombatina", "first pet"),
    Sample("I sign in as marsupial dot king", "marsupial dot king", "signs in as"),
    Sample("my case file is Operation Numbat", "Operation Numbat", "is known as"),
    Sample("the ward that treats me is Kestrel Seventy", "Kestrel Seventy", "is treated in"),
]
SAMPLES = [*BY_PATTERN, *BY_READING]


def marked(samples: Sequence[Sample]) -> list[str]:
    """Each as it is said, with letters that a scripted model knows it by."""
    return [f"({chr(97 + n // 26)}{chr(97 + n % 26)}) {one.said}" for n, one in enumerate(SAMPLES) if one in samples]


def stubborn(request: dict[str, Any]) -> Reply:
    """A model that finds what only a reader can tell, and says all of it all the same, in every spelling."""
    asked, shown = request["messages"][0]["content"], request["messages"][1]["content"]
    if "personal data" in asked:
        # as a reader does, across the breaks of lines
        flat = " ".join(shown.split())
        return says({"found": [{"text": one.personal, "kind": "secret"} for one in BY_READING if one.personal in flat]})
    statements: list[dict[str, Any]] = []
    for number, first, second, text in re.findall(r"^\[(\d+)\] .*?\(([a-z])([a-z])\) (.*)$", shown, re.MULTILINE):
        turn, one = int(number), SAMPLES[(ord(first) - 97) * 26 + ord(second) - 97]
        statements += [
            told(turn, "I", one.predicate, one.personal),
            told(turn, one.personal, "belongs to", "ana"),
            told(turn, "I", "goes by", "-".join(one.personal.upper().split())),
            told(turn, "I", "said", text[-300:]),
            told(turn, "I", f"has {one.personal}", "indeed"),
            told(turn, "I", "likes", "tea"),
        ]
    return says({"facts": statements})


def forms(text: str) -> set[bytes]:
    """How a text may stand in a dump."""
    plain = {text, text.casefold(), text.upper(), "-".join(text.upper().split()), json.dumps(text)[1:-1]}
    return {one.encode() for one in plain}


def left(written: bytes) -> list[str]:
    """The samples that are in a dump, in any form; long ones without regard to what stands between letters."""
    compact = re.sub(rb"[^a-z0-9]", b"", written.lower())
    found: list[str] = []
    for one in SAMPLES:
        bare = re.sub(r"[^a-z0-9]", "", one.personal.lower()).encode()
        if any(form in written for form in forms(one.personal)) or (len(bare) >= 9 and bare in compact):
            found.append(one.personal)
    return found


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        opened.reply = stubborn
        yield opened


@pytest.fixture(scope="module")
async def service(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service without a model, on a database that nothing else uses."""
    name = f"turnkeep_personal_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    await make_template(servers)
    database = await clone_template(servers, name)
    async with open_service(database, tmp_path_factory.mktemp("personal")) as opened:
        yield opened
    await drop_database(servers, name)


@pytest.fixture(scope="module")
async def modelled(
    service: Service, fake: FakeChat, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Service]:
    """A service with a model on that database."""
    model = {"llm_model": CHAT_MODEL, "llm_base_url": fake.url, "llm_max_retries": 0}
    async with open_service(service.database, tmp_path_factory.mktemp("personal_model"), **model) as opened:
        yield opened


async def tell_all(client: Client, service: Service, **facts: Any) -> None:
    """Say all samples, as they are and as a liking, some by call and some by job."""
    for start in range(0, len(SAMPLES), 8):
        conversation = await client.conversation(owner="ana", facts={"enabled": True} | facts)
        some = marked(SAMPLES[start : start + 8])
        await client.append(conversation, *some, *[f"I like {text[5:]}." for text in some], "I like tea.")
        if start % 16:
            answer = await client.post(f"/v1/conversations/{conversation}/facts/extract", json={})
            assert answer.status_code == 200, answer.text
    await service.run_jobs()


async def what_is_stored(service: Service) -> bytes:
    """A dump of the database without the turns, their first words in titles, and what the index has of them."""
    connection = await asyncpg.connect(service.database.superuser)
    try:
        seen = (await dump(service)).count(b"quokka blue")
        assert seen > 0, "what was said is in the turns"
        of_turns = "(select tenant_id, entry_id from index_entries where kind = 'turn')"
        await connection.execute(f"delete from vectors where (tenant_id, entry_id) in {of_turns}")  # noqa: S608
        await connection.execute("delete from index_entries where kind = 'turn'")
        await connection.execute("delete from turns")
        # the first words of a turn, which go with it
        await connection.execute(
            "update conversations set derived_title = null where derived_title_source = 'question'"
        )
    finally:
        await connection.close()
    return await dump(service)


@pytest.mark.slow
async def test_no_byte_of_forty_pieces_of_personal_data_is_stored(
    service: Service, modelled: Service, fake: FakeChat
) -> None:
    assert len(SAMPLES) == 40
    for one in (service, modelled):
        async with await one.new_tenant() as client:
            await tell_all(client, one)
            facts = (await client.get("/v1/facts", params={"limit": 200})).json()["data"]
            assert "tea" in {fact["object"] for fact in facts}, "there is something to find"
    stored = await what_is_stored(service)
    assert b"tea" in stored
    assert left(stored) == []
    # nor was a model sent what patterns find, and to be told facts nothing that it had found itself
    sent = json.dumps([chat["messages"] for chat in fake.chats], ensure_ascii=False)
    assert [one.personal for one in BY_PATTERN if one.personal in sent] == []
    asked = [chat["messages"][1]["content"] for chat in fake.chats if "plainly say" in chat["messages"][0]["content"]]
    assert asked
    assert [one.personal for one in BY_READING if any(one.personal in text for text in asked)] == []


@pytest.mark.slow
async def test_the_search_finds_what_is_stored_without_redaction(service: Service, modelled: Service) -> None:
    """So the test above can fail."""
    async with await modelled.new_tenant() as client:
        await tell_all(client, modelled, redact=False)
    found = left(await what_is_stored(service))
    assert sorted(found) == sorted(one.personal for one in SAMPLES)


@pytest.mark.parametrize(
    "fact",
    [
        ("ana", "phone", "ends in 71"), ("ana", "has_email", "at work"), ("ana", "birth_date", "May"),
        ("ana", "home_address", "by the mill"), ("ana", "card_number", "one"), ("ana", "passport", "green"),
        ("ana", "password", "long"), ("ana", "likes", "[email]"), ("ana", "uses", "4111111111111111"),
        ("ana@example.com", "likes", "tea"), ("ana", "account", "number 12345678"),
    ],
    ids=lambda fact: fact[1],
)  # fmt: skip
def test_a_fact_is_personal_by_its_parts_or_as_a_whole(fact: tuple[str, str, str]) -> None:
    assert is_personal_fact(*fact)


@pytest.mark.parametrize(
    "fact",
    [
        ("ana", "lives_in", "Berlin"), ("ana", "works_at", "Acme"), ("ana", "has_pet", "a dog named Rex"),
        ("ana", "born_in", "Rome"), ("ana", "age", "41"), ("ana", "favourite_colour", "blue"),
        ("ana", "mother", "Maria"), ("ana", "owns", "a phone case"), ("ana", "speaks", "Spanish"),
        ("ana", "allergic_to", "peanuts"), ("ana", "moved_in", "2019"), ("ana", "plays", "the piano"),
    ],
    ids=lambda fact: fact[1],
)  # fmt: skip
def test_plain_facts_are_not_personal(fact: tuple[str, str, str]) -> None:
    assert not is_personal_fact(*fact)


def test_what_was_taken_out_is_known_in_any_spelling_and_in_part() -> None:
    redacted_texts = RedactedTexts()
    text = "call +1 (415) 555-2671 or write"
    redacted_texts.add_redaction(text, redact(text))
    redacted_texts.add(["Quokka Blue"])
    for said in ("14155552671", "415 555 2671", "5552671", "555-26 71", "QUOKKA-BLUE", "the quokka  blue one"):
        assert redacted_texts.occurs_in(["I", "knows", said]), said
    assert redacted_texts.occurs_in(["I", "dials 555", "2671"])
    for said in ("blue", "quokka", "2671", "tea", "room 415"):
        assert not redacted_texts.occurs_in(["I", "knows", said]), said


def test_what_a_model_finds_is_taken_out_however_it_is_spaced() -> None:
    text, kinds = replace_personal("It is Quokka\n blue, and quokka blue.", [("quokka blue", PersonalKind.SECRET)])
    assert (text, len(kinds)) == ("It is [secret], and [secret].", 2)
