"""Keys of subjects, predicates and objects of facts: spellings with the same key mean the same. Pure.

Keys are compared, spellings are shown. Keys fold case, width, articles, punctuation and white space, but nothing that
could make two different things equal: no stemming, no guessing of names.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping

from app.memory.schemas import MAX_OBJECT_CHARACTERS

_MAX_SUBJECT_CHARACTERS = 256
_MAX_PREDICATE_CHARACTERS = 128
_ARTICLES = frozenset({"a", "an", "the"})
_SELF = frozenset({"i", "me", "my", "mine", "myself", "user", "i'm", "im"})
_PUNCTUATION_AROUND = re.compile(r"^[^\w+\-#]+|[^\w+#%]+$")
_BETWEEN_WORDS = re.compile(r"[\s_]+")
_NUMBER = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3}){1,6}(?:\.\d{1,9})?|[+-]?(?:0|[1-9]\d{0,17})(?:\.\d{1,9})?")
_NO_FRACTION = re.compile(r"\.0+\Z")
_AUXILIARIES = frozenset(
    {"is", "are", "am", "was", "be", "been", "being", "has", "have", "had", "currently", "now", "just", "recently"}
)

# Predicates with one object at a time: a new object ends the previous one. A predicate is listed only if two objects at
# the same time are nearly always a contradiction. Deliberately not listed: works_at (second jobs), likes, speaks and
# native_language (there are bilinguals), owns, has_pet, has_child, studies, allergic_to, diet (a vegan may also eat no
# gluten: see `_ALTERNATIVES`), email and phone (people have several), citizen_of, born_in (a year as well as a town).
SINGLE_VALUED = frozenset(
    {
        "name", "preferred_name", "age", "birthday", "lives_in", "marital_status", "spouse", "gender", "pronouns",
        "height", "weight", "time_zone", "blood_type", "mother", "father",
    }
)  # fmt: skip
# "favourite_colour", "favourite_film": there is only one
_SINGLE_VALUED_PREFIX = "favourite_"

# Objects that exclude each other, of predicates that can have several objects: a vegan is no longer a vegetarian, but
# may also keep kosher.
_ALTERNATIVES: Mapping[str, frozenset[str]] = {
    "diet": frozenset(
        {"vegetarian", "vegan", "pescatarian", "omnivore", "carnivore", "flexitarian", "lacto-vegetarian"}
    )
}
_CALLED = re.compile(
    r"(?<=\w )(?:called|whose name is|by the name of|(?:that|which|who)(?: is|'s) (?:called|named))(?= \w)"
)

_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "lives_in": (
        "live in", "lives in", "living in", "resides in", "reside in", "residing in", "moved to", "relocated to",
        "based in", "located in", "home is", "city of residence", "residence", "city",
        "current city",
    ),
    "works_at": (
        "work at", "works at", "works for", "work for", "working at", "working for", "employed by", "employed at",
        "employer", "company", "job at",
    ),
    "occupation": ("works as", "work as", "working as", "job", "profession", "job title", "occupation", "career"),
    "name": ("name", "called", "name is", "named", "full name", "goes by the name"),
    "preferred_name": ("nickname", "goes by", "call me", "prefers to be called", "preferred name"),
    "age": ("age", "age is", "years old", "aged"),
    "birthday": ("birthday", "birthday is", "born on", "date of birth", "birth date", "dob"),
    "born_in": ("born in", "birthplace", "place of birth"),
    "from": ("comes from", "come from", "from", "hails from", "originally from", "home country", "hometown"),
    "marital_status": ("marital status", "relationship status", "civil status"),
    "spouse": ("spouse", "married to", "husband", "wife", "husband is", "wife is"),
    "partner": ("partner", "girlfriend", "boyfriend", "fiance", "fiancé", "fiancée", "engaged to", "dating"),
    "likes": ("like", "likes", "loves", "love", "enjoys", "enjoy", "fond of", "fan of", "into", "interested in"),
    "dislikes": ("dislike", "dislikes", "hates", "hate", "cannot stand", "can't stand", "detests", "loathes"),
    "prefers": ("prefer", "prefers", "preference"),
    "speaks": ("speak", "speaks", "speaks language", "fluent in", "languages", "language"),
    "native_language": ("native language", "mother tongue", "first language"),
    "allergic_to": ("allergic to", "allergy", "has an allergy to", "allergy to", "allergies"),
    "has_pet": ("pet", "pet is", "pets", "owns pet", "has pet", "has a pet"),
    "has_child": ("child", "children", "son", "daughter", "has son", "has daughter", "kid", "kids"),
    "has_sibling": ("brother", "sister", "sibling", "has brother", "has sister"),
    "mother": ("mother", "mom", "mum"),
    "father": ("father", "dad"),
    "studies": ("study", "studies", "studying", "majors in", "major", "field of study"),
    "studies_at": ("study at", "studies at", "studying at", "enrolled at", "university"),
    "owns": ("own", "owns", "possesses"),
    "drives": ("drive", "drives", "car"),
    "plays": ("play", "plays", "playing"),
    "diet": ("diet", "dietary preference", "diet is"),
    "email": ("email", "e-mail", "email address", "mail"),
    "phone": ("phone", "phone number", "telephone", "mobile"),
    "time_zone": ("time zone", "timezone"),
    "gender": ("gender", "sex"),
    "uses": ("use", "uses", "using"),
}  # fmt: skip
_CANONICAL: Mapping[str, str] = {
    **{name.replace("_", " "): name for name in _SYNONYMS},
    **{spelling: name for name, spellings in _SYNONYMS.items() for spelling in spellings},
}
# extracted facts of these predicates start in tier l3, all others in l2
KNOWN_PREDICATES = frozenset(_SYNONYMS) | SINGLE_VALUED


def _folded(text: str) -> str:
    small = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    visible = "".join(character for character in small if unicodedata.category(character) != "Cf")
    return _BETWEEN_WORDS.sub(" ", visible).strip()


def _without_articles(text: str) -> str:
    words = text.split(" ")
    while len(words) > 1 and words[0] in _ARTICLES:
        del words[0]
    return " ".join(words)


def name_key(text: str) -> str:
    """Return the key of a name or another subject."""
    folded = _PUNCTUATION_AROUND.sub("", _folded(text[:_MAX_SUBJECT_CHARACTERS]))
    return _without_articles(folded).removesuffix("'s")


def names_to_actors(spellings: Iterable[tuple[str, Iterable[str]]]) -> dict[str, str]:
    """Return the actor of each name's key, from pairs of an actor and its names. A name of two actors is left out."""
    meant: dict[str, str | None] = {}
    for actor, names in spellings:
        for key in {name_key(actor), *map(name_key, names)} - {""}:
            meant[key] = actor if meant.get(key, actor) == actor else None
    return {key: actor for key, actor in meant.items() if actor is not None}


