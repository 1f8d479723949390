"""Figures: drawn from a unit table of any size, with or without scores and baseline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tracking_records import make_record

from pipeline.tracking.artifacts import unit_table, write_unit_table
from pipeline.tracking.metrics import sum_histograms
from pipeline.tracking.plot_data import UnitColumns, fitted_bins, place_units, startup
from pipeline.tracking.plots import draw_all

ALL = {"batch_latency", "score_histogram", "stage_timeline", "throughput"}


def read_units(tmp_path: Path, count: int, done: int, **changes) -> UnitColumns:
    records = [make_record(index, **changes) for index in range(count)]
    when = {record.unit: float(record.index) for record in records[:done]}
    write_unit_table(unit_table(records, when), tmp_path / "units.parquet")
    return UnitColumns.read(tmp_path / "units.parquet")


def test_only_units_of_this_attempt_are_drawn(tmp_path: Path):
    units = read_units(tmp_path, count=19, done=3)
    assert units.rows.tolist() == [111.0] * 3
    assert units.done.tolist() == [0.0, 1.0, 2.0]
    assert len(units.batches) == 6


@pytest.mark.parametrize("count", [1, 19])
def test_every_figure_is_drawn(tmp_path: Path, count: int):
    counts = sum_histograms([make_record(0)])
    draw_all(tmp_path / "f", read_units(tmp_path, count, count), counts, counts)
    files = list((tmp_path / "f").iterdir())
    assert {file.stem for file in files} == ALL
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_what_has_no_data_is_left_out(tmp_path: Path):
    draw_all(tmp_path / "none", read_units(tmp_path, 3, 0), np.zeros(202, np.int64), None)
    assert not (tmp_path / "none").exists()
    draw_all(tmp_path / "some", read_units(tmp_path, 3, 3, batch_s=[]), None, None)
    assert {file.stem for file in (tmp_path / "some").iterdir()} == {"stage_timeline", "throughput"}


def test_a_table_from_before_a_stage_is_drawn(tmp_path: Path):
    read_units(tmp_path, 3, 3)
    path = tmp_path / "units.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["unpack_s"]), path)
    units = UnitColumns.read(path)
    assert units.stages["unpack"].tolist() == [0.0] * 3
    draw_all(tmp_path / "f", units, None, None)
    assert (tmp_path / "f" / "stage_timeline.png").exists()


def test_units_that_overlap_lie_in_lanes_of_their_own(tmp_path: Path):
    records = [
        make_record(
            n, scorer=scorer, started=100.0 + at, read_s=0, encode_s=0, score_s=1, write_s=0
        )
        for n, (scorer, at) in enumerate([("b", 4.0), ("a", 0.0), ("a", 0.5), ("a", 1.0)])
    ]
    table = unit_table(records, {record.unit: 9.0 for record in records}, began=97.0)
    units = UnitColumns.of_table(table)
    lanes = place_units(units)
    assert lanes.names == ["a", "", "b"]
    assert lanes.lane.tolist() == [2, 0, 1, 0]
    assert lanes.begin.tolist() == [7.0, 3.0, 3.5, 4.0]
    assert startup(units) == 3.0


def test_bins_fit_the_scores():
    narrow = np.zeros(202, np.int64)
    narrow[60:70] = 1000
    edges, (shares,) = fitted_bins([narrow])
    assert (edges[0], edges[-1]) == pytest.approx((-4.1, -3.1))
    assert len(shares) == 10 and shares.sum() == pytest.approx(1)
    wide = narrow.copy()
    wide[[3, 199]] = 1  # two rows far off do not stretch the axis
    assert len(fitted_bins([wide])[1][0]) == 10
    assert fitted_bins([wide])[1][0].sum() == pytest.approx(1)
