"""Finds plain facts in English by rules, without a model: "I live in Berlin", "Ana works at Acme". Pure.

The rules are precise rather than complete: a clause must begin with its subject and have one of a few forms. Questions,
guesses, reports, quotations and orders make no facts (`clause_parser`). The caller gives turns of people, never those
of models or tools.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.memory.extraction.clause_parser import Clause, statement_clauses
from app.memory.facts.spelling import KNOWN_PREDICATES, name_key, object_key, predicate_key, resolve_subject
from app.memory.schemas import StatedBy, Statement, Tier

MAX_STATEMENTS = 50
CONFIDENCE_OWN = 0.9
CONFIDENCE_OF_OTHERS = 0.7

_MAX_OBJECT_WORDS = 8
_AM = r"(?:i am|i'm|im)"
_ADVERB = r"(?:(?:also|really|absolutely|currently|now|just|still|mostly|mainly|recently|always|actually|only|both) )?"
# not `mostly`: a person who is mostly vegan may be vegetarian
_WHOLLY = r"(?:(?:also|currently|now|just|still|recently|always|actually|both|strictly|fully|completely) )?"
_PERSON = r"(?P<who>[A-Z][\w'-]{1,30}(?: [A-Z][\w'-]{1,30}){0,2})"
_KIN = "wife|husband|spouse|partner|girlfriend|boyfriend|brother|sister|mother|mom|mum|father|dad|son|daughter"
_PETS = "dog|cat|parrot|rabbit|hamster|horse|puppy|kitten|turtle|bird|fish|snake|guinea pig|budgie|tortoise"
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_STOP = re.compile(
    r"\s(?:and|but|with|for|since|near|because|now|right|at the|these|this|where|when|which|who|that|until|as|so|"
    r"after|before|"
    r"again|anymore|any more|any longer|too|also|though|very|a lot|so much|last|by|from|on|who's|"
    rf"in (?:(?:19|20)\d\d|{_MONTHS})|"
    r"alone|currently|together|please|thanks)\b|"
    r"[,;:(\[!?]|(?<!\bSt)\.(?=\s|$)",
    re.IGNORECASE,
)
_NOT_PEOPLE_WORDS = (
    "i it he she they we you this that there here what who everyone everybody someone nobody my the a an if when why "
    "how our his her their its your user assistant system monday tuesday wednesday thursday friday saturday sunday "
    "today god paris london berlin python java just recently finally never also both only now still "
    "always not sometimes once already "
    "today has had have did do does was were been please thanks sorry everything nothing something"
)
_NOT_PEOPLE = frozenset(_NOT_PEOPLE_WORDS.split())
_NOT_PLACES_WORDS = (
    "the a an my his her their fear hope peace harmony pain fact general luck town here there it this that denial "
    "poverty love another different same next bed sin style one two work home school bed linux windows mac macos "
    "ios android python rust go postgres mysql aws azure gcp slack teams notion github gitlab kubernetes docker chrome "
    "postgres postgresql sqlite mongodb redis kafka terraform jira confluence figma zoom discord typescript javascript "
    "java ruby node react vue svelte angular django flask fastapi rails kotlin swift ubuntu debian excel "
    "firefox vim emacs marketing sales engineering management production constant chaos isolation terror misery dread "
    "google microsoft amazon apple openai anthropic claude gemini chatgpt copilot cursor azure cloud stripe shopify "
    "salesforce hubspot snowflake databricks bigquery airflow spark looker tableau tailwind bootstrap rest graphql "
    "grpc scrum kanban agile gmail outlook office word excel sheets whatsapp telegram messenger trello asana linear "
    "netlify vercel heroku cloudflare digitalocean oracle mariadb elastic elasticsearch opensearch rabbitmq jenkins "
    "ansible podman spotify netflix plan phase stage chapter section part page step option version release level "
    "room table floor desk gate platform terminal track lane tier team product sprint monday tuesday wednesday "
    "thursday friday saturday sunday january february march april may june july august september october november "
    "december english german french spanish italian chinese japanese remote"
)
_NOT_PLACES = frozenset(_NOT_PLACES_WORDS.split())
_NOT_LIKED = frozenset(
    {"it", "that", "this", "them", "him", "her", "you", "to", "when", "how", "what", "your", "the", "my", "our"}
)
_NOT_NAMES = frozenset({"a", "the", "not", "on", "my", "so", "when", "hard", "pretty"})
_NEGATIONS = frozenset({"not", "never", "neither"})
_NOTHING_NAMED = frozenset({"it", "that", "this", "when", "how"})
_NO_BEGINNING: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("lives_in", "born_in", "from"), _NOT_PLACES),
    **dict.fromkeys(("likes", "dislikes", "prefers"), _NOT_LIKED),
    **dict.fromkeys(("name", "preferred_name", "spouse"), _NOT_NAMES),
    "speaks": frozenset({"to", "with", "my", "up", "out"}),
    "works_at": frozenset(
        {"home", "night", "nights", "a", "an", "my", "myself", "the", "least", "free", "it", "height", "scale"}
    ),
}
_MAX_WORDS: Mapping[str, int] = {
    **dict.fromkeys(("lives_in", "born_in", "from"), 5),
    **dict.fromkeys(("name", "preferred_name", "spouse"), 4),
    "speaks": 2,
}
_OLDEST = 125
_A_NAME = re.compile(r"[^\W\d_][\w .'-]{0,80}")
_JOBS_WORDS = (
    "accountant actor actress architect artist author baker barber biologist builder butcher carpenter chef chemist "
    "cook dentist designer developer doctor driver economist editor electrician engineer farmer firefighter gardener "
    "hairdresser historian journalist judge lawyer lecturer librarian manager mechanic midwife musician nurse painter "
    "paramedic pharmacist photographer physicist physiotherapist pilot plumber programmer professor psychologist "
    "researcher sailor scientist secretary solicitor student surgeon teacher therapist translator vet veterinarian "
    "waiter waitress writer analyst consultant freelancer retiree"
)
_JOBS = frozenset(_JOBS_WORDS.split())
_JOB = rf"(?P<o>(?:[\w-]{{2,20}} ){{0,2}}(?:{'|'.join(sorted(_JOBS))}))"
_SINCE = r"(?: (?:since [\w ]{2,20}|for (?:[\w-]{1,12} ){0,3}(?:years|months|weeks)))?"
_LATELY = r"(?: (?:since [\w ]{2,20}|(?:last|this) (?:week|month|year)|(?:\w{1,12} ){1,2}ago))?"
_DIETS = "vegetarian|vegan|pescatarian|kosher|halal"

_O = r"(?P<o>[^\x00]{1,200})"
_CALLED_LONG = r"(?:whose name is|by the name of|(?:that|which|who)(?: is|'s) (?:named|called))"
_CALLED = rf"(?:named|called|{_CALLED_LONG})"
# after a place: the speaker does not live there permanently
_FOR_NOW = (
    r"temporarily|during|half|part of|most of|on (?:week|mon|tues|wednes|thurs|fri|satur|sun)\w*|at weekends|for now|"
    r"this (?:week|month|summer|autumn|fall|winter|spring|semester|term)"
)
_LIVED_FOR_NOW = re.compile(rf"\b(?:{_FOR_NOW})\b", re.IGNORECASE)
# after a place that the speaker moved to: the speaker may have moved again since
_MOVED_LONG_AGO = re.compile(
    rf"\b(?:{_FOR_NOW}|when|while|as (?:an? )?(?:kids?|child|children|teens?|teenagers?|bab(?:y|ies)|students?)|before|"
    r"after|then|once|twice|until|for (?:[\w-]{1,12} ){1,3}(?:years?|months?|weeks?|days?|summers?|winters?))\b",
    re.IGNORECASE,
)
# not towns: "Room 5", "OpenAI", "SAP"
_NO_TOWN = re.compile(r"\d|[a-z]{2}[A-Z]|\A(?!(?:UK|USA?|UAE|NYC|LA|DC|SF)\b)[A-Z]{2,4}\b")
_WITH_ARTICLE = frozenset(
    {"uk", "us", "usa", "uae", "united", "netherlands", "philippines", "bahamas", "maldives", "hague", "bronx", "czech"}
)
_AFTER_PLACE = re.compile(r"\s(?:to|for|(?:\w{1,12} ){1,2}ago|permanently|full[- ]time)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Form:
    """A form of a clause with one predicate. Groups: `o` is the object, `who` the subject if it is not the speaker."""

    predicate: str
    expression: re.Pattern[str]
    negated: bool = False
    # the opposite predicate: "I don't like" ends `likes` and states `dislikes`
    besides: str | None = None
    # the form states nothing if its object contains this
    unless: re.Pattern[str] | None = None
    # the object needs a capital letter, which distinguishes a town from a tool or a plan
    is_capital: bool = False


def _own(predicate: str, expression: str, *, negated: bool = False, besides: str | None = None) -> _Form:
    return _Form(predicate, re.compile(rf"{expression}\Z", re.IGNORECASE), negated, besides)


def _lives(expression: str, *, unless: re.Pattern[str], is_capital: bool) -> _Form:
    full = re.compile(rf"{expression} {_O}\Z", re.IGNORECASE)
    return _Form("lives_in", full, unless=unless, is_capital=is_capital)


def _others(predicate: str, expression: str, *, negated: bool = False) -> _Form:
    return _Form(predicate, re.compile(rf"{_PERSON} {expression}\Z"), negated)


_FORMS: tuple[_Form, ...] = (
    _own("name", rf"my (?:full |real |first )?name(?: is|'s) {_O}"),
    _own("preferred_name", rf"(?:please )?(?:call me|i go by|my nickname is) {_O}"),
    _lives(rf"(?:i {_ADVERB}(?:live|reside)|{_AM} {_ADVERB}(?:living|based)|i(?:'ve| have) been living) in",
        unless=_LIVED_FOR_NOW, is_capital=False),
    # forms that include other people
    _lives(rf"(?:we (?:{_ADVERB}live|all live)|we(?:'re| are) {_ADVERB}living|we(?:'ve| have) been living) in",
        unless=_LIVED_FOR_NOW, is_capital=True),
    _lives(rf"(?:i|we)(?:'ve| have)? {_ADVERB}(?:moved|relocated)(?: back)? (?:from [\w' -]{{1,40}} )?to",
        unless=_MOVED_LONG_AGO, is_capital=True),
    _own("lives_in", rf"i (?:no longer live|don't live|do not live|used to live|left living|moved away) (?:in|"
        rf"from) {_O}", negated=True),
    _own("works_at", rf"(?:i {_ADVERB}work|{_AM} {_ADVERB}working|{_AM} employed) (?:at|for) {_O}"),
    _own("works_at", rf"i (?:no longer work|don't work|do not work|used to work|stopped working) (?:at|for) "
        rf"{_O}", negated=True),
    _own("works_at", rf"i (?:just |recently )?(?:quit my job|left my job|quit|got fired|was laid off) (?:at|from) "
        rf"{_O}", negated=True),
    _own("occupation", rf"(?:i {_ADVERB}work|{_AM} {_ADVERB}working) as (?:an? |the )?{_O}"),
    _own("occupation", rf"my (?:job|profession|occupation) is (?:an? )?{_O}"),
    _own("occupation", rf"{_AM} {_ADVERB}an? {_JOB}"),
    _own("occupation", rf"{_AM} (?:no longer|not) an? {_JOB}(?: anymore| any more)?", negated=True),
    _own("age", rf"{_AM} {_ADVERB}(?P<o>\d{{1,3}}) years? old"),
    _own("birthday", rf"my birthday is (?:on )?{_O}"),
    _own("birthday", r"i was born on (?P<o>[\w ,./\[\]-]{3,40})"),
    _own("born_in", rf"i was born (?:and raised )?in {_O}"),
    _own("from", rf"{_AM} (?:originally )?from {_O}"),
    _own("likes", rf"i {_ADVERB}(?:like|love|enjoy|adore) {_O}"),
    _own("likes", r"i (?:no longer|don't|do not) (?:really )?(?:like|love|enjoy) (?P<o>[^\x00]{1,200}?)(?: "
        r"anymore| any more| any longer)?",
         negated=True, besides="dislikes"),
    _own("likes", rf"i (?:stopped liking|stopped enjoying|went off) {_O}", negated=True),
    _own("dislikes", rf"i {_ADVERB}(?:hate|dislike|detest|loathe|can't stand|cannot stand) {_O}"),
    _own("dislikes", rf"i (?:no longer|don't|do not) (?:hate|dislike) {_O}", negated=True),
    _own("prefers", rf"i {_ADVERB}prefer {_O}"),
    _own("speaks", rf"i (?:also )?speak (?:fluent |good |some )?{_O}"),
    _own("speaks", rf"i (?:don't|do not) speak {_O}", negated=True),
    _own("native_language", rf"my (?:native|first) language is {_O}"),
    _own("native_language", rf"my mother tongue is {_O}"),
    _own("allergic_to", rf"(?:{_AM} {_ADVERB}allergic|i have an allergy) to {_O}"),
    _own("allergic_to", rf"{_AM} (?:not|no longer) allergic to {_O}", negated=True),
    _own("allergic_to", r"i have a (?P<o>[\w-]{3,20}) allergy"),
    _own("has_pet", rf"(?:i|we)(?:'ve| have)? {_ADVERB}(?:have|own|got|adopted) an? "
        rf"(?P<o>(?:[\w-]{{2,20}} ){{0,2}}(?:{_PETS})(?: {_CALLED} [\w'-]{{1,30}})?)"),
    _own("marital_status", rf"{_AM} {_ADVERB}(?P<o>married|single|divorced|widowed|engaged)"),
    _own("spouse", rf"{_AM} {_ADVERB}married to {_O}"),
    _own("diet", rf"(?:{_AM}|i(?:'ve| have) been|we(?:'re| are)|we(?:'ve| have) been) {_WHOLLY}(?:an? )?(?P<o>{_DIETS})"
        rf"{_SINCE}"),
    _own("diet", rf"(?:i|we)(?:'ve| have)? {_WHOLLY}(?:become|became|gone|went|turned) (?:an? )?(?P<o>{_DIETS})"
        rf"{_LATELY}"),
    _own("diet", rf"(?:i|we)(?:'ve| have)? {_WHOLLY}(?:switched|changed) to an? (?P<o>{_DIETS}) diet{_LATELY}"),
    _own("diet", rf"i {_WHOLLY}eat (?P<o>{_DIETS})"),
    _own("diet", rf"{_AM} (?:not|no longer) (?:an? )?(?P<o>{_DIETS})(?: anymore| any more)?", negated=True),
    _own("diet", rf"i(?:'ve| have)? {_WHOLLY}(?:stopped|quit) being (?:an? )?(?P<o>{_DIETS})", negated=True),
    _own("studies", rf"(?:i {_ADVERB}study|{_AM} {_ADVERB}studying|i major in|{_AM} majoring in) (?!at\b|"
        rf"in\b)(?P<o>[^\x00]{{1,80}})"),
    _own("studies_at", rf"(?:i {_ADVERB}study|{_AM} {_ADVERB}studying) at {_O}"),
    _own("plays", rf"i {_ADVERB}play (?:the )?(?P<o>[\w-]{{3,20}})"),
    _own("drives", rf"i {_ADVERB}drive an? {_O}"),
    _others("lives_in", rf"(?:{_ADVERB}lives|is {_ADVERB}living|resides) in {_O}"),
    _others("lives_in", rf"(?:no longer lives|doesn't live|does not live) in {_O}", negated=True),
    _others("works_at", rf"(?:{_ADVERB}works|is {_ADVERB}working) (?:at|for) {_O}"),
    _others("works_at", rf"(?:no longer works|doesn't work|does not work) (?:at|for) {_O}", negated=True),
    _others("occupation", rf"(?:works as|is) an? {_JOB}"),
    _others("age", r"is (?P<o>\d{1,3}) years? old"),
    _others("allergic_to", rf"is {_ADVERB}allergic to {_O}"),
    _others("likes", rf"{_ADVERB}(?:likes|loves|enjoys|adores) {_O}"),
    _others("dislikes", rf"{_ADVERB}(?:dislikes|hates) {_O}"),
    _others("speaks",  rf"speaks {_O}"),
    _others("spouse", rf"is married to {_O}"),
)  # fmt: skip
_KIN_NAMED = re.compile(
    rf"[Mm]y (?P<kin>{_KIN})(?:(?:'s)? name)?(?: is|'s)? ?(?:is |called |named )(?P<o>[A-Z][\w'-]{{1,30}}(?: "
    rf"[A-Z][\w'-]{{1,30}})?)\Z"
)
_PET_NAMED = re.compile(
    rf"(?:[Mm]y|[Oo]ur) (?P<kin>{_PETS})(?:(?:'s)? name)?(?: is|'s) (?:called |named )?(?P<o>[A-Z][\w'-]{{1,30}})\Z"
)
_FAVOURITE = re.compile(rf"my favou?rite (?P<what>[\w-]{{2,20}}(?: [\w-]{{2,20}})?) is {_O}\Z", re.IGNORECASE)
_NOW = re.compile(r",? (?:now|nowadays|these days|at the moment|currently)\Z", re.IGNORECASE)
_END_SIGNS = re.compile(r"[^\w\])%+#]+\Z")
_NO_LONGER = re.compile(r" (?:anymore|any more|any longer)\Z", re.IGNORECASE)
_AGAINST = {"likes": "dislikes", "dislikes": "likes"}


def find_statements(
    text: str,
    *,
    speaker: str,
    source: UUID,
    said_at: datetime,
    owner: str | None = None,
    actors: Mapping[str, str] | None = None,
) -> list[Statement]:
    """Return the plain facts in a person's turn: at most 50, with resolved subjects and predicates.

    `speaker` is the actor of the turn, `actors` the actors by key of a name (`spelling.names_to_actors`).
    """
    statements: list[Statement] = []
    for clause in statement_clauses(text):
        for who, predicate, value, negated in _in_clause(clause):
            subject = resolve_subject(who or "i", speaker=speaker, owner=owner, actors=actors)
            statements.append(
                Statement(
                    subject=subject,
                    predicate=predicate_key(predicate),
                    object=value,
                    valid_from=said_at,
                    sources=(source,),
                    confidence=CONFIDENCE_OF_OTHERS if who else CONFIDENCE_OWN,
                    tier=starting_tier(predicate),
                    position=len(statements),
                    negated=negated,
                    stated_by=StatedBy.RULES,
                )
            )
            if len(statements) == MAX_STATEMENTS:
                return statements
    return statements


def starting_tier(predicate: str) -> Tier:
    """Return the first tier of an extracted fact: `l3` for lasting properties (known predicates), `l2` for all else."""
    return Tier.L3 if predicate in KNOWN_PREDICATES or predicate.startswith("favourite_") else Tier.L2


_Said = tuple[str | None, str, str, bool]


def _in_clause(clause: Clause) -> Iterator[_Said]:
    text = _NOW.sub("", clause.text)
    for named, predicate in ((_KIN_NAMED, None), (_PET_NAMED, "has_pet")):
        match = named.match(text)
        if match is not None:
            value = f"{match['kin']} named {match['o']}" if predicate else match["o"]
            yield None, predicate or match["kin"], value, False
            return
    favourite = _FAVOURITE.match(text)
    if favourite is not None:
        value = _object(favourite["o"])
        if value is not None:
            yield None, "favourite_" + name_key(favourite["what"]).replace(" ", "_"), value, False
        return
    for form in _FORMS:
        match = form.expression.match(text)
        if match is None:
            continue
        who = match["who"] if "who" in form.expression.groupindex else None
        # an order to remember something states a fact about its author, but none about other people
        if who is not None and (clause.ordered or set(who.casefold().split()) & _NOT_PEOPLE):
            return
        yield from _said(form, who, match["o"])
        return


def _said(form: _Form, who: str | None, text: str) -> Iterator[_Said]:
    negated = form.negated
    if _NO_LONGER.search(text) and not negated:
        return
    if form.unless is not None and form.unless.search(text):
        return
    if form.is_capital and text[0].islower() and not text.startswith("the "):
        return
    if form.predicate == "has_pet":
        text = re.sub(_CALLED_LONG, "named", text, flags=re.IGNORECASE)
    for part in _parts(form.predicate, text):
        value = _object(_AFTER_PLACE.split(part)[0] if form.predicate == "lives_in" else part)
        if value is None or not _fits(form.predicate, value) or (form.is_capital and _NO_TOWN.search(value)):
            continue
        yield who, form.predicate, value, negated
        opposite = form.besides or (None if negated else _AGAINST.get(form.predicate))
        if opposite is not None:
            yield who, opposite, value, not negated


def _parts(predicate: str, text: str) -> list[str]:
    """Split a list of up to 6 objects of one or two words, such as languages; else return the text as one object."""
    if predicate not in {"speaks", "likes", "dislikes", "allergic_to", "plays"}:
        return [text]
    parts = [part for part in re.split(r",? and |, ", text) if part]
    return parts if len(parts) <= 6 and all(len(part.split()) <= 2 for part in parts) else [text]  # noqa: PLR2004


def _object(text: str) -> str | None:
    """Return the object without the words that follow it, or None if it is empty, negated or too long to be plain."""
    stop = _STOP.search(text)
    value = (text[: stop.start()] if stop else text).strip(" .,!'-")
    value = _END_SIGNS.sub("", value)
    words = value.split()
    if not words or words[0].casefold() in _NEGATIONS or len(words) > _MAX_OBJECT_WORDS or not object_key(value):
        return None
    return value


def _fits(predicate: str, value: str) -> bool:
    """Return whether an object fits the predicate: "fear" is no place, a sentence is no name."""
    words = value.casefold().split()
    if predicate == "age":
        return 0 < int(value) < _OLDEST
    if predicate in {"lives_in", "born_in", "from", "speaks"} and not words[0][0].isalpha():
        return False
    if predicate in {"name", "preferred_name", "spouse"} and not _A_NAME.fullmatch(value):
        return False
    if predicate == "preferred_name" and not value[0].isupper():  # "call me later"
        return False
    if predicate in {"lives_in", "born_in", "from"} and words[0] == "the" and words[1:2] and words[1] in _WITH_ARTICLE:
        return len(words) <= _MAX_WORDS[predicate]
    return len(words) <= _MAX_WORDS.get(predicate, _MAX_OBJECT_WORDS) and words[0] not in _NO_BEGINNING.get(
        predicate, _NOTHING_NAMED
    )
