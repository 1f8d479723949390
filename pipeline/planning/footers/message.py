"""How a footer passes from one process to another: a JSON line, a schema only when it is new."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

from pipeline.planning.footers.footer import Footer, StatisticsProblem

READY = b"ready"  # the first line: what comes before it is not of the sender


class FooterEncoder:
    """The sending side; takes footers of one FooterReader, which share their schemas."""

    def __init__(self) -> None:
        self._schemas: list[pa.Schema] = []  # keeps them alive, so that their ids stay theirs
        self._numbers: dict[int, int] = {}

    def encode(self, footer: Footer) -> bytes:
        """One line; the first with a schema holds it."""
        message: dict[str, Any] = footer._asdict()
        number = self._numbers.get(id(footer.schema))
        if number is None:
            number = self._numbers[id(footer.schema)] = len(self._schemas)
            self._schemas.append(footer.schema)
            message["new_schema"] = base64.b64encode(footer.schema.serialize()).decode()
        message["schema"] = number
        return json.dumps(message).encode() + b"\n"


class FooterDecoder:
    """The receiving side of one encoder; `interned` is shared by all, so footers share schemas."""

    def __init__(self, interned: dict[str, pa.Schema]) -> None:
        self._interned = interned
        self._schemas: list[pa.Schema] = []

    def decode(self, message: dict[str, Any]) -> Footer:
        """The footer that `encode` got, from its parsed line."""
        if (text := message.get("new_schema")) is not None:
            if text not in self._interned:
                self._interned[text] = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
            self._schemas.append(self._interned[text])
        return Footer(
            size=message["size"],
            mtime_ns=message["mtime_ns"],
            sha256=message["sha256"],
            row_group_rows=tuple(message["row_group_rows"]),
            schema=self._schemas[message["schema"]],
            problems=tuple(StatisticsProblem(*problem) for problem in message["problems"]),
        )
