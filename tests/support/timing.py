"""Time limits of tests: generous where an endpoint should answer, short only where a test waits for one to be over."""

from typing import Any

import pytest

PATIENT_S = 30.0
PATIENT_MS = 30_000
"""For an endpoint that answers: on a busy machine a request to a fake may take seconds."""


def shorten_timeout(monkeypatch: pytest.MonkeyPatch, provider: Any, *, timeout_s: float = 0.5) -> None:
    """Let an embedder or chat model give up soon, until the end of the test or `monkeypatch.undo()`."""
    if hasattr(provider, "_timeout_s"):
        monkeypatch.setattr(provider, "_timeout_s", timeout_s)
    else:
        limits = {"llm_timeout_ms": int(timeout_s * 1000), "llm_job_timeout_s": timeout_s}
        monkeypatch.setattr(provider, "_settings", vars(provider)["_settings"].model_copy(update=limits))


class StoppedClock:
    """A time that stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
