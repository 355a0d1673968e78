"""Splits a text into the clauses that plainly state facts in the author's own words. Pure.

Left out are quoted and fenced text, lines of other transcripts, questions, conditions, guesses, reports of what others
say, and orders to the reader. Content is data: an order in it is never followed, and makes nothing a fact.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_CHARACTERS = 64_000
_MAX_SENTENCE = 600
_MAX_SENTENCES = 500

# a text with one of these is a task or is meant for a model: its author states no facts in it
_ANOTHERS_VOICE = re.compile(
    r"\b(?:(?:ignore|disregard|forget|override|bypass) (?:\w+ ){0,3}(?:previous|prior|above|earlier|your|the|all|"
    r"these) "
    r"(?:\w+ ){0,2}(?:instructions?|prompts?|rules?|messages?|context|memory|memories|facts?)|system prompt|"
    r"developer message|"
    r"new instructions?|jailbreak|you are now|from now on,? you|act as|pretend|role-?play|imagine|hypothetically|"
    r"suppose|"
    r"let's say|for the sake of argument|in character|write (?:me )?(?:a|an|the|some) |draft (?:me )?(?:a|an|the) |"
    r"translate|proofread|rewrite|rephrase|paraphrase|summari[sz]e|"
    r"(?:correct|fix|check|improve|edit) (?:my |this |the )(?:\w+ )?(?:text|grammar|sentence|paragraph|essay|"
    r"letter|email|cv)|"
    r"(?:following|this) (?:text|passage|paragraph|story|dialogue|article|email|letter|lyrics|transcript))\b",
    re.IGNORECASE,
)
_FENCED = re.compile(r"```[^`]{0,20000}(?:```|$)|`[^`\n]{0,500}`")
_QUOTED = re.compile(
    r"\"[^\"\n]{0,600}\"|\u201c[^\u201d\n]{0,600}\u201d|\u201e[^\u201c\u201d\n]{0,600}[\u201c\u201d]|"
    r"\u00ab[^\u00bb\n]{0,600}\u00bb|"
    r"(?<!\w)'[^'\n]{0,600}'(?!\w)|(?<!\w)\u2018[^\u2019\n]{0,600}\u2019(?!\w)"
)
_ANOTHERS_LINE = re.compile(
    r"^[ \t]{0,8}(?:>|\||[-*_#]{3,}|[\[<]{0,2}/?\w{1,20}[\]>]{0,2}[ \t]?:(?!//)|<\|?\w{1,20})", re.ASCII
)
_SENTENCE_END = re.compile(
    r"(?<![A-Z])(?<!\bDr)(?<!\bMr)(?<!\bMs)(?<!\bSt)(?<!\bMrs)[.!?\u2026]{1,8}(?=[\s\"')\]]|$)|\n"
)
_NOT_SO_SENTENCE = re.compile(
    r"\b(?:if|unless|whether|wish(?:es|ed)?|wonder(?:ing)?|say|says|said|saying|tell|tells|told|claims?|claimed|thinks|"
    r"thought|believes?|believed|heard|hear|reads?|wrote|written|quote|according|reportedly|allegedly|rumou?r\w*|"
    r"asked|asks|"
    r"jok(?:e|ing|ed)|kidding|lied?|lying|fake|example|e\.g|dream(?:t|ed|s)?|novel|story|movie|film|song|lyrics|"
    r"character|"
    r"game|would|could|should|might|perhaps|maybe|probably|possibly|supposedly|apparently|assum\w+|guess(?:ing)?|"
    r"(?:but|and|then|before)(?: [\w']{1,12}){0,3} (?:(?:moved|went|came|moving|coming|going) (?:back|away|on)|"
    r"returned)|"
    r"as though)\b|"
    r"\bas if\b|\bwhat if\b|\bnot sure\b|/s$",
    re.IGNORECASE,
)
_NOT_SO_CLAUSE = re.compile(
    r"\b(?:want(?:s|ed)? to|wanna|hop(?:e|es|ing) to|plan(?:s|ning)?|consider(?:s|ing)?|thinking (?:of|about)|"
    r"going to|gonna|"
    r"about to|will|'ll|shall|may|can't wait|used to be|almost|nearly|pretending|feels? like|like to|in case|"
    r"until|before i|"
    r"when i|once i|had|next (?:week|month|year)|tomorrow|someday|one day|soon)\b|'d\b",
)
# orders to remember something: they state a fact only if they are about the author
_ORDER = re.compile(
    r"^(?:please )?(?:can you )?(?:remember|note|store|save|memori[sz]e|record|add|keep in mind|don't forget|log|"
    r"write down|"
    r"update|set|assert|treat|know)\b(?: (?:that|down|this|also|in your memory|to (?:your )?memory|the fact))*[:,]? ?",
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"^(?:(?:hi|hey|hello|well|so|ok|okay|actually|also|and|but|because|since|oh|yes|yeah|yep|no|nope|nah|btw|fyi|"
    r"by the way|"
    r"to be clear|for context|just so you know|as you know|you know|in fact|anyway|right|sure|thanks|sorry|update|"
    r"good morning|correction|these days|nowadays|currently|now|today|recently|honestly|personally)(?:(?: "
    r"there)?[,!:.]? |, ?))+",
    re.IGNORECASE,
)
_CLAUSES = re.compile(
    r"\s*[;\u2014\u2013]\s*|\s-\s|,?\s(?:but|while|whereas|although|though|because|so)\s(?=\S)|"
    r",?\s(?:and|,)\s(?=(?:i|i'm|i've|my|we|he|she|they|[A-Z]\w+ (?:is|lives|works|has|loves|likes|hates|speaks))\b)|"
    r",\s(?=(?:(?:now )?(?:i|i'm|i've|we|we're|we've|my|our)|not)\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause in the author's own words, without opening words. `ordered`: it is part of an order to remember it."""

    text: str
    ordered: bool


def statement_clauses(text: str) -> Iterator[Clause]:
    """Yield the clauses of a text that plainly state facts in the author's own words."""
    text = text[:MAX_CHARACTERS].replace("\u2019", "'").replace("\u02bc", "'")
    if _ANOTHERS_VOICE.search(text):
        return
    text = _QUOTED.sub("\x00", _FENCED.sub("\x00", text))
    for sentence in _sentences(text):
        if _NOT_SO_SENTENCE.search(sentence):
            continue
        order = _ORDER.match(sentence)
        for clause in _CLAUSES.split(sentence[order.end() :] if order else sentence):
            bare = _OPENING.sub("", clause.strip(" ,\t")).strip(" ,\t")
            if bare and "\x00" not in bare and not _NOT_SO_CLAUSE.search(bare):
                yield Clause(bare, ordered=order is not None)


def _sentences(text: str) -> Iterator[str]:
    """Yield sentences that do not end in a question mark, outside lines of other transcripts."""
    at = count = 0
    line_is_own = _ANOTHERS_LINE.match(text[:60]) is None
    for end in _SENTENCE_END.finditer(text):
        sentence = text[at : end.start()].strip()
        if line_is_own and sentence and len(sentence) <= _MAX_SENTENCE and "?" not in end[0]:
            yield _OPENING.sub("", sentence)
            count += 1
        at = end.end()
        if end[0] == "\n":
            line_is_own = _ANOTHERS_LINE.match(text[at : at + 60]) is None
        if count == _MAX_SENTENCES:
            return
    rest = text[at:].strip()
    if line_is_own and rest and len(rest) <= _MAX_SENTENCE:
        yield _OPENING.sub("", rest)
