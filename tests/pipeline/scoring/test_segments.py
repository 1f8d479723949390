"""One bundle a segment: each row has the score of the bundle of its segment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from job_cases import encoded_table, job_keys, score_here, tiny_bundle
from model_zoo import fields
from plan_jobs import raw_schema, raw_spec, raw_table, save, write

from dpiframe_core.model.builtin import Deep, Features, wdl
from dpiframe_core.model.spec import FieldSpec
from pipeline.config.job import JobConfig, load_config
from pipeline.errors import ConfigError, ContractError
from pipeline.planning.models import joined_cost, open_bundles
from pipeline.planning.plan import make_plan
from pipeline.publishing.scores import finished_manifest, open_scores
from pipeline.publishing.verify import verify_output
from pipeline.report.page import write_report
from pipeline.scoring.dry_run import describe_plan, dry_run_data, output_state
from pipeline.scoring.job import run_job
from pipeline.scoring.summary import summary as told
from pipeline.tracking.compare import run_of_output

COUNTRIES = ["DE", "NL", None, "FR"]
BY_COUNTRY = {"column": "country", "bundles": {"DE": "few", "NL": "same", "XX": "same"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny model, one of some of its fields, one of its form; rows of four countries."""
    tiny_bundle(tmp_path / "bundle")
    few = Features([fields(8)[f] for f in (5, 2, 3)], ["I3", "I1"])
    save(tmp_path / "few", wdl(few, Deep(hidden=(7,))), seed=2)
    tiny_bundle(tmp_path / "same", seed=3)
    for shard in range(2):
        write(tmp_path / "input" / f"shard-{shard}.parquet", rows_of(shard))
    return tmp_path


def rows_of(shard: int) -> pa.Table:
    table = encoded_table(111, shard * 111, seed=shard)
    rng = np.random.default_rng(shard)
    table = table.set_column(1, "label", pa.array(rng.integers(0, 2, 111), pa.int8()))
    values = [COUNTRIES[place] for place in rng.integers(0, 4, 111)]
    return table.append_column("country", pa.array(values, pa.string()))


def config_of(folder: Path, **keys: Any) -> JobConfig:
    bundles = {name: str(folder / name) for name in ("few", "same")}
    wanted = {"bundles": bundles, "segments": BY_COUNTRY, "runner": "local", "unit_rows": 40}
    return load_config(
        {k: v for k, v in job_keys(folder, **wanted | keys).items() if v is not None}
    )


def scored(folder: Path, **keys: Any) -> pa.Table:
    """The scores of a job, which verifies, in the order of the input."""
    config = config_of(folder, **keys)
    run_job(config)
    assert verify_output(config.output).problems == []
    return open_scores(config.output).to_table()


def selected(folder: Path, column: str = "country", **keys: Any) -> np.ndarray:
    """The wanted scores: selected from those of a job in which all bundles score all rows."""
    keys = {"segments": None, "carry_columns": [column], **keys}
    found = scored(folder, output=str(folder / "beside"), **keys)
    countries = np.array(found.column("country").to_pylist(), object)
    wanted = found.column("score").to_numpy().copy()
    for country, name in {"DE": "few", "NL": "same"}.items():
        rows = countries == country
        assert rows.any()
        wanted[rows] = found.column(f"score_{name}").to_numpy()[rows]
    return wanted


def test_each_row_has_the_score_of_its_segment(folder: Path) -> None:
    wanted = selected(folder)
    found = scored(folder)
    assert found.column_names == ["row_id", "label", "country", "score"]
    np.testing.assert_allclose(found["score"], wanted, atol=1e-6)
    manifest = finished_manifest(folder / "output")
    assert list(manifest.bundles) == ["few", "same"]
    counts = found["country"].to_pylist()
    assert manifest.segment_rows == {"DE": counts.count("DE"), "NL": counts.count("NL"), "XX": 0}
    total = sum(unit.score_sum for unit in manifest.units)
    assert total == pytest.approx(wanted.sum(), abs=1e-3)


def test_on_ray_and_without_are_the_same(folder: Path) -> None:
    wanted = scored(folder, output=str(folder / "local"))
    keys = {"bundles": {n: str(folder / n) for n in ("few", "same")}, "segments": BY_COUNTRY}
    score_here(folder, unit_rows=40, **keys)
    found = open_scores(folder / "output").to_table()
    assert found.column_names == wanted.column_names
    np.testing.assert_allclose(found["score"], wanted["score"], atol=1e-6)


def test_a_bundle_that_is_no_segments_has_its_column(folder: Path) -> None:
    """Of all rows, beside the scores of the segments; so has a bundle of a second name."""
    bundles = {name: str(folder / name) for name in ("same", "few")} | {"all": str(folder / "few")}
    found = scored(folder, bundles=bundles)
    assert found.column_names[3:] == ["score", "score_all"]
    german = np.array(found["country"].to_pylist(), object) == "DE"
    scores, few = found["score"].to_numpy(), found["score_all"].to_numpy()
    np.testing.assert_allclose(scores[german], few[german], atol=1e-6)
    assert np.abs(scores - few)[~german].min() > 1e-6


