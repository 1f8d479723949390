"""Several bundles in one job: each scores as in a job of its own, from one read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest
from click.testing import CliRunner
from job_cases import encoded_table, job_keys, score_here, tiny_bundle, with_value
from list_models import list_bundle, list_spec, list_table
from model_zoo import fields
from plan_jobs import raw_schema, raw_spec, raw_table, save, write
from sklearn import metrics

from dpiframe_core import load_engine
from dpiframe_core.bundle.reading import open_bundle
from dpiframe_core.features.datasets import criteo_schema
from dpiframe_core.model.builtin import Deep, Features, dcn, wdl
from dpiframe_core.model.spec import FieldSpec
from jobs.evaluate import command as evaluate
from pipeline.config.job import JobConfig, load_config
from pipeline.errors import ConfigError, ContractError
from pipeline.planning.plan import make_plan
from pipeline.publishing.records import Manifest
from pipeline.publishing.scores import finished_manifest, open_scores
from pipeline.publishing.verify import embedding_problems, verify_output
from pipeline.report.page import write_report
from pipeline.scoring.job import run_job
from pipeline.scoring.summary import summary as told
from pipeline.tracking.compare import run_of_output


def config_of(folder: Path, **keys: Any) -> JobConfig:
    wanted = job_keys(folder, runner="local", unit_rows=40) | keys
    return load_config({name: value for name, value in wanted.items() if value is not None})


def scored(folder: Path, **keys: Any) -> pa.Table:
    """The scores of a job, which verifies."""
    config = config_of(folder, **keys)
    run_job(config)
    assert verify_output(config.output).problems == []
    return open_scores(config.output).to_table()


def each_alone(folder: Path, bundles: dict[str, str], **keys: Any) -> dict[str, pa.ChunkedArray]:
    """The scores of each bundle by a job of its own."""
    return {
        name: scored(folder, bundle=where, output=str(folder / name), **keys).column("score")
        for name, where in bundles.items()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny model; one of some of its fields in another order; one of a column more."""
    tiny_bundle(tmp_path / "bundle")
    few = Features([fields(8)[f] for f in (5, 2, 3)], ["I3", "I1"])
    save(tmp_path / "few", wdl(few, Deep(hidden=(7,))), seed=2)
    more = Features([*fields(2)[1:3], FieldSpec(name="C9", rows=19, dim=2)], ["I2"])
    save(tmp_path / "more", dcn(more, Deep(hidden=(5,))), seed=3)
    for shard in range(2):
        table = with_c9(encoded_table(111, shard * 111, seed=shard), shard)
        write(tmp_path / "input" / f"shard-{shard}.parquet", table)
    return tmp_path


def with_c9(table: pa.Table, seed: int = 7) -> pa.Table:
    """The rows with ids in C9 and a label of both classes."""
    rng = np.random.default_rng(seed)
    table = table.append_column("C9", pa.array(rng.integers(0, 19, len(table)), pa.int32()))
    labels = pa.array(rng.integers(0, 2, len(table)), pa.int8())
    return table.set_column(1, "label", labels)


def test_every_bundle_scores_as_in_a_job_of_its_own(folder: Path) -> None:
    bundles = {"few": str(folder / "few"), "more": str(folder / "more")}
    alone = each_alone(folder, {"first": str(folder / "bundle"), **bundles})
    found = scored(folder, bundles=bundles)
    assert found.column_names == ["row_id", "label", "score", "score_few", "score_more"]
    for name, column in zip(alone, found.column_names[2:], strict=True):
        np.testing.assert_allclose(found.column(column), alone[name], atol=1e-6)
    manifest = finished_manifest(folder / "output")
    assert list(manifest.bundles) == ["few", "more"]
    mean = np.mean([unit.others["few"].score_sum for unit in manifest.units])
    assert mean * len(manifest.units) == pytest.approx(np.sum(found.column("score_few").to_numpy()))
    assert manifest.units[0].read_by == "cpu"


def test_the_bundles_are_part_of_the_identity(folder: Path) -> None:
    scored(folder, bundles={"few": str(folder / "few")})
    with pytest.raises(ConfigError, match="its bundles beside that are few"):
        run_job(config_of(folder))
    with pytest.raises(ConfigError, match="this one's few"):
        run_job(config_of(folder, bundles={"few": str(folder / "more")}))
    before = make_plan(config_of(folder, bundles={"few": str(folder / "few")})).identity
    assert before == finished_manifest(folder / "output").identity
    renamed = make_plan(config_of(folder, bundles={"other": str(folder / "few")})).identity
    assert before != renamed


