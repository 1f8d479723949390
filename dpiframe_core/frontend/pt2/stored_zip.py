"""A zip archive whose members are stored, not compressed: each is a piece of the mapped file.

`torch.export.save` writes such archives. The central directory is read here and not by `zipfile`,
as the members' bytes must lie in the file (nothing is ever unpacked, so no member is larger than
the file) and as reading must not cost more memory than the directory itself.

Layout: APPNOTE.TXT of PKWARE, 4.3.7 (local header), 4.3.12 (directory entry), 4.3.14 to 4.3.16
(ends of the directory), 4.5.3 (64-bit sizes).
"""

from __future__ import annotations

import mmap
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from dpiframe_core.errors import ModelImportError

MOST_MEMBERS = 1 << 17
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_MOST_COMMENT = 0xFFFF
_SAVE_AGAIN = "write the archive again with torch.export.save"


@dataclass(frozen=True)
class _Member:
    header: int  # where the local header starts
    size: int
    crc: int


class StoredZip:
    """The members of an archive by name.

    The file is mapped privately: writing to a member's bytes changes the memory alone. It must not
    be cut short while bytes of it are in use.
    """

    def __init__(self, path: Path) -> None:
        """ModelImportError, without the path, where the file is no such archive."""
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:  # ValueError: the file is empty
            raise ModelImportError(f"cannot be read: {error}") from None
        try:
            self._members = _members(self._bytes)
        except struct.error:
            raise _damaged("its directory does not lie in the file") from None
        total = sum(member.size for member in self._members.values())
        if total > len(self._bytes):
            raise _damaged(f"its members have {total} bytes, the file has {len(self._bytes)}")

    @property
    def names(self) -> list[str]:
        """The members in the order of the directory."""
        return list(self._members)

    def size(self, name: str) -> int:
        """Bytes of a member; ModelImportError where there is none of that name."""
        return self._member(name).size

    def data(self, name: str) -> memoryview:
        """A member's bytes, not copied, after their checksum was compared."""
        member = self._member(name)
        try:
            mark, *_, name_size, extra_size = _LOCAL.unpack_from(
                self._bytes, min(member.header, len(self._bytes))
            )
        except struct.error:
            mark = b""
        if mark != b"PK\3\4":
            raise _damaged(f"{name} has no header")
        start = member.header + _LOCAL.size + name_size + extra_size
        data = memoryview(self._bytes)[start : start + member.size]
        if len(data) != member.size:
            raise _damaged(f"{name} ends after the file")
        if zlib.crc32(data) != member.crc:
            raise _damaged(f"the bytes of {name} are not those that were written")
        return data

    def _member(self, name: str) -> _Member:
        if name not in self._members:
            raise ModelImportError(f"has no {name}; {_SAVE_AGAIN}")
        return self._members[name]


def _damaged(what: str) -> ModelImportError:
    return ModelImportError(f"is damaged: {what}; copy or save it again")


def _members(data: mmap.mmap) -> dict[str, _Member]:
    """The entries of the directory; struct.error where it does not lie in the file."""
    count, at = _directory(data)
    if count > MOST_MEMBERS:
        raise ModelImportError(f"has {count} members, at most {MOST_MEMBERS} are read")
    found: dict[str, _Member] = {}
    for _ in range(count):
        entry = _ENTRY.unpack_from(data, at)
        mark, _, _, flags, method, _, _, crc, packed, size, *lengths = entry
        name_size, extra_size, comment_size = lengths[:3]
        if mark != b"PK\1\2":
            raise _damaged("its directory has fewer entries than it says")
        at += _ENTRY.size
        name = data[at : at + name_size].decode(errors="replace")
        extra = data[at + name_size : at + name_size + extra_size]
        at += name_size + extra_size + comment_size
        header = entry[-1]
        size, packed, header = _wide_sizes(extra, size, packed, header)
        if method != 0 or flags & 1 or packed != size:
            raise ModelImportError(f"{name} is compressed or encrypted; {_SAVE_AGAIN}")
        if name in found:
            raise _damaged(f"it has two members {name}")
        found[name] = _Member(header, size, crc)
    return found


def _directory(data: mmap.mmap) -> tuple[int, int]:
    """How many entries the directory has, and where it starts."""
    at = data.rfind(b"PK\5\6", max(0, len(data) - _END.size - _MOST_COMMENT))
    end = _END.unpack_from(data, at) if at >= 0 else None
    if end is None or at + _END.size + end[-1] != len(data):  # a member may be a zip itself
        raise ModelImportError(f"is no zip archive, or is cut short; {_SAVE_AGAIN}")
    count, _, start = end[4:7]
    if at >= _LOCATOR.size:
        mark, _, end_64, _ = _LOCATOR.unpack_from(data, at - _LOCATOR.size)
        if mark == b"PK\6\7":
            mark, *_, count, _, start = _END_64.unpack_from(data, min(end_64, len(data)))
            if mark != b"PK\6\6":
                raise _damaged("its directory has no end")
    return count, min(start, len(data))


def _wide_sizes(extra: bytes, *sizes: int) -> list[int]:
    """Sizes and offset of an entry; those of all ones are in its extra field, as 64 bits."""
    if 0xFFFFFFFF not in sizes:
        return list(sizes)
    at = 0
    while True:
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4
        if kind == 1:
            break
        at += length
    found = []
    for size in sizes:
        if size == 0xFFFFFFFF:
            (size,) = struct.unpack_from("<Q", extra, at)
            at += 8
        found.append(size)
    return found
