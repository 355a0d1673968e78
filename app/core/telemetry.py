"""Logging: one module decides which fields a log line may have.

Every line is an event named `noun.verb` with fields from `LOG_FIELDS`; all other fields are dropped, so content and
secrets cannot leak by a careless call. Exceptions are logged as their type and code locations, never with their
message. Lines of libraries are filtered too: their text is kept only if it cannot contain a caller's words.
"""

import logging
import math
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TextIO, cast
from uuid import UUID

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from app.core.ids import format_id
from app.settings.server import TelemetrySettings

LOG_FIELDS: Final = frozenset(
    {
        "event", "level", "timestamp",
        "request_id", "trace_id", "tenant_id", "key_id", "conversation_id", "turn_id", "entry_id", "job_id",
        "project", "session_id",
        "method", "route", "status", "tool", "duration_ms", "code", "kind", "scope",
        "space", "space_id", "count", "attempt", "limit", "bytes", "tokens", "vectors", "seq", "retry_after_s",
        "error_type", "stack", "sqlstate",
        "version", "revision", "host", "port",
        "setting", "file",
        "library", "library_message",
    }
)  # fmt: skip
"""All fields of a log line: ids, numbers and our own names. A caller's name is logged only by `plain_name`.

`file` is a path that a setting names, never what is in the file.
"""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_EVENT_NAME: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_UNNAMED_EVENT: Final = "event.unnamed"
_SECONDS: Final = "%Y-%m-%dT%H:%M:%SZ"
_MAX_TEXT: Final = 300
_MAX_ITEMS: Final = 40
_MAX_FRAMES: Final = 30
_MAX_CAUSES: Final = 4
_PLAIN_TEXT_LOGGERS: Final = ("uvicorn", "alembic")
"""Loggers whose text is about the process itself. Of other loggers, only the constant template is kept."""
_POOL_LOGGER: Final = "asyncpg.pool"
_REPEAT_S: Final = 60.0
_ASYNCIO_MESSAGES: Final = (
    "Task exception was never retrieved",
    "Future exception was never retrieved",
    "Task was destroyed but it is pending!",
    "Unhandled exception in event loop",
    "Exception in callback",
    "Exception in default exception handler",
    "socket.send() raised exception.",
)
_TRACEBACK_FRAME: Final = re.compile(r'^\s*File "([^"\n]+)", line (\d+)', re.MULTILINE)
_TRACEBACK_TYPE: Final = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
_QUERY: Final = re.compile(r"\?\S*")
_WARNING: Final = re.compile(r"^(?P<file>[^\n]+?):(?P<line>\d+): (?P<category>\w+): ")


def plain_name(name: str) -> str | None:
    """Return a caller's name if it has at most 64 letters, digits, `_`, `-` and `.`, else None: it may be content."""
    return name if _PLAIN_NAME.fullmatch(name) else None


def configure_logging(settings: TelemetrySettings, stream: TextIO | None = None) -> None:
    """Send all logging of the process to `stream` (default: stderr, since commands print to stdout).

    Called by `main` and `cli`, never at import; another call replaces the settings. Run uvicorn with `log_config=None,
    access_log=False`, or it installs its own handlers.
    """
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    output = stream or sys.stderr
    is_console = settings.log_format == "console" or (settings.log_format is None and output.isatty())
    renderer: Processor = _render_for_people if is_console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt=_SECONDS if is_console else "iso", utc=True, key="timestamp"),
            describe_exception,
            keep_allowed_fields,
            OncePerMinute(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=output),
        cache_logger_on_first_use=False,  # a cached logger would keep writing to the stream of an earlier call
    )
    _route_standard_logging(level)


def get_logger() -> FilteringBoundLogger:
    """Return a logger of the service: `get_logger().info("turns.appended", count=3)`."""
    return cast("FilteringBoundLogger", structlog.get_logger())


_CONSOLE = structlog.dev.ConsoleRenderer(colors=False)


def _render_for_people(logger: WrappedLogger, method: str, event: EventDict) -> str:
    # the renderer expects `stack` as text, and fails on a list
    if isinstance(places := event.get("stack"), list):
        event["stack"] = "\n".join(cast("list[str]", places))
    return _CONSOLE(logger, method, event)


def error_type(error: BaseException) -> str:
    """Return the name of an exception's class, with its module unless it is built in."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def error_stack(error: BaseException) -> list[str]:
    """Return the code locations of an exception as `file:line`, outermost first, then those of its causes."""
    places: list[str] = []
    for depth, link in enumerate(_causes(error)):
        if depth:
            places.append(f"caused by {error_type(link)}")
        frames = [_place(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(link.__traceback__)]
        places.extend(frames[-_MAX_FRAMES:])
    return places[:_MAX_ITEMS]


def describe_exception(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace `exc_info` by `error_type` and `stack`; the message of an exception may quote content."""
    raised: object = event.pop("exc_info", None)
    if isinstance(raised, tuple):
        raised = cast("tuple[object, ...]", raised)[1]
    elif raised and not isinstance(raised, BaseException):
        raised = sys.exc_info()[1]
    if isinstance(raised, BaseException):
        event["error_type"] = error_type(raised)
        event["stack"] = error_stack(raised)
    return event


