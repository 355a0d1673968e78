"""Equal texts are one hit; failed answers, questions that restate the query, and names of roles."""

import pytest

from tests.support.api import Client

QUESTION, FAILED = "What is the wifi password?", "I don't know the wifi password, sorry."
TRUE = ["The wifi password is sunflower-42.", "The wifi password of the guest network is maple-7."]


async def ask_in_vain(client: Client) -> str:
    """Two statements, and twelve times the same question with the same failed answer."""
    conversation = await client.conversation()
    await client.append(conversation, *TRUE)
    for number in range(12):
        turns = [
            {"role": "user", "content": QUESTION if number % 2 else "what is the WIFI password"},
            {"role": "assistant", "content": FAILED},
            {"role": "user", "content": f"Never mind, talk {number} about lunch."},
        ]
        answer = await client.post(f"/v1/conversations/{conversation}/turns", json={"turns": turns})
        assert answer.is_success, answer.text
    return conversation


async def test_equal_texts_are_one_hit_with_their_number_and_times(client: Client) -> None:
    conversation = await ask_in_vain(client)
    hits = await client.recall(conversation, QUESTION, k=20)
    assert len(hits) == 16
    by_text = {hit["text"].casefold().strip("?"): hit for hit in hits}
    assert len(by_text) == 16
    question = by_text[QUESTION.casefold().strip("?")]
    assert question["count"] == len(question["said_at"]) == 12
    assert question["said_at"] == sorted(question["said_at"], reverse=True)
    assert by_text[FAILED.casefold()]["count"] == 12
    assert all(by_text[text.casefold()]["count"] == 1 for text in TRUE)


@pytest.mark.parametrize("mode", ["hybrid", "text", "vector"])
async def test_statements_come_before_a_repeated_question_and_its_failed_answer(client: Client, mode: str) -> None:
    conversation = await ask_in_vain(client)
    hits = await client.recall(conversation, QUESTION, k=4, mode=mode)
    assert {hit["text"] for hit in hits[:2]} == set(TRUE)


@pytest.mark.parametrize(
    ("question", "refusal", "statement"),
    [
        ("Wo ist der Schlüssel?", "Ich weiß nicht, wo der Schlüssel ist.", "Der Schlüssel liegt unter der Matte."),
        ("¿Dónde está la llave?", "No sé dónde está la llave.", "La llave está debajo del felpudo."),
        ("Где ключ от дачи?", "Я не знаю, где ключ от дачи.", "Ключ от дачи лежит под ковриком."),
        ("钥匙在哪里？", "我不知道钥匙在哪里。", "钥匙在垫子下面。"),
    ],
)
async def test_failed_answers_of_other_languages_step_back(
    client: Client, question: str, refusal: str, statement: str
) -> None:
    conversation = await client.conversation()
    turns = [{"role": "user", "content": statement}, {"role": "assistant", "content": refusal}]
    await client.post(f"/v1/conversations/{conversation}/turns", json={"turns": turns})
    hits = await client.recall(conversation, question, explain=True)
    assert [hit["text"] for hit in hits] == [statement, refusal]
    assert hits[1]["explain"]["terms"]["asks"] < 0


async def test_texts_are_equal_apart_from_case_space_and_signs_of_sentences_and_numbers_are_not(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "Dose: 1.5 mg!", "dose  1.5 MG", "Dose: 15 mg!", "Dose: -15 mg!", "…", "!")
    hits = await client.recall(conversation, "dose", k=10)
    assert sorted(hit["count"] for hit in hits) == [1, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Send it to a.b@x.org.", "Send it to ab@x.org."),
        ("The file is a_b.txt.", "The file is ab.txt."),
        ("x != y holds.", "x = y holds."),
        ("The price is $5.", "The price is 5."),
        ("Use C# for it.", "Use C for it."),
        ("Run it with --no-cache.", "Run it with no cache."),
        ("The rapist left.", "Therapist left."),
    ],
)
async def test_texts_with_other_signs_in_or_before_their_words_are_two_hits(
    client: Client, one: str, other: str
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, one, other)
    hits = await client.recall(conversation, one, k=10)
    assert {hit["text"]: hit["count"] for hit in hits} == {one: 1, other: 1}


