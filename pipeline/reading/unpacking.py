"""Which pages of a unit its reader decompresses, in place of a GPU: the longest first, into room
behind the pages as they are stored.
"""

from __future__ import annotations

from typing import NamedTuple


class Unpacking(NamedTuple):
    """`room`: most bytes for what is decompressed, for each byte of the pages as they are stored;
    `above`: bytes of a page, of which only longer ones are decompressed; None: those far longer
    than most.
    """

    room: float
    above: int | None = None

    def memory(self, stored: int, unpacked: int) -> int:
        """Bytes of memory for pages of so many bytes, stored and unpacked."""
        return stored + min(int(self.room * stored), unpacked)


AS_STORED = Unpacking(0.0)
LONG_PAGES = Unpacking(0.5)
# Where units wait for the GPU while cores are idle; room for all pages of usual files.
ANY_PAGES = Unpacking(1.5, above=0)
