"""The EC2 query protocol driven by botocore's own service model.

Invariant: names on the wire come from the model that the client uses, so the skin cannot drift
from boto3; a parameter the model does not know is an error, as at EC2. botocore is loaded by the
first ``Shapes``, never by importing this module.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any
from xml.sax.saxutils import escape

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"


class Unknown(Exception):
    """A parameter that the operation's model does not have."""


@dataclass(frozen=True, slots=True)
class Raw:
    """XML of one value that was encoded before."""

    xml: str


class Shapes:
    """Reads requests and writes answers of the operations of one AWS query service."""

    def __init__(self, service: str = "ec2") -> None:
        """Loads the service model (about half a second, once per process)."""
        self._model: Any = _model(service)

    def knows(self, operation: str) -> bool:
        """True when the service has ``operation``."""
        return operation in self._model.operation_names

    def decode(self, operation: str, params: Mapping[str, str]) -> dict[str, Any]:
        """The operation's input from form parameters; raises Unknown or ValueError."""
        left = {k: v for k, v in params.items() if k not in ("Action", "Version")}
        shape = self._model.operation_model(operation).input_shape
        value = _read(shape, left, "") if shape is not None else None
        if left:
            raise Unknown(min(left))
        return value or {}

    def encode(self, operation: str, result: Mapping[str, Any], request_id: str) -> bytes:
        """The answer of ``operation`` as XML; members that the model lacks raise KeyError."""
        shape = self._model.operation_model(operation).output_shape
        inner = _members(shape, result) if shape is not None else ""
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<{operation}Response xmlns="{NAMESPACE}">'
            f"<requestId>{request_id}</requestId>{inner}</{operation}Response>"
        ).encode()

    def raw(self, shape_name: str, value: Mapping[str, Any]) -> Raw:
        """One structure encoded ahead of time, to be used in place of its value."""
        return Raw(_members(self._model.shape_for(shape_name), value))


@cache
def _model(service: str) -> Any:
    session: Any = importlib.import_module("botocore.session").get_session()
    return session.get_service_model(service)


def error_xml(code: str, message: str, request_id: str) -> bytes:
    """An EC2 error body."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
        f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error></Errors>"
        f"<RequestID>{request_id}</RequestID></Response>"
    ).encode()


def _read(shape: Any, left: dict[str, str], prefix: str) -> Any:
    """Take the value of ``shape`` under ``prefix`` out of ``left``; None when it is absent."""
    if shape.type_name == "structure":
        found = {}
        for name, member in shape.members.items():
            value = _read(member, left, _joined(prefix, _query_name(member, name)))
            if value is not None:
                found[name] = value
        return found or None
    if shape.type_name == "list":
        items: list[Any] = []
        while True:
            # EC2 lists are flat: Filter.1.Name, Filter.1.Value.1
            value = _read(shape.member, left, f"{prefix}.{len(items) + 1}")
            if value is None:
                return items or None
            items.append(value)
    text = left.pop(prefix, None)
    return None if text is None else _scalar(shape.type_name, text)


def _scalar(type_name: str, text: str) -> Any:
    if type_name in ("integer", "long"):
        return int(text)
    if type_name in ("float", "double"):
        return float(text)
    if type_name == "boolean":
        return text.lower() == "true"
    return text


def _query_name(member: Any, name: str) -> str:
    own = member.serialization
    if "queryName" in own:
        return str(own["queryName"])
    wire = str(own.get("name", name))
    return wire[0].upper() + wire[1:]


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _members(shape: Any, value: Mapping[str, Any]) -> str:
    parts = []
    for name, item in value.items():
        if item is None:
            continue
        member = shape.members[name]
        parts.append(_element(member, str(member.serialization.get("name", name)), item))
    return "".join(parts)


def _element(shape: Any, tag: str, value: Any) -> str:
    if isinstance(value, Raw):
        return f"<{tag}>{value.xml}</{tag}>"
    if shape.type_name == "structure":
        return f"<{tag}>{_members(shape, value)}</{tag}>"
    if shape.type_name == "list":
        return _list(shape, tag, value)
    return f"<{tag}>{escape(_text(shape.type_name, value))}</{tag}>"


def _list(shape: Any, tag: str, values: Sequence[Any]) -> str:
    item = str(shape.member.serialization.get("name", "item"))
    if shape.serialization.get("flattened"):
        return "".join(_element(shape.member, tag, v) for v in values)
    return f"<{tag}>{''.join(_element(shape.member, item, v) for v in values)}</{tag}>"


def _text(type_name: str, value: Any) -> str:
    if type_name == "boolean":
        return "true" if value else "false"
    if type_name == "timestamp":
        moment = datetime.fromtimestamp(float(value), UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
    if type_name == "blob":
        return base64.b64encode(value).decode()
    return str(value)