async def test_quotes_dashes_and_the_form_of_an_apostrophe_make_no_other_text(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(
        conversation,
        "I don't know the word - sorry!",
        "\u201cI don\u2019t know the word\u201d \u2014 sorry.",
        "i  don't know the word; sorry\u2026",
    )
    [hit] = await client.recall(conversation, "word", k=10)
    assert hit["count"] == 3


@pytest.mark.parametrize(
    "text",
    [
        "I am allergic to nuts.", "Ich wohne in Kiel.", "J'habite à Lyon.", "Vivo en Madrid.",
        "Allergic to nuts, sadly.", "We live in Kiel.", "Lunch is at noon.",
    ],
)  # fmt: skip
async def test_one_sentence_of_two_people_is_two_hits(client: Client, text: str) -> None:
    conversation = await client.conversation()
    turns = [{"role": "user", "actor": actor, "content": text} for actor in ("ann", "bob", "ann")]
    await client.post(f"/v1/conversations/{conversation}/turns", json={"turns": turns})
    hits = await client.recall(conversation, text, k=10)
    assert sorted((hit["turn"]["actor"], hit["count"]) for hit in hits) == [("ann", 2), ("bob", 1)]


async def test_one_failed_answer_of_two_assistants_is_one_hit(client: Client) -> None:
    conversation = await client.conversation()
    turns = [{"role": "assistant", "actor": actor, "content": FAILED} for actor in ("one", "two", "one")]
    await client.post(f"/v1/conversations/{conversation}/turns", json={"turns": turns})
    [hit] = await client.recall(conversation, QUESTION, k=10)
    assert hit["count"] == 3


@pytest.mark.parametrize(
    ("query", "fact"),
    [("tent colour", "The tent is green."), ("no onions", "I never eat onions, they make me ill.")],
)
async def test_a_query_that_was_said_before_hides_no_answer(client: Client, query: str, fact: str) -> None:
    conversation = await client.conversation()
    await client.append(conversation, fact, *(f"Filler {n}: lunch, weather and the weekend again." for n in range(60)))

    async def relevance() -> float:
        hits = await client.recall(conversation, query, k=3)
        return next(hit["relevance"] for hit in hits if hit["text"] == fact)

    before = await relevance()
    for _ in range(3):
        await client.append(conversation, query)
        assert await relevance() > 0.6 * before


async def test_a_copy_is_found_when_the_hit_is_deleted(client: Client) -> None:
    conversation = await client.conversation()
    turns = await client.append(conversation, "The ferry leaves at nine.", "the ferry leaves at nine")
    (hit,) = await client.recall(conversation, "ferry")
    assert hit["count"] == 2
    await client.delete(f"/v1/conversations/{conversation}/turns/{hit['id']}")
    (copy,) = await client.recall(conversation, "ferry")
    assert copy["count"] == 1
    assert {hit["id"], copy["id"]} == {turn["id"] for turn in turns["turns"]}


@pytest.mark.parametrize("actor", ["user", "User", "USER"])
async def test_the_name_of_a_role_is_no_word_of_its_turns(client: Client, actor: str) -> None:
    conversation = await client.conversation()
    wanted = "function getUserById returns null for guests"
    texts = [wanted, *(f"Filler {n}: lunch, weather and the weekend again." for n in range(60))]
    turns = [{"role": "user", "actor": actor, "content": text} for text in texts]
    await client.post(f"/v1/conversations/{conversation}/turns", json={"turns": turns})
    (first, *fillers) = await client.recall(conversation, "user by id", k=3)
    assert first["text"] == wanted
    assert max(hit["relevance"] for hit in fillers) < 0.05
    for query in ("user", "the user", "who is the user", "assistant"):
        hits = await client.recall(conversation, query, k=2)
        assert max(hit["relevance"] for hit in hits if hit["text"] != wanted) < 0.05, query
        assert len(hits) == 2


@pytest.mark.parametrize("query", ["who is it", "what was that about?", "and you"])
async def test_a_query_of_stop_words_is_compared_by_meaning(client: Client, query: str) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "The orchard has forty plum trees.", "My passport expires in November.")
    hits = await client.recall(conversation, query, explain=True)
    assert len(hits) == 2
    assert any(hit["explain"]["terms"]["meaning"] > 0 for hit in hits)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [("Reedis eviction", "Redis evicts the oldest keys."), ("typsecript config", "We use TypeScript in strict mode.")],
)
async def test_a_word_with_a_typing_error_is_found(client: Client, query: str, wanted: str) -> None:
    conversation = await client.conversation()
    await client.append(conversation, wanted, "Mango connects to a pool.", "The house has a horse.", "Lunch at noon.")
    hits = await client.recall(conversation, query, mode="text")
    assert [hit["text"] for hit in hits] == [wanted]
    assert await client.recall(conversation, "mongo hors", mode="text") == []


async def test_a_standing_instruction_is_found_by_a_question_about_its_subject(client: Client) -> None:
    conversation = await client.conversation()
    turns = [
        {"role": "user", "content": "Always mention sustainability when I ask about sneaker materials."},
        {"role": "assistant", "content": "Understood."},
        {"role": "user", "content": "I walked to work in sneakers, it took an hour."},
    ]
    await client.post(f"/v1/conversations/{conversation}/turns", json={"turns": turns})
    hits = await client.recall(conversation, "What are modern sneakers made of?", explain=True)
    assert hits[0]["explain"]["terms"]["instructs"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("early", "late"),
    [
        (("ann", "The dose is 1.5 mg a day."), ("ann", "The dose is 15 mg a day.")),
        (("ann", "The fee is 5 €."), ("ann", "The fee is 5 $.")),
        (("ann", "मुझे काल पसंद है"), ("ann", "मुझे कल पसंद है")),
        (("ann", "I am allergic to nuts."), ("bob", "I am allergic to nuts.")),
    ],
)
async def test_a_context_shows_texts_that_say_something_else(
    client: Client, early: tuple[str, str], late: tuple[str, str]
) -> None:
    conversation = await client.conversation()
    filler = [f"Talk {number} is about lunch and rain." for number in range(8)]
    first, newest = ({"role": "user", "actor": actor, "content": text} for actor, text in (early, late))
    turn = (await client.append(conversation, first, *filler, newest))["turns"][0]
    body = {"token_budget": 2000, "recent_turns": 1, "semantic_recall": {"k": 10}, "query": early[1]}
    response = await client.post(f"/v1/conversations/{conversation}/context", json=body)
    assert turn["id"] in response.json()["included"]["turn_ids"]
