"""What a model names as personal data is replaced as whole words, and only if it looks like its kind."""

import pytest

from app.memory.pii.model_findings import looks_like, replace_personal, usable_findings
from app.memory.schemas import PersonalKind

K = PersonalKind


@pytest.mark.parametrize(
    ("kind", "piece"),
    [
        (K.EMAIL, "ana@example.com"), (K.EMAIL, "ana at example dot com"), (K.PHONE, "030 901820"),
        (K.EMAIL, "ana at example.com"), (K.EMAIL, "ana arroba gmail punto com"), (K.EMAIL, "ana (at) web (punkt) de"),
        (K.PHONE, "восемь девять ноль два три четыре"), (K.PHONE, "zero sei quattro due tre otto"),
        (K.PHONE, "oh seven double oh nine hundred"), (K.CARD, "4111 1111 1111 1111"),
        (K.IBAN, "DE89 3704 0044 0532 0130 00"), (K.BANK_ACCOUNT, "12345678"), (K.NATIONAL_ID, "12345678Z"),
        (K.PASSPORT, "C01X00T47"), (K.ADDRESS, "yellow house behind the mill"), (K.ADDRESS, "北京市朝阳区"),
        (K.BIRTH_DATE, "the twelfth of May"), (K.BIRTH_DATE, "12 maja"), (K.IP_ADDRESS, "10.0.0.1"),
        (K.MAC_ADDRESS, "00:1B:44:11:3A:B7"), (K.SECRET, "quokka blue"), (K.SECRET, "hash seven seven one four"),
        (K.SECRET, "1234"), (K.COORDINATES, "52.52, 13.40"), (K.PLATE, "B-AB 123"),
        (K.WALLET, "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"),
    ],
    ids=str,
)  # fmt: skip
def test_a_piece_that_looks_like_its_kind_is_used(kind: PersonalKind, piece: str) -> None:
    assert looks_like(piece, kind)
    assert usable_findings([(piece, kind)], texts=[f"it is {piece}."]) == ([(piece, kind)], {})


@pytest.mark.parametrize(
    ("kind", "piece"),
    [
        (K.EMAIL, "in"), (K.EMAIL, "Anna"), (K.PHONE, "Berlin"), (K.PHONE, "12345"), (K.CARD, "4111"),
        (K.IBAN, "Berlin"), (K.BANK_ACCOUNT, "bank"), (K.NATIONAL_ID, "German"), (K.ADDRESS, "Berlin"),
        (K.ADDRESS, "the house"), (K.ADDRESS, "91"), (K.ADDRESS, "我喜欢绿茶。"),
        (K.BIRTH_DATE, "birthday"), (K.BIRTH_DATE, "42"), (K.IP_ADDRESS, "1"), (K.MAC_ADDRESS, "address"),
        (K.SECRET, "and"), (K.SECRET, "I live"), (K.SECRET, "the house"), (K.SECRET, "tea"), (K.PLATE, "plate"),
        (K.COORDINATES, "north"), (K.WALLET, "wallet"), (K.TAX_ID, "tax"),
    ],
    ids=str,
)  # fmt: skip
def test_a_piece_that_does_not_look_like_its_kind_is_ignored(kind: PersonalKind, piece: str) -> None:
    assert not looks_like(piece, kind)
    usable, ignored = usable_findings([(piece, kind)], texts=[f"it is {piece}."])
    assert (usable, ignored.total()) == ([], 1)


def test_a_piece_that_is_not_in_the_texts_or_has_no_use_is_ignored() -> None:
    findings = [("quokka", K.SECRET), ("x", K.SECRET), ("[email]", K.EMAIL), ("wom", K.SECRET), ("a" * 201, K.SECRET)]
    assert usable_findings(findings, texts=["the wombat"]) == ([], {"not_in_text": 1, "form": 3, "not_of_kind": 1})


def test_only_whole_words_are_replaced() -> None:
    text = "I live with Anna in Berlin and drink wine."
    assert replace_personal(text, [("in", K.EMAIL)]) == ("I live with Anna [email] Berlin and drink wine.", [K.EMAIL])
    assert replace_personal("Numbats; numbat.", [("Numbat", K.SECRET)])[0] == "Numbats; [secret]."
    assert replace_personal("cafés café cafe\u0301s", [("café", K.SECRET)])[0] == "cafés [secret] cafe\u0301s"
    assert replace_personal("हिन्दी", [("हिन्द", K.SECRET)])[0] == "हिन्दी"


def test_scripts_without_spaces_have_no_bounds() -> None:
    assert replace_personal("我住在北京市朝阳区三号院", [("朝阳区三号", K.ADDRESS)])[0] == "我住在北京市[address]院"


@pytest.mark.parametrize(
    ("kind", "piece", "text", "replaced"),
    [
        (K.PASSPORT, "E12345678", "我的护照号是E12345678请保密", "我的护照号是[passport]请保密"),
        (K.SECRET, "hunter2abc", "パスワードはhunter2abcです", "パスワードは[secret]です"),
        (K.PASSPORT, "M12345678", "내 여권은 M12345678입니다", "내 여권은 [passport]입니다"),
        (K.PHONE, "0812345678", "เบอร์0812345678ครับ", "เบอร์[phone]ครับ"),
    ],
    ids=str,
)
def test_a_word_beside_a_script_without_spaces_is_replaced(
    kind: PersonalKind, piece: str, text: str, replaced: str
) -> None:
    findings, ignored = usable_findings([(piece, kind)], texts=[text])
    assert (replace_personal(text, findings)[0], ignored) == (replaced, {})
    inside = text.replace(piece, f"x{piece}y")
    assert replace_personal(inside, findings)[0] == inside


def test_placeholders_and_replacements_are_not_replaced_again() -> None:
    findings = [("quokka email", K.SECRET), ("email", K.SECRET), ("secret", K.SECRET)]
    assert replace_personal("my [email], QUOKKA\nemail", findings)[0] == "my [email], [secret]"
