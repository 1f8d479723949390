"""The lock of an output in a store: one owner, taken over from the dead alone."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("obstore")
from faulty_store import MemoryObjects

from pipeline.errors import LockedError
from pipeline.publishing.store_lock import LOCK, StoreLock, StoreOwner


def quick(store: MemoryObjects, **keys: bool) -> StoreLock:
    return StoreLock(store, ttl=0.3, beat=0.05, **keys)


def far_owner(**changes: object) -> StoreOwner:
    """A process of another host."""
    return replace(StoreOwner.here(), host="far", host_id="other", pid=19, **changes)


def test_the_lock_names_its_owner_beats_and_leaves_nothing() -> None:
    store = MemoryObjects()
    with quick(store) as lock:
        time.sleep(0.2)
        owner = StoreOwner.parse(store.read(LOCK))
        assert owner is not None and owner.pid == os.getpid() and int(owner.beats) >= 1
        lock.check()
    assert list(store.list()) == []


def test_a_living_process_of_this_host_is_refused_at_once() -> None:
    store = MemoryObjects()
    with StoreLock(store):
        began = time.monotonic()
        with pytest.raises(LockedError, match=f"written by process {os.getpid()} on host"):
            StoreLock(store).__enter__()
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("changes", [{"pid": 1 << 30}, {"born": "1"}])
def test_a_dead_process_of_this_host_is_followed_at_once(changes: dict[str, object]) -> None:
    """Also when its process id is in use again."""
    store = MemoryObjects()
    store.put(LOCK, replace(StoreOwner.here(), **changes).data)
    began = time.monotonic()
    with StoreLock(store) as lock:
        assert time.monotonic() - began < 5
        lock.check()


def test_a_dead_lock_of_another_host_is_taken_after_its_time() -> None:
    store = MemoryObjects()
    store.put(LOCK, far_owner().data)
    with pytest.raises(LockedError, match="process 19 on host far"):
        quick(store, wait=False).__enter__()
    began = time.monotonic()
    with quick(store) as lock:
        assert time.monotonic() - began >= 0.3
        lock.check()


def test_a_lock_of_another_host_that_beats_is_refused() -> None:
    store = MemoryObjects()
    owner = far_owner()
    store.put(LOCK, owner.data)
    timer = threading.Timer(0.1, lambda: store.put(LOCK, owner.next_beat().data))
    timer.start()
    with pytest.raises(LockedError, match=r"process 19 on host far .*which is alive"):
        quick(store).__enter__()
    timer.join()


def test_of_many_waiters_one_takes_a_dead_lock() -> None:
    store = MemoryObjects()
    store.put(LOCK, far_owner().data)
    ended: list[str] = []

    def work() -> None:
        try:
            with quick(store) as lock:
                time.sleep(0.5)
                lock.check()
                ended.append("held")
        except LockedError:
            ended.append("refused")

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended) == ["held", *["refused"] * 4]


def test_an_owner_that_was_taken_over_notices_and_leaves_the_lock() -> None:
    store = MemoryObjects()
    with quick(store) as lock:
        store.put(LOCK, far_owner().data)
        time.sleep(0.2)
        with pytest.raises(LockedError, match="taken over by process 19 on host far"):
            lock.check()
    owner = StoreOwner.parse(store.read(LOCK))
    assert owner is not None and owner.host == "far"


def test_a_lock_that_was_removed_is_made_again() -> None:
    store = MemoryObjects()
    with quick(store) as lock:
        store.delete([LOCK])
        lock.check()
        assert store.info(LOCK) is not None
    assert list(store.list()) == []


def test_a_lock_that_is_given_back_is_not_taken_before_it_is_removed() -> None:
    store = MemoryObjects()
    owner = StoreOwner.here()
    store.put(LOCK, replace(owner, released=True).data)
    timer = threading.Timer(0.1, lambda: store.delete([LOCK]))
    timer.start()
    with quick(store) as lock:
        assert not timer.is_alive()
        lock.check()
