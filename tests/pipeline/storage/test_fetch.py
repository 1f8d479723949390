"""Ranges of an object, fetched to where they are wanted, through a proxy that makes faults."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("moto")
from faulty_proxy import Faults, faulty_proxy
from s3_server import BUCKET, s3_server

from pipeline.storage import fetch as module
from pipeline.storage import objects
from pipeline.storage.fetch import Piece, fetch, fetch_file, requests
from pipeline.storage.object_store import ObjectStore

ADDRESS = f"s3://{BUCKET}/fetched/x"
DATA = np.random.default_rng(7).integers(0, 256, 100_000, np.uint8)
PIECES = [Piece(70_000, 20_001, 0), Piece(5, 111, 20_001), Piece(30_000, 0, 3), Piece(116, 1, 9)]


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    with s3_server() as endpoint, faulty_proxy(endpoint) as found:
        yield found


@pytest.fixture
def etag(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(objects, "PAUSE_S", 0.001)
    monkeypatch.setattr(module, "REQUEST_BYTES", 7000)
    monkeypatch.setattr(module, "MOST_GAP", 1000)
    return ObjectStore(f"s3://{BUCKET}/fetched").put("x", DATA.tobytes())


def test_requests_join_neighbours_and_split_what_is_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REQUEST_BYTES", 100)
    monkeypatch.setattr(module, "MOST_GAP", 10)
    a, b, c, d = Piece(0, 50, 0), Piece(60, 40, 7), Piece(111, 250, 50), Piece(400, 0, 1)
    found = requests([c, d, b, a])
    spans = [(r.start, r.stop) for r in found]
    assert spans == [(0, 100), (111, 194), (194, 277), (277, 361)]
    assert [r.pieces for r in found] == [[a, b], [c], [c], [c]]
    assert requests([]) == []


def check_fetched(etag: str) -> None:
    memory = np.zeros(30_000, np.uint8)
    fetch(ADDRESS, etag, PIECES[:3], memory)
    np.testing.assert_array_equal(memory[:20_001], DATA[70_000:90_001])
    np.testing.assert_array_equal(memory[20_001:20_112], DATA[5:116])
    assert not memory[20_112:].any()


def test_pieces_come_to_their_places(etag: str, faults: Faults):
    faults.requests.clear()
    check_fetched(etag)
    assert len(faults.requests) == 4


@pytest.mark.parametrize("kind", ["slow_down", "reset", "cut", "half", "slow"])
def test_a_fault_that_passes_heals(etag: str, faults: Faults, kind: str):
    faults.make(kind, 3, "fetched/x")
    check_fetched(etag)


def test_half_answers_for_ever_are_an_error_that_names_the_object(etag: str, faults: Faults):
    faults.make("half", 1000, "fetched/x")
    with pytest.raises(OSError, match=r"an answer of \d+ bytes where \d+ were asked for") as found:
        check_fetched(etag)
    faults.make("half", 0)
    assert (found.value.errno, found.value.filename) == (errno.EIO, ADDRESS)


def test_refused_replaced_and_removed_objects_are_told_at_once(etag: str, faults: Faults):
    faults.make("refused", 100, "fetched/x")
    with pytest.raises(PermissionError):
        check_fetched(etag)
    faults.make("refused", 0)
    store = ObjectStore(f"s3://{BUCKET}/fetched")
    store.put("x", b"another")
    with pytest.raises(OSError, match="was replaced") as found:
        check_fetched(etag)
    assert found.value.errno == errno.ESTALE
    store.delete(["x"])
    with pytest.raises(FileNotFoundError):
        check_fetched(etag)


def test_a_whole_object_becomes_a_file(etag: str, faults: Faults, tmp_path: Path):
    faults.make("cut", 5, "fetched/x")
    fetch_file(ADDRESS, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA.tobytes()
    ObjectStore(f"s3://{BUCKET}/fetched").put("empty", b"")
    fetch_file(ADDRESS.replace("/x", "/empty"), tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""


def test_requests_of_many_callers_end_each_with_its_own(etag: str):
    errors: list[Exception] = []

    def work(wanted: str) -> None:
        try:
            check_fetched(wanted)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(t,)) for t in [etag, '"older"'] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [error.errno for error in errors] == [errno.ESTALE] * 4  # type: ignore[attr-defined]
