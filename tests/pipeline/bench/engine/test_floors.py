"""The floor: which bytes and products of a model are counted, and in how much time."""

from __future__ import annotations

import pytest

from dpiframe_core.lowering import lower
from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.engine import floors
from pipeline.bench.engine.floors import Product, floor, products, sample_bytes

SMALL = {"fields": 4, "dense": 3, "dim": 4, "hidden": (20, 16), "scale": 1e-4}


def _products(**options: object) -> list[Product]:
    spec, weights = EngineCase(**SMALL, **options).load()
    return list(products(lower(spec, weights, ())))


def test_products_of_a_built_in_model():
    width = 4 * (4 + 3)  # a field for each dense feature too
    assert _products(model="dcnv2") == [
        *([Product(1, width, width, True)] * 3),
        Product(1, width, 20, True),
        Product(1, 20, 16, True),
    ]


def test_products_with_one_weight_for_all_samples_and_with_none():
    first, *_ = found = _products(model="autoint")
    assert first == Product(4, 4, 64, True)  # fields, D, 2 heads of 32
    of_samples = [p for p in found if not p.shared]
    assert of_samples == 3 * [Product(2 * 4, 32, 4, False), Product(2 * 4, 4, 32, False)]


def test_bytes_of_a_sample():
    case = EngineCase(model="deepfm", precision="fp16", device="cuda", **SMALL)
    program = lower(*case.load(), ())
    rows, ids, wide = 2 * 2 * 4 * 4, 8 * 4, 4 * 4
    assert sample_bytes(program, case) == ids + 4 * 3 + rows + wide + 4
    assert sample_bytes(program, case.model_copy(update={"id_type": "int32"})) == (
        ids // 2 + 4 * 3 + rows + wide + 4
    )


def test_the_floor_is_bytes_and_products(monkeypatch):
    monkeypatch.setattr(floors, "copy_rate", lambda device: 1e6)
    monkeypatch.setattr(floors, "mm_ms", lambda device, kind, m, k, n: {"tf32": 1.0}.get(kind, 4.0))
    case = EngineCase(model="wdl", batch=10, **SMALL)
    spec, weights = case.load()
    found = floor(spec, weights, case)
    assert found.bytes_ms == pytest.approx(sample_bytes(lower(spec, weights, ()), case) * 10 / 1e3)
    assert found.products_ms == 2 * 4
    emulated = floor(spec, weights, case.model_copy(update={"device": "cuda"}))
    assert emulated.products_ms == 2 * 3  # three products of tf32 make one of fp32


def test_a_product_of_odd_sides_may_be_padded_on_a_gpu(monkeypatch):
    def mm_ms(device: str, kind: str, m: int, k: int, n: int) -> float:
        return 1.0 if k % 8 == n % 8 == 0 else 10.0

    monkeypatch.setattr(floors, "copy_rate", lambda device: 1e6)
    monkeypatch.setattr(floors, "mm_ms", mm_ms)
    case = EngineCase(model="wdl", batch=10, device="cuda", precision="fp16", **SMALL)
    assert floor(*case.load(), case).products_ms == 2


def test_rates_of_this_machine(monkeypatch):
    monkeypatch.setitem(floors.COPY_BYTES, "cpu", 2**20)
    assert floors.copy_rate.__wrapped__("cpu") > 1e6
    assert floors.mm_ms("cpu", "fp32", 19, 16, 8) > 0
