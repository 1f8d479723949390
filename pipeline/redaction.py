"""No secret in what is written, shown or sent: `redacted` for texts, `redacted_data` for records.

A secret is the user and password of an address, the value of an address's query parameter, of an
environment variable or of a `key=value` whose name says so (password, token, ...), and any password
that was seen in an address, wherever else it occurs (in the text of an exception, say).
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import Any, TextIO, cast
from urllib.parse import quote, unquote

HIDDEN = "***"
SHORTEST = 8  # of what is hidden wherever it occurs: shorter ones occur by chance
SHORTEST_USER = 16  # the same of a user without password, which may be a token

_SECRET_NAME = (
    r"\w*(?:password|passwd|secret|token|credential|api_?key|access_?key|private_?key|webhook)\w*"
)
# A password may hold a slash, which no address should, but a colon and digits are a port.
_USER = re.compile(r"(?<=://)(?:[^\s/?#'\"@]*@)+|(?<=://)[^\s/:@'\"]*:(?!\d*/)[^\s@'\"]*@")
_QUERY = re.compile(
    rf"([?&;](?:{_SECRET_NAME}|\w*(?:key|sig|signature|auth|pass|pwd)\w*)=)[^&\s#'\";]+", re.I
)
_ASSIGNED = re.compile(
    rf"\b({_SECRET_NAME}['\"]?\s*[=:]\s*['\"]?)(?!{re.escape(HIDDEN)})[^\s'\",;}}]+", re.I
)
_FILE_NAME = re.compile(r"_(?:FILE|PATH|DIR|URI|URL)$|^GOOGLE_APPLICATION_CREDENTIALS$")

_seen: set[str] = set()


def without_user(address: str) -> str:
    """The same address without user and password; they are hidden in all texts from now on."""
    for user in _USER.findall(address):
        name, _, password = user.removesuffix("@").partition(":")
        secret = password or (name if len(name) >= SHORTEST_USER else "")
        _seen.update({secret, unquote(secret), quote(unquote(secret), safe="")})
    return _USER.sub("", address)


def hide(secret: str) -> None:
    """Hide a text, wherever it occurs from now on."""
    _seen.add(secret)


def without_credentials(address: str) -> str:
    """The same address without user, password and secret parameters, fit to be shown and stored."""
    return _QUERY.sub(rf"\g<1>{HIDDEN}", without_user(address))


def redacted(text: str) -> str:
    """`text` without any secret."""
    return _ASSIGNED.sub(rf"\g<1>{HIDDEN}", _redacted_value(text, _secrets()))


def redacted_data(data: Any) -> Any:
    """The same record (of dicts, lists, texts, numbers) without secrets in its texts."""
    secrets = _secrets()

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return _redacted_value(value, secrets)
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items()}
        return [clean(item) for item in value] if isinstance(value, list | tuple) else value

    return clean(data)


def _redacted_value(text: str, secrets: list[str]) -> str:
    """Without what is secret by itself: a column `token` and its name in a record stay."""
    text = without_credentials(text)
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


def _secrets() -> list[str]:
    """What is hidden wherever it occurs, the longest first."""
    named = re.compile(_SECRET_NAME, re.I)
    found = {
        value
        for name, value in os.environ.items()
        if named.fullmatch(name) and not _FILE_NAME.search(name)
    }
    for value in os.environ.values():
        if "://" in value and "@" in value:
            without_user(value)
    return sorted((s for s in found | _seen if len(s) >= SHORTEST), key=len, reverse=True)


class RedactedStream:
    """A text stream that hides the secrets in what is written to it, each write by itself."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the redacted text."""
        self._stream.write(redacted(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write redacted lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redact_process() -> None:
    """Hide secrets in all that this process prints, tracebacks included, and in its arguments."""
    sys.stdout = cast(TextIO, RedactedStream(sys.stdout))
    sys.stderr = cast(TextIO, RedactedStream(sys.stderr))
    shown = [redacted(argument) for argument in sys.argv]
    if shown != sys.argv:
        _overwrite_arguments()


def _overwrite_arguments() -> None:
    """Replace the arguments that `ps` and `/proc` show to everybody, where they lie in memory."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, see proc(5)
        arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, IndexError):
        return
    if not 0 < start < end:  # not told to this process
        return
    texts = [redacted(os.fsdecode(argument)) for argument in arguments]
    shown = b"\0".join(map(os.fsencode, texts))[: end - start].ljust(end - start, b"\0")
    ctypes.memmove(start, shown, end - start)