def rejecting(folder: Path, **keys: Any) -> Manifest:
    scored(folder, on_bad_row="reject", bundles={"more": str(folder / "more")}, **keys)
    return finished_manifest(folder / "output")


def test_a_row_that_is_bad_for_one_is_bad_for_all(folder: Path) -> None:
    table = encoded_table(111).append_column("C9", pa.array(np.arange(111, dtype=np.int32) % 19))
    write(folder / "input" / "bad.parquet", with_value(table, "C9", 50, 19))
    bundles = {"more": str(folder / "more")}
    with pytest.raises(ContractError, match=r"(?s)bundle 'more'.*C9 holds id 19.*of 19 rows"):
        run_job(config_of(folder, bundles=bundles))
    manifest = rejecting(folder)
    assert (manifest.rejected, manifest.scored) == (1, 332)
    found = open_scores(folder / "output").to_table()
    assert found.column("score").is_null().equals(found.column("score_more").is_null())


def test_ids_may_fit_one_table_and_not_the_other(folder: Path) -> None:
    """The statistics of a column are held against each table, and told of the one that is left."""
    small = Features([FieldSpec(name="C5", rows=3, dim=2)], ["I1"])
    save(folder / "small", wdl(small, Deep(hidden=(3,))))
    bundles = {"small": str(folder / "small")}
    with pytest.raises(ContractError, match=r"(?s)bundle 'small'.*C5 holds .* table of 3 rows"):
        make_plan(config_of(folder, bundles=bundles))


def test_raw_columns_are_encoded_by_every_schema(tmp_path: Path) -> None:
    write(tmp_path / "input" / "x.parquet", raw_table(111))
    save(tmp_path / "bundle", raw_spec(), raw_schema())
    save(tmp_path / "alike", raw_spec(), raw_schema(), seed=2)
    other = criteo_schema("buckets", "hash", modulus=7, max_bucket=11)
    spec = wdl(
        Features([FieldSpec(name=f.name, rows=f.rows, dim=2) for f in other.fields]),
        Deep(hidden=(3,)),
    )
    save(tmp_path / "other", spec, other)
    save(tmp_path / "again", spec, other, seed=2)
    bundles = {name: str(tmp_path / name) for name in ("other", "alike", "again")}
    plan = make_plan(config_of(tmp_path, bundles=bundles))
    assert [model.encodes for model in plan.others] == [True, False, False]
    alone = each_alone(tmp_path, bundles)
    found = scored(tmp_path, bundles=bundles)
    for name, scores in alone.items():
        np.testing.assert_allclose(found.column(f"score_{name}"), scores, atol=1e-6)


def test_lists_are_shared_where_they_are_padded_alike(tmp_path: Path) -> None:
    write(tmp_path / "input" / "x.parquet", list_table(111))
    list_bundle(tmp_path / "bundle", list_spec())
    list_bundle(tmp_path / "same", list_spec())
    list_bundle(tmp_path / "before", list_spec(side="before"))
    bundles = {"same": str(tmp_path / "same"), "before": str(tmp_path / "before")}
    plan = make_plan(config_of(tmp_path, bundles=bundles))
    assert len(plan.columns.lists) == 4
    assert plan.others[0].ids == tuple(range(len(plan.others[0].ids)))
    alone = each_alone(tmp_path, bundles)
    found = scored(tmp_path, bundles=bundles)
    for name, scores in alone.items():
        np.testing.assert_allclose(found.column(f"score_{name}"), scores, atol=1e-6)


def test_what_is_wrong_with_bundles_is_said(folder: Path) -> None:
    with pytest.raises(ConfigError, match="of letters, digits and _"):
        config_of(folder, bundles={"a b": "x"})
    with pytest.raises(ConfigError, match="must not name 'score_label'"):
        config_of(folder, bundles={"label": "x"}, carry_columns=["score_label"])
    with pytest.raises(ConfigError, match="both name 'x'"):
        config_of(folder, bundles={"x": "x"}, outputs={"x": "mlp"})
    with pytest.raises(ConfigError, match="outputs, x: there is no module 'nothing'"):
        make_plan(config_of(folder, outputs={"x": "nothing"}))
    with pytest.raises(ConfigError, match="bundle 'x' cannot be used: there is no bundle"):
        make_plan(config_of(folder, bundles={"x": str(folder / "none")}))
    with pytest.raises(ConfigError, match="field_columns names 'nothing'"):
        make_plan(
            config_of(folder, bundles={"few": str(folder / "few")}, field_columns={"nothing": "C1"})
        )


