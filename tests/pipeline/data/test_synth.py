"""Synthetic data sets: layout, numbering, shares, determinism, learnable clicks."""

import errno
import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dpiframe_core.features import Encoder, avazu_schema, criteo_schema
from jobs.synth import command
from pipeline.data.cardinalities import AVAZU_CARDINALITIES, CRITEO_CARDINALITIES, CRITEO_MISSING
from pipeline.data.parquet_layouts import encoded_schema, raw_schema, read_layout
from pipeline.data.quantile_tables import counts_table, zipf_table
from pipeline.data.synth import SynthOptions, field_rows, synth
from pipeline.data.synth_values import avazu_keys, hex_strings, permute_ranks
from pipeline.errors import ConfigError, ResumableError

DATASETS = ["criteo", "avazu"]
FORMS = ["raw", "encoded"]


def _options(output, **changes):
    return SynthOptions(**{"dataset": "criteo", "rows": 40_000, "output": output} | changes)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """40,000 rows of each data set in each form, of one seed."""
    made = {}
    for dataset in DATASETS:
        for form in FORMS:
            output = tmp_path_factory.mktemp(f"{dataset}-{form}")
            synth(_options(output, dataset=dataset, form=form, overwrite=True))
            made[dataset, form] = pq.read_table(output)
    return made


def _digests(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.mark.parametrize("dataset", DATASETS)
def test_layouts(tables, dataset):
    raw, encoded = tables[dataset, "raw"], tables[dataset, "encoded"]
    assert raw.schema.equals(raw_schema(dataset))
    assert encoded.schema.equals(encoded_schema(dataset))
    assert read_layout(raw.schema)["form"] == "raw"
    layout = read_layout(encoded.schema)
    assert (layout["form"], layout["missing_row"], layout["unseen_row"]) == ("encoded", 0, 1)
    assert list(layout["field_rows"]) == encoded.column_names[2:]


@pytest.mark.parametrize("dataset", DATASETS)
def test_encoded_ids_stay_in_their_tables_and_use_no_unseen_row(tables, dataset):
    table = tables[dataset, "encoded"]
    for name, rows in read_layout(table.schema)["field_rows"].items():
        ids = table[name].to_numpy()
        assert ids.min() >= 0 and ids.max() < rows and not np.any(ids == 1), name


@pytest.mark.parametrize("dataset", DATASETS)
def test_both_forms_hold_the_same_rows(tables, dataset):
    raw, encoded = tables[dataset, "raw"], tables[dataset, "encoded"]
    assert raw.columns[0] == encoded.columns[0] and raw.columns[1] == encoded.columns[1]
    for name in raw.column_names[2:]:
        ids = encoded[name].to_numpy()
        assert np.array_equal(raw[name].is_null().to_numpy(), ids == 0), name
        # One id a value and, but for the buckets of counts, one value an id.
        pairs = pa.table({"raw": raw[name], "id": ids}).group_by(["raw", "id"]).aggregate([])
        assert len(pairs) == len(raw[name].unique()), name
        if not name.startswith("I"):
            assert len(pairs) == len(np.unique(ids)), name


def test_counts_are_encoded_as_the_feature_schema_does(tables):
    ids = Encoder(criteo_schema()).encode(tables["criteo", "raw"]).ids
    for i in range(13):
        assert np.array_equal(ids[i], tables["criteo", "encoded"][f"I{i + 1}"].to_numpy())
    assert avazu_schema().check(tables["avazu", "raw"].schema) == []


def test_missing_shares_and_negative_counts(tables):
    table = tables["criteo", "raw"]
    for name in table.column_names[2:]:
        share = table[name].null_count / len(table)
        # five standard deviations of a share of 40,000 rows
        assert share == pytest.approx(CRITEO_MISSING.get(name, 0), abs=0.013), name
    negative = np.mean(table["I2"].to_numpy() < 0)
    assert negative == pytest.approx(0.1, abs=0.01) and table["I2"].to_numpy().min() == -3


@pytest.mark.parametrize(("dataset", "rate"), [("criteo", 0.256), ("avazu", 0.17)])
def test_click_rate(tables, dataset, rate):
    label = tables[dataset, "raw"].columns[1].to_numpy()
    assert set(np.unique(label)) == {0, 1}
    assert label.mean() == pytest.approx(rate, abs=0.02)


def _auc(label, score):
    ranks = np.empty(len(score))
    ranks[np.argsort(score, kind="stable")] = np.arange(1, len(score) + 1)
    positive = label == 1
    count = positive.sum()
    return (ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(label) - count))


@pytest.mark.parametrize("dataset", DATASETS)
def test_clicks_can_be_learnt(tables, dataset):
    """Naive Bayes on one half ranks the other half; a better model does better."""
    table = tables[dataset, "encoded"]
    label = table.columns[1].to_numpy()
    half = len(label) // 2
    score = np.zeros(half)
    for name in table.column_names[2:]:
        ids = table[name].to_numpy() % 5000
        shown = np.bincount(ids[:half], minlength=5000) + 20
        clicked = np.bincount(ids[:half], label[:half], 5000) + 20 * label[:half].mean()
        score += np.log(clicked / (shown - clicked))[ids[half:]]
    assert 0.68 < _auc(label[half:], score) < 0.85


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_same_files_whatever_the_workers(tmp_path, dataset, form):
    more = {"dataset": dataset, "form": form, "rows": 1111, "rows_per_shard": 300}
    for name, workers in [("one", 1), ("three", 3)]:
        synth(_options(tmp_path / name, workers=workers, row_group_rows=111, **more))
    assert _digests(tmp_path / "one") == _digests(tmp_path / "three")
    synth(_options(tmp_path / "other", seed=1, row_group_rows=111, **more))
    assert _digests(tmp_path / "one") != _digests(tmp_path / "other")