def test_another_mapping_is_another_job(folder: Path) -> None:
    config = config_of(folder)
    result = run_job(config)
    assert "DE" in told(result)
    assert f"others {222 - sum(result.segments.values())}" in told(result)
    lost = sorted((folder / "output").glob("part-*.parquet"))[1]
    before = open_scores(folder / "output").to_table()
    lost.unlink()
    again = run_job(config)
    assert (again.resumed_units, again.segments) == (result.units - 1, result.segments)
    assert open_scores(folder / "output").to_table().equals(before)
    assert run_job(config).status == "complete before"

    other = config_of(folder, segments={"column": "country", "bundles": {"DE": "same"}})
    with pytest.raises(ConfigError, match=r"its segments is .*'XX'.* this one's .*'DE': 'same'"):
        run_job(other)
    assert "differs in: segments" in output_state(make_plan(other)).text
    plan = make_plan(config)
    text = describe_plan(plan, output_state(plan))
    assert "by country: DE: few, NL: same, XX: same; other rows by the bundle" in text
    assert dry_run_data(plan)["segments"] == BY_COUNTRY


def test_an_id_counts_for_the_bundle_that_scores_its_row(folder: Path) -> None:
    """A table of 2 rows is too small for most ids, as footers tell; only German rows look it up."""
    small = Features([FieldSpec(name="C3", rows=2, dim=2)], ["I1"])
    save(folder / "small", wdl(small, Deep(hidden=(3,))))
    keys: dict[str, Any] = {"bundles": {name: str(folder / name) for name in ("same", "small")}}
    keys["segments"] = {"column": "country", "bundles": {"DE": "small", "NL": "same"}}
    with pytest.raises(ContractError, match=r"C3.* table of 2 rows"):
        run_job(config_of(folder, **keys))
    found = scored(folder, on_bad_row="reject", max_rejected_fraction=1, **keys)
    countries, ids = (
        np.concatenate([rows_of(shard)[name].to_numpy() for shard in range(2)])
        for name in ("country", "C3")
    )
    bad = (countries == "DE") & (ids > 1)
    assert bad.any()
    assert found["score"].is_null().to_numpy().tolist() == bad.tolist()


def test_raw_rows_and_a_partition_column_of_integers(tmp_path: Path) -> None:
    save(tmp_path / "bundle", raw_spec(), raw_schema())
    save(tmp_path / "few", raw_spec(), raw_schema(), seed=2)
    for surface in (1, 2):
        write(tmp_path / "input" / f"surface={surface}" / "x.parquet", raw_table(40))
    keys: dict[str, Any] = {"bundles": {"few": str(tmp_path / "few")}, "carry_columns": ["surface"]}
    every = scored(tmp_path, segments=None, output=str(tmp_path / "all"), **keys)
    by_surface = {"column": "surface", "bundles": {2: "few"}}
    found = scored(tmp_path, segments=by_surface, partition_by=["surface"], **keys)
    two = every["surface"].to_numpy() == 2
    wanted = np.where(two, every["score_few"], every["score"])
    np.testing.assert_allclose(found.sort_by("surface")["score"], wanted, atol=1e-6)
    assert two.sum() == 40
    with pytest.raises(ConfigError, match="'app', which column surface of"):
        make_plan(
            config_of(tmp_path, **keys | {"segments": {**by_surface, "bundles": {"app": "few"}}})
        )


def test_it_is_evaluated_and_reported_as_one_score(folder: Path) -> None:
    result = run_job(config_of(folder, label_column="label", slice_columns=["country"]))
    assert "auc" in result.evaluation
    assert not [name for name in result.evaluation if name.endswith(("_few", "_same"))]
    assert "score_mean_few" not in run_of_output(folder / "output").metrics
    write_report(folder / "output", None, folder / "report.html")
    page = (folder / "report.html").read_text()
    assert f"DE by few: {result.segments['DE']}" in page
    assert "Beside it" not in page


def test_without_rows_there_is_the_column(folder: Path) -> None:
    for path in (folder / "input").iterdir():
        path.unlink()
    write(folder / "input" / "x.parquet", rows_of(0).slice(0, 0))
    assert scored(folder, min_rows=0).column_names == ["row_id", "label", "country", "score"]


def test_a_row_costs_what_one_of_its_bundles_does(folder: Path) -> None:
    config = config_of(folder)
    opened = open_bundles(config)
    with_all = joined_cost(opened, config.model_copy(update={"segments": None}))
    found = joined_cost(opened, config)
    assert found.operations < with_all.operations
    assert found.table_values == with_all.table_values
