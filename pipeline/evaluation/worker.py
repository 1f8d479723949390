"""The process of a worker: runs the methods of a `PartCounter` that it is asked for.

    python -m pipeline.evaluation.worker FILE_DESCRIPTOR

It ends when the other end of the connection is closed.
"""

from __future__ import annotations

import contextlib
import sys
from multiprocessing.connection import Connection

from pipeline.evaluation.part_counter import PartCounter


def serve(connection: Connection) -> None:
    """Answer each (method, arguments) with (error, what it returned)."""
    counter = PartCounter(connection.recv())
    while True:
        method, args = connection.recv()
        try:
            found = getattr(counter, method)(*args)
        except Exception as error:  # raised in the other process
            connection.send((error, None))
        else:
            connection.send((None, found))


if __name__ == "__main__":
    with Connection(int(sys.argv[1])) as opened, contextlib.suppress(EOFError, OSError):
        serve(opened)
