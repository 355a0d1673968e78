"""Writes the table of round trips from what `tests/api/test_statements.py` expects."""

from tests.api.round_trips import ROUND_TRIPS, RoundTrips


def round_trips() -> str:
    """Return the hot paths in Markdown, each with its number of round trips and its messages."""
    lines = ["| request | round trips | messages |", "|---|---|---|"]
    lines += [f"| {path.request} | {len(path.messages)} | {_messages(path)} |" for path in ROUND_TRIPS.values()]
    return "\n".join(lines)


def _messages(path: RoundTrips) -> str:
    texts = [
        message.removesuffix(" set").removesuffix(" m").replace("insert into ", "insert ") for message in path.messages
    ]
    return ", ".join(text.replace("; commit", " with commit") for text in texts)
