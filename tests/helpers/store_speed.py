"""How fast units are read from an object store on this machine, beside plain parallel GETs.

    python tests/helpers/store_speed.py [--rows 4000000] [--rounds 5]

A server of static files in a process of its own, on the loopback interface, stands for the store.
Each round times, one after another: GETs of the very ranges that units need, whose answers are
dropped; the same ranges fetched to where they are wanted; units as pages for a GPU; units decoded.
Then the footers of many small objects are read once. The CPU time is this process's, without the
server's, and what a busy machine changes least.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from job_cases import worker_plan

from pipeline.planning.columns import Columns
from pipeline.planning.footers import read_footers
from pipeline.planning.units import Unit
from pipeline.reading.read_native import read_native
from pipeline.reading.read_pages import read_pages
from pipeline.reading.remote_file import RemoteFile, remote_footer
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.storage import fetch as fetching
from pipeline.storage.objects import open_object, read_exactly

ETAG, FIELDS, DENSE, GROUPS = '"1"', 26, 13, 8
READERS = 4  # units at a time


def serve(folder: str, port: multiprocessing.Queue[int]) -> None:
    """Answer GET and HEAD of files below a folder, with ranges, until the process is ended."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    port.put(listener.getsockname()[1])
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection, folder), daemon=True).start()


def answer(connection: socket.socket, folder: str) -> None:
    """All requests of one connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    waiting = b""
    while True:
        while b"\r\n\r\n" not in waiting:
            some = connection.recv(65536)
            if not some:
                return
            waiting += some
        head, waiting = waiting.split(b"\r\n\r\n", 1)
        text = head.decode()
        with (Path(folder) / text.split(" ", 2)[1].lstrip("/")).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            span = re.search(r"(?i)range: bytes=(\d*)-(\d*)", text)
            first, last = span.groups() if span else ("0", str(size - 1))
            begin = int(first) if first else max(0, size - int(last))
            stop = min(size, int(last) + 1) if first and last else size
            connection.sendall(
                f"HTTP/1.1 {206 if span else 200} OK\r\nContent-Length: {stop - begin}\r\n"
                f"Content-Range: bytes {begin}-{stop - 1}/{size}\r\nETag: {ETAG}\r\n"
                "Last-Modified: Thu, 19 Nov 2026 05:00:00 GMT\r\n\r\n".encode()
            )
            while begin < stop and not text.startswith("HEAD"):
                begin += os.sendfile(connection.fileno(), file.fileno(), begin, stop - begin)


def write_rows(path: Path, rows: int) -> Columns:
    """An encoded file; its columns."""
    rng = np.random.default_rng(7)
    ids = {f"C{f}": rng.integers(0, 10 ** (2 + f % 4), rows, np.int32) for f in range(FIELDS)}
    dense = {f"I{n}": rng.random(rows, np.float32) for n in range(DENSE)}
    table = pa.table({"row_id": np.arange(rows), **ids, **dense})
    pq.write_table(table, path, row_group_size=-(-rows // GROUPS), compression="zstd")
    return Columns(
        form="encoded",
        key_columns=("row_id",),
        carry_columns=(),
        id_columns=tuple(ids),
        dense_columns=tuple(dense),
    )


def units_of(address: str) -> list[Unit]:
    """A unit for each row group."""
    footer = read_footers([address], {}).good[address]
    rows = footer.row_group_rows
    facts = {"path": address, "size": footer.size, "mtime_ns": 0, "etag": footer.etag}
    return [
        Unit(
            index=g, name="u000000-0123abcd", **facts, first_row_group=g, stop_row_group=g + 1,
            first_row=sum(rows[:g]), rows=rows[g],
        )
        for g in range(len(rows))
    ]  # fmt: skip


def ways(units: Sequence[Unit], columns: Columns) -> dict[str, Callable[[], object]]:
    """What is timed; each reads all units once."""
    plan, local = worker_plan(columns), threading.local()
    footer = remote_footer(units[0].path, units[0].size, units[0].etag).file
    names = list(columns.read_columns)
    spans = [footer.chunk_ranges(names, u.first_row_group, u.stop_row_group) for u in units]
    wanted = [[fetching.Piece(a, size, 0) for a, size in each] for each in spans]
    ranges = [request for each in wanted for request in fetching.requests(each)]
    store, key = open_object(units[0].path)
    plain = ThreadPoolExecutor(fetching.REQUESTS)
    readers = ThreadPoolExecutor(READERS)

    def opened(unit: Unit) -> tuple[RemoteFile, UnitBuffer]:
        if not hasattr(local, "buffer"):
            local.buffer = UnitBuffer()
        return RemoteFile(unit, columns, local.buffer), local.buffer

    def get(request: fetching.Request) -> int:
        return len(read_exactly(store, key, request.start, request.stop, ETAG))

    def pages(unit: Unit) -> None:
        file, buffer = opened(unit)
        assert read_pages(file, plan, buffer) is not None

    def decoded(unit: Unit) -> None:
        file, buffer = opened(unit)
        assert read_native(file, plan, buffer) is not None

    return {
        "plain GETs": lambda: list(plain.map(get, ranges)),
        "fetched": lambda: list(readers.map(opened, units)),
        "pages for a GPU": lambda: list(readers.map(pages, units)),
        "decoded": lambda: list(readers.map(decoded, units)),
    }


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--objects", type=int, default=10_000)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bucket").mkdir()
        columns = write_rows(Path(folder) / "bucket" / "x.parquet", wanted.rows)
        port: multiprocessing.Queue[int] = multiprocessing.Queue()
        server = multiprocessing.Process(target=serve, args=(folder, port), daemon=True)
        server.start()
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port.get()}",
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_REGION": "us-east-1",
        }
        units = units_of("s3://bucket/x.parquet")
        timed = ways(units, columns)
        seconds: dict[str, list[float]] = {name: [] for name in timed}
        used: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(wanted.rounds + 1):  # the first one warms up
            for name, way in timed.items():
                began, before = time.perf_counter(), time.process_time()
                way()
                seconds[name].append(time.perf_counter() - began)
                used[name].append(time.process_time() - before)
        small = Path(folder) / "bucket" / "small.parquet"
        write_rows(small, 1000)
        names = [f"{i}.parquet" for i in range(wanted.objects)]
        for name in names:
            small.with_name(name).hardlink_to(small)
        began = time.perf_counter()
        footers = read_footers([f"s3://bucket/{name}" for name in names], {})
        footers_s = time.perf_counter() - began
        assert len(footers.good) == wanted.objects
        server.terminate()
    rates = {name: units[0].size / 1e6 / np.array(found[1:]) for name, found in seconds.items()}
    shares = {name: statistics.median(rate / rates["plain GETs"]) for name, rate in rates.items()}
    report = {
        "cores": len(os.sched_getaffinity(0)),
        "MB": round(units[0].size / 1e6),
        "MB/s": {name: round(statistics.median(rate)) for name, rate in rates.items()},
        "best MB/s": {name: round(max(rate)) for name, rate in rates.items()},
        "CPU s/GB": {n: round(min(s) * 1e9 / units[0].size, 2) for n, s in used.items()},
        "of plain GETs, by round": {name: round(share, 2) for name, share in shares.items()},
        "footers": wanted.objects,
        "footers s": round(footers_s, 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