def test_each_is_evaluated_against_the_label(folder: Path) -> None:
    bundles = {"few": str(folder / "few")}
    result = run_job(config_of(folder, bundles=bundles, label_column="label"))
    alone = run_job(
        config_of(
            folder,
            bundle=bundles["few"],
            output=str(folder / "alone"),
            label_column="label",
        )
    )
    assert result.evaluation["auc_few"] == pytest.approx(alone.evaluation["auc"], abs=1e-6)
    assert result.evaluation["auc"] != result.evaluation["auc_few"]
    assert "AUC few" in told(result)
    tracked = run_of_output(folder / "output").metrics
    assert tracked["logloss_few"] == result.evaluation["logloss_few"]
    units = finished_manifest(folder / "output").units
    mean = sum(unit.others["few"].score_sum for unit in units) / 222
    assert tracked["score_mean_few"] == pytest.approx(mean)
    assert tracked["score_psi_few"] > 0
    write_report(folder / "output", None, folder / "report.html")
    page = (folder / "report.html").read_text()
    assert "Beside it" in page
    assert f"{result.evaluation['auc_few']:.5g}" in page
    again = run_job(config_of(folder, bundles=bundles, label_column="label"))
    assert again.status == "complete before"
    assert again.evaluation == result.evaluation
    asked = CliRunner().invoke(evaluate, [str(folder / "output"), "--label", "label"])
    assert "score_few: 222 rows" in asked.output, asked.output


def test_a_field_is_mapped_for_the_bundles_that_have_it(folder: Path) -> None:
    """C9 is a field of `more` alone; it reads C1 here, whose ids fit as well."""
    mapped = {"bundles": {"more": str(folder / "more")}, "field_columns": {"C9": "C1"}}
    found = scored(folder, **mapped)
    alone = scored(
        folder,
        bundle=str(folder / "more"),
        field_columns={"C9": "C1"},
        output=str(folder / "alone"),
    )
    np.testing.assert_allclose(found.column("score_more"), alone.column("score"), atol=1e-6)


def test_a_dated_bundle(folder: Path) -> None:
    config = config_of(folder, bundles={"today": "models/{date}"}, date="2026-11-19")
    assert config.bundles == {"today": "models/2026-11-19"}


def test_tasks_and_embeddings_of_one_model(folder: Path) -> None:
    """A module of one number is scored as a logit, a wider one is a list; null where rejected."""
    write(folder / "input" / "bad.parquet", with_value(with_c9(encoded_table(111)), "C2", 50, 99))
    bundle = open_bundle(folder / "bundle")
    widths = {m.name: bundle.spec.ending_in(m.name).width for m in bundle.spec.modules}
    task = next(n for n, w in widths.items() if w == 1 and n != bundle.spec.output)
    tower = next(n for n, w in widths.items() if w > 1)
    wanted = {"outputs": {"cvr": task, "tower": tower}, "on_bad_row": "reject"}
    found = scored(folder, bundles={"few": str(folder / "few")}, **wanted)
    assert found.column_names[2:] == ["score", "score_few", "score_cvr", "embedding_tower"]
    rejected = found.column("score").is_null()
    assert pc.sum(rejected).as_py() == 1
    assert found.column("embedding_tower").is_null().equals(rejected)

    table = pads.dataset(folder / "input").to_table()
    kept = pc.invert(rejected)
    order = table.filter(pc.is_in(table["row_id"], found["row_id"])).filter(
        pa.chunked_array([np.array(table["C2"].to_numpy() < 7)])
    )
    ids = [order.column(f.name).to_numpy() for f in bundle.spec.fields]
    dense = [order.column(name).to_numpy() for name in bundle.spec.dense]
    logits = load_engine(bundle, device="cpu", output=task).logits(ids, dense)
    ours = found.filter(kept).sort_by("row_id")
    theirs = np.argsort(order["row_id"].to_numpy(), kind="stable")
    np.testing.assert_allclose(ours["score_cvr"], (1 / (1 + np.exp(-logits)))[theirs], atol=1e-6)
    embedded = load_engine(bundle, device="cpu", output=tower).embed(ids, dense)[theirs]
    flat = pc.list_flatten(ours["embedding_tower"]).to_numpy()
    np.testing.assert_allclose(flat.reshape(embedded.shape), embedded, atol=1e-6)

    manifest = finished_manifest(folder / "output")
    assert manifest.outputs == {"cvr": 1, "tower": widths[tower]}
    assert list(manifest.units[0].others) == ["few", "cvr"]
    assert (
        make_plan(config_of(folder, **wanted)).identity
        != make_plan(config_of(folder, on_bad_row="reject")).identity
    )


