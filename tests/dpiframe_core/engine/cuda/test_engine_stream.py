"""What the CUDA engine does around its ring of batches: order, lifetimes, one caller at a time."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from dpiframe_core import _core
from dpiframe_core.engine.cuda.backend import SLOTS, CudaBackend


class Ring:
    """Scores a batch by its first id; no batch in it may lose its memory."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, weakref.ref]] = {}
        self.next = 0

    def submit(self, ids, dense, size, use_oov, logits) -> int:
        slot = self.next % SLOTS
        assert slot not in self.held
        self.held[slot] = int(ids[0, 0]), weakref.ref(ids)
        self.next += 1
        return slot

    def collect(self, slot, out):
        first, ids = self.held.pop(slot)
        assert ids() is not None
        out[:] = first


@pytest.fixture(autouse=True)
def older_objects_are_no_garbage():
    """gc.collect() looks at those of the test alone, and not at torch's."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def engine() -> CudaBackend:
    """A CUDA engine without a GPU: all but its ring."""

    class Program:
        field_names = ("C0", "C1")

    made = CudaBackend.__new__(CudaBackend)
    made.program, made._reports, made._turn = Program, [], _core.OneCaller()
    made._ring = Ring()
    return made


def parts(outs: list[np.ndarray]):
    for number, out in enumerate(outs):
        yield np.full((2, 5), number), np.zeros((0, 5), np.float32), out
        gc.collect()  # nobody but the engine holds the ids now


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 19])
def test_parts_come_in_order_and_keep_their_memory(engine, number):
    outs = [np.empty(5, np.float32) for _ in range(number)]
    assert [counts.tolist() for counts in engine.stream(parts(outs), False)] == [[0, 0]] * number
    assert [out.tolist() for out in outs] == [[i] * 5 for i in range(number)]
    assert not engine._ring.held


def test_a_stream_left_early_leaves_the_ring_empty(engine):
    outs = [np.empty(5, np.float32) for _ in range(19)]
    next(engine.stream(parts(outs), False))
    assert not engine._ring.held

    def failing():
        yield from parts(outs[:2])
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(engine.stream(failing(), False))
    assert not engine._ring.held
    assert len(list(engine.stream(parts(outs), False))) == 19


def test_nobody_else_is_served_while_a_stream_lasts(engine):
    outs = [np.empty(5, np.float32) for _ in range(3)]
    stream = engine.stream(parts(outs), False)
    next(stream)
    refused = []

    def use() -> None:
        try:
            engine.run_in_place((0, 0, 4), (0, 0, 4), 0, 5, False, 0)
        except RuntimeError as error:
            refused.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    use()
    assert len(refused) == 2 and all("another thread" in text for text in refused)
    stream.close()
    assert not engine._ring.held and len(list(engine.stream(parts(outs), False))) == 3
