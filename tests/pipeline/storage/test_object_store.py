"""Object stores, on a local S3 server."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from s3_server import BUCKET, s3_server

from pipeline.storage.address import check_address, is_remote
from pipeline.storage.arrow_files import StoreFiles
from pipeline.storage.object_store import ObjectStore, ReplacedError


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture
def store(endpoint: str, request: pytest.FixtureRequest) -> ObjectStore:
    return ObjectStore(f"s3://{BUCKET}/of/{request.node.name}")


def test_objects_are_listed_below_their_address_with_any_name(store: ObjectStore):
    names = ["a b/ü=1/%20.parquet", "date=2026-11-19/part-1.parquet", "x"]
    for name in names:
        store.put(name, name.encode())
    ObjectStore(store.address + "-2").put("elsewhere", b"")
    assert [(o.key, o.size) for o in store.list()] == [(n, len(n.encode())) for n in names]
    assert [o.key for o in store.list("date=2026-11-19")] == names[1:2]
    assert [store.read(name) for name in names] == [name.encode() for name in names]
    store.delete([*names, "missing"])
    assert list(store.list()) == []


def test_ranges_and_versions(store: ObjectStore):
    etag = store.put("x", b"0123456789")
    assert bytes(store.read_range("x", 2, 5)) == b"234"
    assert bytes(store.read_range("x", 8, 50, etag)) == b"89"
    end, info = store.read_end("x", 3)
    assert (bytes(end), info.size, info.etag, info.key) == (b"789", 10, etag, "x")
    assert bytes(store.read_end("x", 100)[0]) == b"0123456789"
    store.put("x", b"another")
    with pytest.raises(ReplacedError, match="was replaced"):
        store.read_range("x", 0, 1, etag)
    with pytest.raises(FileNotFoundError, match="no such object or bucket"):
        store.read("missing")
    assert store.info("missing") is None


def test_another_process_reads_a_file_that_it_was_given(store: ObjectStore):
    sink = pa.BufferOutputStream()
    pq.write_table(table := pa.table({"x": range(19)}), sink)
    store.put("x.parquet", bytes(sink.getvalue()))
    sizes = {"x.parquet": store.info("x.parquet").size}
    files = pafs.PyFileSystem(StoreFiles(store, sizes))
    dataset = pads.dataset(["x.parquet"], format="parquet", filesystem=files)
    given = pickle.dumps(list(dataset.get_fragments()))
    # Threads of pyarrow may still hold a file of Python's when the interpreter ends.
    read = "import os, pickle, sys; file = pickle.load(sys.stdin.buffer)[0]; "
    read += "print(file.to_table()['x'].to_pylist(), flush=True); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", read], input=given, stdout=-1, check=True)
    assert done.stdout.decode().strip() == str(table["x"].to_pylist())


def test_of_many_writers_one_wins(store: ObjectStore):
    won: list[int] = []

    def write(number: int) -> None:
        if store.create("record", b"writer %d" % number):
            won.append(number)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read("record") == b"writer %d" % won[0] and len(won) == 1


def test_a_version_is_replaced_once(store: ObjectStore):
    first = store.create("head", b"1")
    assert first and store.create("head", b"2") is None
    assert store.swap("head", b"3", first)
    assert store.swap("head", b"4", first) is None and store.read("head") == b"3"
    assert store.swap("missing", b"5", first) is None


def test_what_was_written_by_a_request_whose_answer_was_lost_counts(store: ObjectStore):
    etag = store.create("record", b"mine")
    assert store.create("record", b"mine") == etag
    assert store.swap("record", b"mine", '"older"') == etag


def test_a_missing_bucket_and_a_store_out_of_reach(store: ObjectStore):
    nowhere = ObjectStore("s3://no-such-bucket/x")
    with pytest.raises(FileNotFoundError, match="no such object or bucket"):
        nowhere.put("x", b"")
    with pytest.raises(FileNotFoundError):
        nowhere.create("x", b"")


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("ftp://host/x", "must be a path, or begin with one of"),
        ("s3://", "must name a bucket"),
        ("s3://key:secret@bucket/x", "must not hold credentials"),
        ("s3://bucket/a/../b", "'.' or '..' part"),
    ],
)
def test_addresses_that_are_refused(address: str, problem: str):
    assert is_remote(address)
    with pytest.raises(ValueError, match=problem) as caught:
        check_address(address)
    assert "secret" not in str(caught.value)
