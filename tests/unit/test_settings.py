"""Groups of settings: one name for each setting, frozen, and all faults reported at once."""

import os
from collections import Counter

import pytest
from pydantic import ValidationError

from app.cli.common import read_settings
from app.settings import Settings, setting_fields, unknown_variables
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
    monkeypatch.setenv("TURNKEEP_OIDC_ISSUER", "https://s3cret.example.com")  # without an audience
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


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("TURNKEEP_"):
            monkeypatch.delenv(name)
    unset = Settings()
    for name in setting_fields():
        monkeypatch.setenv(f"TURNKEEP_{name.upper()}", "")
    for name in ("DATABASE_URL", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "")
    assert Settings() == unset


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("TURNKEEP_PORT", "65536", "at most 65535"),
        ("TURNKEEP_PORT", "http", "a whole number is expected"),
        ("TURNKEEP_WORKER_IN_PROCESS", "perhaps", "true or false is expected"),
        ("TURNKEEP_LOG_FORMAT", "xml", "'json' or 'console' is expected"),
        ("TURNKEEP_URL", "turnkeep.example", "a base URL is absolute: http:// or https:// and a host"),
        (
            "TURNKEEP_NATS_URL",
            "http://h",
            "a NATS URL is like nats://user:password@host:4222 or tls://…; commas between several",
        ),
    ],
)
def test_a_wrong_variable_is_answered_with_its_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str, rule: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        read_settings()
    assert capsys.readouterr().err == f"turnkeep: {name}: {rule}\n"


def test_variables_that_are_no_settings_are_named_with_the_nearest_one() -> None:
    environment = [
        "TURNKEEP_PORT", "turnkeep_host", "DATABASE_URL", "TERM", "TMPDIR",
        "TURNKEEP_TEST_POSTGRES", "TURNKEEP_SERVICE_HOST", "TURNKEEP_PORT_8765_TCP_ADDR", "PATH",
    ]  # fmt: skip
    assert unknown_variables(environment) == []
    assert unknown_variables(
        ["TURNKEEP_PROT", "TURNKEP_PORT", "turnkeep_data_dri", "TURNKEEP_QUOKKA", *environment]
    ) == [
        "TURNKEEP_PROT (did you mean TURNKEEP_PORT?)",
        "TURNKEEP_QUOKKA",
        "TURNKEP_PORT (did you mean TURNKEEP_PORT?)",
        "turnkeep_data_dri (did you mean TURNKEEP_DATA_DIR?)",
    ]