def keep_allowed_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Drop every field that is not in `LOG_FIELDS`, and every event name that is free text."""
    fields: EventDict = {name: _loggable(value) for name, value in event.items() if name in LOG_FIELDS}
    if not _EVENT_NAME.fullmatch(str(fields.get("event", ""))):
        fields["event"] = _UNNAMED_EVENT
    return fields


class OncePerMinute:
    """Filter of repeated lines about an unavailable database, because background work logs one at every attempt.

    One line per minute and event is logged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Return the event, or drop it."""
        if event.get("code") == "database_unavailable" or event.get("library") == _POOL_LOGGER:
            name, now = str(event.get("event")), self._clock()
            if now - self._logged.get(name, -math.inf) < _REPEAT_S:
                raise structlog.DropEvent
            self._logged[name] = now
        return event


def _loggable(value: object) -> object:
    """Return a value in loggable form: short text, a number, a short list of those; otherwise its type."""
    match value:
        case None | bool() | int() | float():
            return value
        case UUID():
            return format_id(value)
        case str():
            return str(value)[:_MAX_TEXT]
        case list() | tuple():
            items = cast("Sequence[object]", value)
            return [str(item)[:_MAX_TEXT] for item in items[:_MAX_ITEMS] if isinstance(item, str | int)]
        case _:
            return type(value).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _place(file: str, line: int | str) -> str:
    """Return a source location without the installation's folders."""
    parts = file.replace("\\", "/").split("/")
    for root in ("site-packages", "app"):
        if root in parts:
            start = len(parts) - 1 - parts[::-1].index(root)
            return "/".join(parts[start + (root == "site-packages") :]) + f":{line}"
    return "/".join(parts[-2:]) + f":{line}"


def _route_standard_logging(level: int) -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(_LibraryHandler())
    # below warning, libraries log many lines, and quote the data that they process
    root.setLevel(max(level, logging.WARNING))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.asgi", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.disabled = False
        logger.setLevel(level if name != "asyncio" else logging.NOTSET)
    access = logging.getLogger("uvicorn.access")  # it logs raw paths with their queries; request.finished does not
    access.handlers.clear()
    access.propagate = False
    access.disabled = True
    logging.captureWarnings(capture=True)  # pydantic's warnings quote values


class _LibraryHandler(logging.Handler):
    """Handler that logs records of the standard library's logging as `library.logged`, reduced to safe fields."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record; never raises."""
        fields: Mapping[str, object] = {}
        try:
            fields = _library_fields(record)
        except Exception as error:  # noqa: BLE001 - logging must not break what it reports on
            fields = {"error_type": error_type(error)}
        level = max(step for step in (10, 20, 30, 40, 50) if step <= max(record.levelno, 10))
        get_logger().log(level, "library.logged", library=record.name, **fields)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - name of the standard library
        """Do nothing: the default prints the record's arguments to stderr."""


def _library_fields(record: logging.LogRecord) -> dict[str, object]:
    if record.name == "py.warnings":
        return _warning_fields(record)
    fields: dict[str, object] = {}
    if record.exc_info and record.exc_info[1] is not None:
        if record.name == _POOL_LOGGER:  # it could not connect: a stack would show no defect
            return {"error_type": error_type(record.exc_info[1])}
        fields["exc_info"] = record.exc_info[1]
    message: object = record.msg
    if isinstance(message, BaseException):
        fields.setdefault("exc_info", message)
        message = message.strerror if isinstance(message, OSError) else None
    if isinstance(message, str) and message.startswith("Traceback (most recent call last)"):
        # starlette passes a failed start to uvicorn as formatted text, with the exception's message at its end
        fields["stack"] = [_place(file, line) for file, line in _TRACEBACK_FRAME.findall(message)]
        types = cast("list[str]", _TRACEBACK_TYPE.findall(message))
        fields["error_type"] = types[0] if types else "Exception"  # later matches may be part of its message
        message = "startup or shutdown failed"
    if isinstance(message, str) and (text := _library_text(record, message)):
        fields["library_message"] = text
    return fields


def _library_text(record: logging.LogRecord, message: str) -> str | None:
    """Return the part of a library's line that no caller can have written, or None."""
    if record.name.split(".")[0] in _PLAIN_TEXT_LOGGERS:
        text = message % _safe_arguments(message, record.args) if record.args else message
        return _first_line(_QUERY.sub("", text))
    if record.name == "asyncio":  # its text is already formatted, with the repr of the failed object
        return next((sentence for sentence in _ASYNCIO_MESSAGES if message.startswith(sentence)), None)
    # with arguments, the template is a constant of the library; without, it may be formatted already
    return _first_line(message) if record.args else None


def _safe_arguments(message: str, arguments: object) -> tuple[object, ...]:
    """Return a record's arguments for its template, without objects, client addresses and raw paths."""
    values = cast("tuple[object, ...]", arguments) if isinstance(arguments, tuple) else ()
    if "WebSocket %s" in message:  # client address and raw path with its query
        return ("-", "-", *values[2:])
    return tuple(value if isinstance(value, str | int | float) else type(value).__name__ for value in values)


def _warning_fields(record: logging.LogRecord) -> dict[str, object]:
    text = str(cast("tuple[object, ...]", record.args)[0]) if record.args else str(record.msg)
    if match := _WARNING.match(text):
        return {"error_type": match["category"], "stack": [_place(match["file"], match["line"])]}
    return {}


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0][:_MAX_TEXT]