def test_a_task_is_evaluated_against_a_label_of_its_own(folder: Path) -> None:
    """A conversion is known of clicks alone: null elsewhere, and left out."""
    rng = np.random.default_rng(3)
    for path in (folder / "input").iterdir():
        table = pads.dataset(path).to_table()
        clicked = table["label"].to_numpy() == 1
        bought = pa.array(rng.integers(0, 2, len(table)), mask=~clicked)
        write(path, table.append_column("bought", bought))
    spec = open_bundle(folder / "bundle").spec
    task = next(
        m.name for m in spec.modules if spec.ending_in(m.name).width == 1 and m.name != spec.output
    )
    wanted = {"outputs": {"cvr": task}, "label_column": "label"}
    result = run_job(config_of(folder, **wanted, output_labels={"cvr": "bought"}))
    found = open_scores(folder / "output").to_table().to_pandas().dropna()
    assert len(found) == result.evaluation["labelled_rows_cvr"] < 222
    auc = metrics.roc_auc_score(found.bought, found.score_cvr)
    assert result.evaluation["auc_cvr"] == pytest.approx(auc, abs=1e-12)
    assert "AUC cvr" in told(result)
    asked = ["--label", "label", "--output-label", "cvr=bought", "--json"]
    told_later = CliRunner().invoke(evaluate, [str(folder / "output"), *asked])
    assert json.loads(told_later.output)["others"]["cvr"]["quality"]["auc"] == pytest.approx(auc)
    for labels in ({"cvr": "bought"}, {"other": "bought"}):
        with pytest.raises(ConfigError, match="output_labels"):
            config_of(folder, output_labels=labels, **(wanted if "other" in labels else {}))


def test_units_travel_from_read_tasks(folder: Path) -> None:
    """What Ray's object store carries holds the columns of all bundles."""
    bundles = {"few": str(folder / "few"), "more": str(folder / "more")}
    wanted = scored(folder, bundles=bundles, output=str(folder / "local"))
    score_here(folder, bundles=bundles, unit_rows=40)
    found = open_scores(folder / "output").to_table()
    assert found.column_names == wanted.column_names
    for name in found.column_names:
        np.testing.assert_allclose(found.column(name), wanted.column(name), atol=1e-6)


def test_a_damaged_embedding_is_found() -> None:
    lists = pa.chunked_array([pa.array([[1.0, 2.0], None, [1.0]], pa.list_(pa.float32()))])
    assert "not of 2 numbers" in embedding_problems(lists, "x", 2)[0]
    lists = pa.chunked_array([pa.array([[1.0, np.nan], None], pa.list_(pa.float32()))])
    assert "not finite" in embedding_problems(lists, "x", 2)[0]
    assert embedding_problems(lists.slice(1), "x", 2) == []
    assert "expected lists" in embedding_problems(pa.chunked_array([[1.0]]), "x", 2)[0]


def test_without_rows_there_are_the_columns(folder: Path) -> None:
    for path in (folder / "input").iterdir():
        path.unlink()
    table = encoded_table(1).append_column("C9", pa.array([0], pa.int32())).slice(0, 0)
    write(folder / "input" / "x.parquet", table)
    outputs = {"tower": open_bundle(folder / "bundle").spec.modules[0].name}
    bundles = {"few": str(folder / "few")}
    found = scored(folder, bundles=bundles, outputs=outputs, min_rows=0)
    assert found.column_names[2:] == ["score", "score_few", "embedding_tower"]
