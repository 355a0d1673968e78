"""Groups of settings: one name for each setting, frozen, and all faults reported at once."""

from collections import Counter

import pytest
from pydantic import ValidationError

from app.cli.common import read_settings
from app.settings import Settings
from app.settings.group import SettingsGroup


def groups(settings: Settings) -> list[SettingsGroup]:
    return [group for _, group in settings if isinstance(group, SettingsGroup)]


def test_every_member_is_a_frozen_group_and_no_two_groups_have_the_same_setting() -> None:
    settings = Settings()
    assert len(groups(settings)) == len(Settings.model_fields)
    assert all(group.model_config.get("frozen") for group in [settings, *groups(settings)])
    count = Counter(name for group in groups(settings) for name in type(group).model_fields)
    assert {name for name, times in count.items() if times > 1} == {"openai_api_key"}


def test_a_setting_is_given_by_its_flat_name_and_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEP_LIVE_QUEUE_FRAMES", "7")
    monkeypatch.setenv("turnkeep_port", "1234")
    assert Settings().live.live_queue_frames == 7
    assert Settings(live_queue_frames=3).live.live_queue_frames == 3
    assert Settings(live_queue_frames=3).server.port == 1234
    given = Settings(openai_api_key="sk-both", llm_model="m", embedder="openai")
    assert (given.chat.key_of_llm, given.embedding.key_of_embeddings) == ("sk-both", "sk-both")


def test_scopes_that_do_not_fit_into_memory_are_not_searched_exactly() -> None:
    def exact(dimensions: int, **given: int) -> int:
        return Settings(**given).index.exact_entries(dimensions)

    assert exact(384) == exact(384, resident_index_mb=10_000) == 200_000
    assert 80_000 < exact(1536) < 81_000 < exact(1024, resident_index_mb=600) < exact(1536, resident_index_mb=2000)
    assert exact(384, resident_index_mb=1) == exact(384, resident_index_mb=0) == 20_000
    assert exact(384, exact_scope_entries=5) == exact(384, exact_scope_entries=5, resident_index_mb=0) == 5


def test_unknown_names_and_groups_are_refused() -> None:
    with pytest.raises(ValidationError, match="live_queue_frame\n"):
        Settings(live_queue_frame=3)


def test_the_faults_of_all_groups_are_reported_with_the_names_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNKEEP_LIVE_QUEUE_FRAMES", "s3cret")
    monkeypatch.setenv("DATABASE_URL", "mysql://s3cret@localhost")
    monkeypatch.setenv("TURNKEEP_TOKEN_TTL_S", "3600")
    monkeypatch.setenv("TURNKEEP_TOKEN_MAX_TTL_S", "60")
    with pytest.raises(SystemExit):
        read_settings(port=-1)
    said = capsys.readouterr().err
    assert "s3cret" not in said
    assert [line.split(": ")[1] for line in said.splitlines()] == [
        "TURNKEEP_PORT",
        "TURNKEEP_DATABASE_URL",
        "settings",
        "TURNKEEP_LIVE_QUEUE_FRAMES",
    ]
