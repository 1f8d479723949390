"""PSI against hand-computed values, and where a baseline may come from."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from pipeline.tracking.drift import (
    NUM_BINS,
    bin_edges,
    decile_starts,
    histogram_document,
    histogram_from_path,
    population_stability_index,
)


def counts(**bins: int) -> np.ndarray:
    """A histogram with rows in the named bins, as b5=100."""
    histogram = np.zeros(NUM_BINS, np.int64)
    for name, rows in bins.items():
        histogram[int(name[1:])] = rows
    return histogram


def test_equal_shares_have_no_drift():
    histogram = counts(b50=19, b100=111, b150=1)
    assert population_stability_index(histogram, 7 * histogram) == 0.0


def test_psi_by_hand():
    # Two groups (up to bin 90; the rest), shares 0.5 and 0.5 against 0.25 and 0.75.
    psi = population_stability_index(counts(b90=50, b110=50), counts(b80=25, b120=75))
    expected = -0.25 * math.log(0.25 / 0.5) + 0.25 * math.log(0.75 / 0.5)
    assert psi == pytest.approx(expected, abs=1e-12)


def test_an_empty_group_counts_as_the_floor():
    psi = population_stability_index(counts(b90=50, b110=50), counts(b110=100))
    expected = (1e-4 - 0.5) * math.log(1e-4 / 0.5) + 0.5 * math.log(1 / 0.5)
    assert psi == pytest.approx(expected, abs=1e-12)


def test_groups_are_the_deciles_of_the_baseline():
    uniform = np.zeros(NUM_BINS, np.int64)
    uniform[1:101] = 3
    assert decile_starts(uniform).tolist() == [0, 11, 21, 31, 41, 51, 61, 71, 81, 91]
    assert decile_starts(counts(b90=19)).tolist() == [0, 90, 91]
    assert decile_starts(counts(b10=1, b90=99)).tolist() == [0, 90, 91]
    assert decile_starts(counts(b0=1)).tolist() == [0, 1]
    assert decile_starts(counts(b201=1)).tolist() == [0, 201]


def test_nothing_to_compare_with():
    assert population_stability_index(counts(), counts(b1=1)) is None
    assert population_stability_index(counts(b1=1), counts()) is None
    with pytest.raises(ValueError, match="same bins"):
        population_stability_index(counts(), np.zeros(3, np.int64))


def test_edges_are_exact():
    assert len(bin_edges()) == NUM_BINS - 1
    assert bin_edges()[[0, 1, 100, -1]].tolist() == [-10.0, -9.9, 0.0, 10.0]


def test_a_baseline_is_a_histogram_file_a_manifest_or_its_folder(tmp_path: Path):
    one, two = counts(b3=5), counts(b3=1, b200=2)
    file = tmp_path / "score_histogram.json"
    file.write_text(json.dumps(histogram_document(one, "abc")))
    units = [{"score_histogram": one.tolist()}, {"score_histogram": two.tolist()}]
    (tmp_path / "_manifest.json").write_text(json.dumps({"units": units}))
    assert histogram_from_path(file).tolist() == one.tolist()
    assert histogram_from_path(tmp_path).tolist() == (one + two).tolist()


@pytest.mark.parametrize("content", ["{}", '{"counts": [1, 2]}', "no json"])
def test_a_file_that_holds_no_histogram_is_refused(tmp_path: Path, content: str):
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(ValueError):
        histogram_from_path(file)
