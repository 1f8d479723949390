"""A process that reads footers and may die of one: see `footer_pool`, which starts it.

    python -m pipeline.planning.footers.worker

It says that it is ready, then takes JSON lines on standard input, first the limits of the
statistics, then lists of paths. Each path is answered on standard output, in order and at once,
so that the first path without an answer is the one it died of. It ends with its input.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

from pipeline.planning.footers.footer import CorruptFileError, FooterReader, Tail, read_tail
from pipeline.planning.footers.message import READY, FooterEncoder

_THREADS = 4  # fetch from slow storage ahead of the parsing, which is one thread's work


def main() -> None:
    """Answer until the input ends, or nobody reads the answers."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # a crash is expected: no core files
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    inbox: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_listen, args=(inbox,), daemon=True).start()
    try:
        _serve(inbox, answers)
    except BrokenPipeError:
        os._exit(0)  # the parent is dead
    except Exception:
        traceback.print_exc()
    os._exit(1)  # a shutdown with the listener in the middle of a read would look like a crash


def _listen(inbox: SimpleQueue[Any]) -> None:
    """Take lines; at the end of the input end the process, even if a disk lets it wait."""
    for line in sys.stdin.buffer:
        inbox.put(json.loads(line))
    os._exit(0)


def _serve(inbox: SimpleQueue[Any], answers: IO[bytes]) -> None:
    answers.write(READY + b"\n")
    answers.flush()
    reader, encoder = FooterReader(inbox.get()), FooterEncoder()
    with ThreadPoolExecutor(_THREADS) as pool:
        while True:
            for tail in pool.map(_fetch, inbox.get()):
                answers.write(_read(tail, reader, encoder))
                answers.flush()


def _fetch(path: str) -> Tail | Exception:
    try:
        return read_tail(path)
    except (CorruptFileError, OSError) as error:
        return error


def _read(tail: Tail | Exception, reader: FooterReader, encoder: FooterEncoder) -> bytes:
    try:
        if isinstance(tail, Exception):
            raise tail
        return encoder.encode(reader.parse(tail))
    except CorruptFileError as error:
        return _refusal(str(error), corrupt=True)
    except OSError as error:
        return _refusal(error.strerror or str(error), corrupt=False)


def _refusal(reason: str, corrupt: bool) -> bytes:
    return json.dumps({"reason": reason, "corrupt": corrupt}).encode() + b"\n"


if __name__ == "__main__":
    main()