def resolve_subject(
    subject: str, *, speaker: str | None, owner: str | None, actors: Mapping[str, str] | None = None
) -> str:
    """Return the resolved subject, as a key: for "I" or "me" the speaker, else the owner; for a name its actor.

    "The user" is the owner, else the speaker. Any other subject resolves to its own key.
    """
    key = name_key(subject)
    if key in _SELF:
        # "the user" means the owner of the conversation
        first, second = (owner, speaker) if key == "user" else (speaker, owner)
        return name_key(first or second or "user")
    return name_key((actors or {}).get(key, key))


def predicate_key(text: str) -> str:
    """Return the canonical predicate: "resides in" gives `lives_in`. An unknown one stays, in snake case."""
    folded = _PUNCTUATION_AROUND.sub(
        "", _folded(text[: _MAX_PREDICATE_CHARACTERS * 2]).replace("favorite", "favourite")
    )
    folded = _BETWEEN_WORDS.sub(" ", folded)
    if folded in _CANONICAL:
        return _CANONICAL[folded]
    words = folded.split(" ")
    while len(words) > 1 and words[0] in _AUXILIARIES | _ARTICLES | {"my"}:
        del words[0]
    if len(words) > 1 and words[-1] == "is":
        del words[-1]
    rest = " ".join(words)
    return _CANONICAL.get(rest, re.sub(r"[^\w]+", "_", rest).strip("_")[:_MAX_PREDICATE_CHARACTERS]) or "is"


def is_single_valued(predicate: str) -> bool:
    """Return whether a canonical predicate has one object at a time."""
    return predicate in SINGLE_VALUED or predicate.startswith(_SINGLE_VALUED_PREFIX)


def excludes(predicate: str, first: str, second: str) -> bool:
    """Return whether a subject cannot have both objects (keys) of a canonical predicate at the same time."""
    if first == second:
        return False
    said = {text.removesuffix(f" {predicate}") for text in (first, second)}  # a "vegan diet" is "vegan"
    return is_single_valued(predicate) or (len(said) > 1 and said <= _ALTERNATIVES.get(predicate, frozenset()))


def object_key(text: str) -> str:
    """Return the key of an object: two texts with the same key are the same object. Numbers compare as numbers."""
    folded = _without_articles(_PUNCTUATION_AROUND.sub("", _folded(text[:MAX_OBJECT_CHARACTERS])))
    folded = _CALLED.sub("named", folded)  # "cat called Biscuit" is "cat named Biscuit"
    words = [_number(_PUNCTUATION_AROUND.sub("", word)) for word in folded.split(" ")]
    return " ".join(filter(None, words)) or _folded(text[:MAX_OBJECT_CHARACTERS])


def _number(word: str) -> str:
    # "1,000.0" is "1000". "3.10" is not "3.1" (they may be versions), and "007" is not "7"
    if _NUMBER.fullmatch(word) is None:
        return word
    return _NO_FRACTION.sub("", word.replace(",", "").removeprefix("+"))