@pytest.mark.parametrize(("rows", "shards"), [(1, 1), (19, 1), (300, 1), (301, 2), (1111, 4)])
def test_odd_sizes_are_cut_into_shards_and_row_groups(tmp_path, rows, shards):
    result = synth(_options(tmp_path, rows=rows, rows_per_shard=300, row_group_rows=111))
    files = sorted(tmp_path.iterdir())
    assert (result.rows, result.shards, len(files)) == (rows, shards, shards)
    assert files[0].name == "shard-00000.parquet"
    assert pq.read_table(tmp_path)["row_id"].to_pylist() == list(range(rows))
    groups = pq.read_metadata(files[0])
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [
        n for n in (min(111, rows), min(111, rows - 111), min(78, rows - 222)) if n > 0
    ]


def test_a_filled_folder_is_refused_and_foreign_files_always(tmp_path):
    synth(_options(tmp_path, rows=700, rows_per_shard=100))
    with pytest.raises(ConfigError, match=r"not empty \(holds shard-00000.parquet\).*--overwrite"):
        synth(_options(tmp_path, rows=19))
    synth(_options(tmp_path, rows=19, overwrite=True))
    assert [p.name for p in tmp_path.iterdir()] == ["shard-00000.parquet"]
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"holds notes\.txt, which is no shard"):
        synth(_options(tmp_path, rows=19, overwrite=True))


def test_a_failure_leaves_nothing_behind(tmp_path):
    def fail(rows):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        synth(_options(tmp_path, rows=1000, rows_per_shard=100), on_shard=fail)
    assert list(tmp_path.iterdir()) == []


def test_field_rows_are_those_of_the_published_cardinalities(tmp_path):
    criteo = field_rows(_options(tmp_path))
    assert {n: criteo[n] - 2 for n in CRITEO_CARDINALITIES} == CRITEO_CARDINALITIES
    avazu = field_rows(_options(tmp_path, dataset="avazu"))
    assert {n: rows - 2 for n, rows in avazu.items()} == AVAZU_CARDINALITIES
    scaled = field_rows(_options(tmp_path, cardinality_scale=0.001))
    assert scaled["C3"] == 2 + 10131 and scaled["C9"] == 2 + 2 and scaled["I1"] == criteo["I1"]


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.05, 2.0])
@pytest.mark.parametrize("size", [2, 19, 111, 1_000_000])
def test_zipf_ranks_have_their_probabilities(size, exponent):
    words = np.random.default_rng(0).integers(0, 2**64, 1_000_000, dtype=np.uint64)
    ranks = zipf_table(size, exponent).draw(words)
    assert ranks.min() == 0 and ranks.max() < size
    expected = np.arange(1, size + 1.0) ** -exponent
    expected /= expected.sum()
    # A cell holds 1/65,536; then three standard deviations of a million draws.
    head = np.bincount(ranks, minlength=size)[:10] / len(ranks)
    np.testing.assert_allclose(head, expected[:10], atol=2 / 65536 + 3 * 0.0005)
    upper = size // 2
    assert np.mean(ranks >= upper) == pytest.approx(expected[upper:].sum(), abs=2e-3)


def test_counts_have_their_median_and_ninth_decile():
    words = np.random.default_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)
    counts = counts_table(41, 340, 0.0).draw(words)
    assert np.median(counts) == pytest.approx(41, rel=0.05)
    assert np.quantile(counts, 0.9) == pytest.approx(340, rel=0.05)


@pytest.mark.parametrize("size", [1, 19, 64, 65, 111, 10_007])
def test_scattering_is_a_bijection(size):
    numbers = permute_ranks(np.arange(size, dtype=np.int32), size)
    assert sorted(numbers.tolist()) == list(range(size))


def test_hex_strings_are_distinct_and_keys_too():
    absent = np.arange(5000) == 111
    strings = hex_strings("C3", np.arange(5000), absent)
    strings.validate(full=True)
    assert strings.null_count == 1 and strings[111].as_py() is None
    texts = strings.drop_null().to_pylist()
    assert len(set(texts)) == 4999 and all(len(t) == 8 and int(t, 16) >= 0 for t in texts)
    assert texts[:3] != hex_strings("C4", np.arange(3)).to_pylist()
    keys = avazu_keys(np.arange(5000))
    assert len(np.unique(keys)) == 5000 and keys.dtype == np.uint64
    assert (keys > 2**63).any()


def test_command_line(tmp_path):
    arguments = ["-o", str(tmp_path), "--dataset", "avazu", "--form", "encoded", "--rows", "111"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0 and result.output.startswith("111 rows in 1 shards")
    assert len(pq.read_table(tmp_path)) == 111
    assert CliRunner().invoke(command, ["-o", str(tmp_path), "--rows", "0"]).exit_code == 2


def test_a_full_disk_is_resumable_and_leaves_nothing_behind(tmp_path):
    def fill_up(rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ResumableError, match=r"nothing was written .*No space left"):
        synth(_options(tmp_path, rows=1000, rows_per_shard=100), on_shard=fill_up)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot make output folder"):
        synth(_options(tmp_path / "file" / "out", rows=19))
