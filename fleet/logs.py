"""How fleetd speaks on stderr: one JSON object or one console line per event.

Invariant: one event is one line whatever is in its values (control characters are escaped), values
under a secret's name never appear, bearer tokens and cloud signatures are cut out of all text, and
a log that cannot be written (full disk, closed pipe) never stops the daemon.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, TextIO

import structlog

#: syslog priorities that journald takes as a prefix (sd-daemon(3)).
PRIORITY: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2, "exception": 3}
_SECRET_KEY: Final = re.compile(
    r"(?i)^(.*_)?(secret|password|passwd|authorization|boot_token|node_token|user_data|key)$"
)
_SECRET_TEXT: Final = (
    re.compile(r"(?i)(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?i)(x-amz-(?:signature|security-token|credential)[=:]\s*)[^\s&\"']+"),
    re.compile(r"(?i)((?:secret|password|token)[\"']?\s*[=:]\s*[\"']?)[A-Za-z0-9+/_=-]{20,}"),
    re.compile(r"()\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"),
)
#: Effects and batches are named by these; they are no secrets and people search for them.
_PLAIN_KEYS: Final = frozenset({"key", "token"})
_HIDDEN: Final = "[hidden]"
MAX_TEXT: Final = 8000

Event = MutableMapping[str, Any]


def clean(text: str) -> str:
    """``text`` without credentials, at most MAX_TEXT characters."""
    for pattern in _SECRET_TEXT:
        text = pattern.sub(lambda m: m.group(1) + _HIDDEN, text)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


def escape(text: str) -> str:
    """``text`` on one line: what a terminal could obey is written as its code point."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _hide(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {str(k): _redact(str(k), v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_hide(v) for v in value]
    return value if isinstance(value, int | float | bool | None) else clean(str(value))


def _redact(key: str, value: Any) -> Any:
    if key not in _PLAIN_KEYS and _SECRET_KEY.match(key):
        return _HIDDEN
    return _hide(value)


def _hidden(_logger: object, _name: str, event: Event) -> Event:
    return {key: _redact(key, value) for key, value in event.items()}


class _Json:
    def __init__(self, prefix: bool) -> None:
        self._prefix = prefix

    def __call__(self, _logger: object, name: str, event: Event) -> str:
        line = json.dumps(event, default=str, allow_nan=True)  # ASCII: controls are escaped
        return f"<{PRIORITY.get(name, 6)}>{line}" if self._prefix else line


def _console(_logger: object, name: str, event: Event) -> str:
    at = str(event.pop("at", ""))[11:19]
    event.pop("level", None)
    what = escape(str(event.pop("event", "")))
    trace = str(event.pop("exception", ""))
    rest = " ".join(f"{k}={escape(str(v))}" for k, v in event.items())
    line = f"{at} {name:<8} {what:<24} {rest}".rstrip()
    return line + "".join(f"\n    {escape(part)}" for part in trace.splitlines())


class _Careful:
    """A stream whose failure is not ours: what cannot be written is dropped and counted."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0

    def write(self, text: str) -> int:
        """Write as much as can be written."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            self.lost += 1
            return len(text)

    def flush(self) -> None:
        """Flush, or not."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1


class _Forward(logging.Handler):
    """Libraries that log through the standard library come out as the same lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand on one record."""
        log = structlog.get_logger("fleetd")
        level = record.levelname.lower()
        say = getattr(log, level if level in PRIORITY else "info")
        say(record.getMessage(), logger=record.name, exc_info=record.exc_info or None)


def under_journald(stream: TextIO) -> bool:
    """True when ``stream`` goes to journald (JOURNAL_STREAM names its device and inode)."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


def configure(form: str = "json", stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Set up structlog and the standard library's root logger; ``form`` is json or console."""
    target = stream or sys.stderr
    render: Any = _console if form == "console" else _Json(under_journald(target))
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            _hidden,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(_Careful(target)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(logging.WARNING)
    for noisy in ("uvicorn.error", "uvicorn.access", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
