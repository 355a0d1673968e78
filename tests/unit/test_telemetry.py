"""What the log may say."""

import asyncio
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
import structlog

from app.core.telemetry import LOG_FIELDS, OncePerMinute, configure_logging, error_stack, get_logger
from app.settings import Settings

SECRET = "s3cret-marker"


@pytest.fixture(autouse=True)
def _restore_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    yield
    configure_logging(Settings(log_level="error").telemetry)  # as for all other tests
    root.setLevel(level)
    logging.captureWarnings(capture=False)


@pytest.fixture
def log() -> io.StringIO:
    stream = io.StringIO()
    configure_logging(Settings(log_level="debug").telemetry, stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_event_level_and_timestamp(log: io.StringIO) -> None:
    get_logger().info("turns.appended", count=3)
    (line,) = lines(log)
    assert line.pop("timestamp")
    assert line == {"event": "turns.appended", "level": "info", "count": 3}


def test_fields_that_are_not_listed_are_dropped(log: io.StringIO) -> None:
    get_logger().info("turns.appended", content=SECRET, text=SECRET, query=SECRET, count=1)
    assert SECRET not in log.getvalue()
    assert set(lines(log)[0]) <= LOG_FIELDS


def test_an_event_that_is_not_noun_verb_loses_its_text(log: io.StringIO) -> None:
    get_logger().info(f"got {SECRET}", count=1)
    assert lines(log)[0]["event"] == "event.unnamed"
    assert SECRET not in log.getvalue()


def test_values_are_ids_numbers_and_short_texts(log: io.StringIO) -> None:
    get_logger().info("x.done", turn_id=UUID(int=1), code="a" * 1000, count={"k": SECRET}, stack=["a", {"b": SECRET}])
    line = lines(log)[0]
    assert line["turn_id"] == "00000000000000000000000001"
    assert len(str(line["code"])) == 300
    assert line["count"] == "dict"
    assert line["stack"] == ["a"]


def _fail(message: str) -> None:
    raise ValueError(message)


def test_an_exception_is_its_type_and_places_without_its_message(log: io.StringIO) -> None:
    try:
        try:
            _fail(SECRET)
        except ValueError as error:
            raise KeyError(SECRET) from error
    except KeyError:
        get_logger().exception("job.failed")
    line = lines(log)[0]
    assert line["error_type"] == "KeyError"
    stack = line["stack"]
    assert isinstance(stack, list)
    assert "caused by ValueError" in stack
    assert all("test_telemetry.py:" in place for place in stack if "caused" not in place)
    assert SECRET not in log.getvalue()


def test_a_very_deep_stack_is_cut() -> None:
    def dive(depth: int) -> None:
        if depth == 0:
            _fail(SECRET)
        dive(depth - 1)

    with pytest.raises(ValueError, match=SECRET) as caught:
        dive(200)
    assert len(error_stack(caught.value)) <= 40


def test_context_variables_are_added(log: io.StringIO) -> None:
    with structlog.contextvars.bound_contextvars(request_id="r-1", other=SECRET):
        get_logger().info("x.done")
    assert lines(log)[0]["request_id"] == "r-1"
    assert SECRET not in log.getvalue()


def test_configuring_twice_writes_each_line_once(log: io.StringIO) -> None:
    configure_logging(Settings(log_level="debug").telemetry, log)
    configure_logging(Settings(log_level="debug").telemetry, log)
    get_logger().info("x.done")
    logging.getLogger("uvicorn.error").info("Shutting down")
    assert len(lines(log)) == 2


def test_the_level_is_a_floor_for_own_and_foreign_lines() -> None:
    stream = io.StringIO()
    configure_logging(Settings(log_level="error").telemetry, stream)
    get_logger().warning("x.done")
    logging.getLogger("uvicorn.error").info("Shutting down")
    logging.getLogger("some.library").warning("something %s", "x")
    assert stream.getvalue() == ""


def test_the_console_format_is_text_with_the_same_fields() -> None:
    stream = io.StringIO()
    configure_logging(Settings(log_format="console").telemetry, stream)
    get_logger().info("turns.appended", count=3, content=SECRET)
    assert "turns.appended" in stream.getvalue()
    assert "count=3" in stream.getvalue()
    assert SECRET not in stream.getvalue()


def test_without_a_format_a_terminal_gets_text_and_a_file_gets_json() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, starts in ((Terminal(), "2"), (io.StringIO(), "{")):
        configure_logging(Settings().telemetry, stream)
        get_logger().info("turns.appended", count=3)
        assert stream.getvalue().startswith(starts)


def test_a_database_that_is_away_is_one_line_a_minute_for_each_event_without_a_stack(log: io.StringIO) -> None:
    for _ in range(3):
        for event in ("jobs.claim_failed", "sweep.failed"):
            get_logger().warning(event, code="database_unavailable")
        refused = ConnectionRefusedError(SECRET)
        logging.getLogger("asyncpg.pool").warning("Failed to restore the connections", exc_info=refused)
        get_logger().warning("jobs.claim_failed", code="job_timeout")
    events = [line["event"] for line in lines(log) if line.get("code") != "job_timeout"]
    assert events == ["jobs.claim_failed", "sweep.failed", "library.logged"]
    assert not any("stack" in line for line in lines(log))
    assert len(lines(log)) == 6

    clock = [0.0]
    once = OncePerMinute(lambda: clock[0])
    event = {"event": "jobs.claim_failed", "code": "database_unavailable"}
    assert once(None, "", dict(event)) == event
    clock[0] = 61.0
    assert once(None, "", dict(event)) == event


def test_uvicorn_says_where_it_listens(log: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").info("Uvicorn running on %s://%s:%d (CTRL+C)", "http", "127.0.0.1", 8765)
    line = lines(log)[0]
    assert line["event"] == "library.logged"
    assert line["library"] == "uvicorn.error"
    assert line["library_message"] == "Uvicorn running on http://127.0.0.1:8765 (CTRL+C)"


def _websocket(logger: logging.Logger) -> None:
    path = f"/v1/conversations/{SECRET}/live?token={SECRET}"
    logger.info('%s - "WebSocket %s" [accepted]', "1.2.3.4:5", path)
    logger.info('%s - "WebSocket %s" %d', "1.2.3.4:5", path + f'"{SECRET} x', 404)


def _any_url(logger: logging.Logger) -> None:
    logger.warning("Odd request to %s", f"/x?q={SECRET}")


def _access(_logger: logging.Logger) -> None:
    logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", f"/{SECRET}", "1.1", 200)


def _traceback(logger: logging.Logger) -> None:
    try:
        _fail(SECRET)
    except ValueError as error:
        logger.error("Exception in ASGI application\n", exc_info=error)  # noqa: TRY400 - as uvicorn does


def _formatted_traceback(logger: logging.Logger) -> None:
    text = (  # as starlette hands it to uvicorn
        'Traceback (most recent call last):\n  File "/x/app/main.py", line 3, in f\n    boom()\n'
        f"asyncpg.exceptions.PostgresError: {SECRET}\nDETAIL: {SECRET}\n{SECRET.replace('-', '')}: x"
    )
    logger.error(text)


def _returned_object(logger: logging.Logger) -> None:
    logger.error("ASGI callable should return None, but returned '%s'.", {"a": SECRET})


def _asyncio_task(_logger: logging.Logger) -> None:
    text = f"Task exception was never retrieved\nfuture: <Task exception=ValueError('{SECRET}')>"
    logging.getLogger("asyncio").error(text)


def _asyncio_other(_logger: logging.Logger) -> None:
    logging.getLogger("asyncio").error(f"{SECRET} happened")  # noqa: G004 - as careless libraries do


def _library_arguments(_logger: logging.Logger) -> None:
    logging.getLogger("sqlalchemy.pool").error("row %r of %s", SECRET, SECRET)


def _library_formatted(_logger: logging.Logger) -> None:
    logging.getLogger("careless").error(f"row {SECRET}")  # noqa: G004 - as careless libraries do


def _library_odd_arguments(_logger: logging.Logger) -> None:
    logging.getLogger("uvicorn.error").error("%d %s", SECRET)  # noqa: PLE1206 - as careless libraries do


def _exception_as_message(logger: logging.Logger) -> None:
    logger.error(ValueError(SECRET))


def _warning(_logger: logging.Logger) -> None:
    warnings.warn(f"input_value={SECRET!r}", UserWarning, stacklevel=1)


@pytest.mark.parametrize(
    "say",
    [
        _websocket, _any_url, _access, _traceback, _formatted_traceback, _returned_object, _asyncio_task,
        _asyncio_other, _library_arguments, _library_formatted, _library_odd_arguments, _exception_as_message, _warning,
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("always")
def test_lines_of_libraries_never_quote_content(
    log: io.StringIO, capsys: pytest.CaptureFixture[str], say: Callable[[logging.Logger], None]
) -> None:
    root = logging.getLogger()  # pytest's handlers would format what is odd on purpose here
    root.handlers[:] = [handler for handler in root.handlers if type(handler).__module__ == "app.core.telemetry"]
    logging.captureWarnings(capture=True)  # pytest has put its own recorder in place for the test
    say(logging.getLogger("uvicorn.error"))
    seen = log.getvalue() + "".join(capsys.readouterr())
    assert SECRET not in seen
    assert SECRET.replace("-", "") not in seen
    assert all(set(line) <= LOG_FIELDS for line in lines(log))


def test_the_type_and_places_of_foreign_exceptions_are_kept(log: io.StringIO) -> None:
    _traceback(logging.getLogger("uvicorn.error"))
    _formatted_traceback(logging.getLogger("uvicorn.error"))
    first, second = lines(log)
    assert first["error_type"] == "ValueError"
    assert first["library_message"] == "Exception in ASGI application"
    assert second["error_type"] == "asyncpg.exceptions.PostgresError"
    assert second["stack"] == ["app/main.py:3"]


async def test_a_forgotten_task_is_reported_without_its_message(log: io.StringIO) -> None:
    async def boom() -> None:
        await asyncio.sleep(0)
        _fail(SECRET)

    task = asyncio.create_task(boom())
    await asyncio.wait([task])
    context = {"message": "Task exception was never retrieved", "exception": task.exception(), "future": task}
    asyncio.get_running_loop().call_exception_handler(context)
    # an application on the same loop may log meanwhile
    (line,) = [one for one in lines(log) if one.get("library_message") == context["message"]]
    assert line["error_type"] == "ValueError"
    assert SECRET not in log.getvalue()
