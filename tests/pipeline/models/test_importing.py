"""`dpiframe import`: from the file of torch.export to the scores of a job."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from click.testing import CliRunner
from torch import nn

import dpiframe_core as dpi
from dpiframe_core.features import Encoder, criteo_schema, fit_schema
from dpiframe_core.frontend.schemas import Encoding
from jobs.cli import root
from pipeline.config.job import JobConfig
from pipeline.data.convert import ConvertOptions, convert
from pipeline.errors import ConfigError
from pipeline.models.importing import ImportOptions, import_model
from pipeline.publishing.scores import open_scores
from pipeline.scoring.job import run_job
from pipeline.scoring.tracked import import_params

ITEMS, LENGTH, ROWS = 23, 4, 111


class Clicks(nn.Module):
    """A FuxiCTR-like model: one dictionary of an item, the items clicked before, a price."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.items = nn.Embedding(ITEMS, 8, padding_idx=0)
        self.deep = nn.Sequential(nn.Linear(17, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, inputs):
        clicked = self.items(inputs["clicks"]).sum(1)
        parts = [self.items(inputs["item"]), clicked, inputs["price"][:, None]]
        return {"y_pred": self.deep(torch.cat(parts, 1)).sigmoid()}


def samples(rows: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    item = torch.randint(1, ITEMS, (rows,), generator=generator)
    clicks = torch.randint(1, ITEMS, (rows, LENGTH), generator=generator)
    lengths = torch.randint(0, LENGTH + 1, (rows, 1), generator=generator)
    clicks[torch.arange(LENGTH)[None] >= lengths] = 0
    return {"item": item, "clicks": clicks, "price": torch.rand(rows, generator=generator)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """The model as torch.export.save writes it, with samples and what it makes of them."""
    folder = tmp_path_factory.mktemp("exported")
    module, batch = Clicks().eval(), torch.export.Dim("batch", min=1, max=2**20)
    given = samples(ROWS)
    program = torch.export.export(
        module, (given,), dynamic_shapes=({name: {0: batch} for name in given},)
    )
    torch.export.save(program, folder / "clicks.pt2")
    with torch.no_grad():
        probability = module(given)["y_pred"].flatten()
    stored = {**given, "probability": probability, "label": (torch.arange(ROWS) % 2).float()}
    safetensors.torch.save_file(stored, folder / "samples.safetensors")
    (folder / "columns.yaml").write_text(
        "item: target item\nclicks: {column: clicks, side: before, keep: last}\nprice: price\n"
    )
    return folder


def imported(exported: Path, *options: str):
    return CliRunner().invoke(
        root, ["import", str(exported / "clicks.pt2"), *options], catch_exceptions=False
    )


def test_the_command_imports_and_reports(exported, tmp_path):
    done = imported(
        exported, "-o", str(tmp_path / "bundle"), "--columns", str(exported / "columns.yaml"),
        "--check", str(exported / "samples.safetensors"),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "clicks: 5 fields, 1 dense features; output y_pred: a probability" in done.output
    assert f"logits of {ROWS} given samples against the module in float64" in done.output
    assert "CPU, fp32 against those recorded: largest" in done.output
    assert "the module: AUC" in done.output
    bundle = dpi.open_bundle(tmp_path / "bundle")
    (clicks,) = bundle.spec.lists
    assert (clicks.name, clicks.side, clicks.keep) == ("clicks", "before", "last")
    assert bundle.spec.columns == {"target_item": "target item"}
    assert len({field.table for field in bundle.spec.fields}) == 1
    params = import_params(bundle.path)
    assert params["import_model"] == "clicks" and params["import_torch"] == torch.__version__
    assert params["import_differences.CPU_fp32.largest"] < 1e-5


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (ImportOptions(output="click"), "output 'click' is none of the model's"),
        (ImportOptions(feature_map=Path("m.json")), "are needed together"),
        (ImportOptions(tolerance=0.0), "differs from the model by"),
    ],
)
def test_what_cannot_be_imported_is_told(exported, tmp_path, options, told):
    with pytest.raises(ConfigError, match=told):
        import_model(exported / "clicks.pt2", tmp_path / "bundle", options)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("columns", "item: [", "columns"),
        ("columns", "items: item", "did you mean 'item'"),
        ("check", "no tensors", "check"),
    ],
)
def test_files_that_are_wrong_are_named(exported, tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    options = ImportOptions(**{name: tmp_path / name})
    with pytest.raises(ConfigError, match=told):
        import_model(exported / "clicks.pt2", tmp_path / "bundle", options)


def test_export_compares_with_given_logits(tmp_path):
    bundle = dpi.from_torch(Clicks(), samples(5), path=tmp_path / "bundle")
    spec, weights = tmp_path / "spec.json", bundle.path / "weights.safetensors"
    spec.write_text(json.dumps(bundle.spec.model_dump(mode="json")))
    ids = torch.zeros(5, 3, dtype=torch.int64)
    dense = torch.tensor([[0.5, 0.0, -1.0]])
    logits = dpi.load_engine(bundle, device="cpu").logits(ids.numpy(), dense.numpy())
    for shift, code in ((0.0, 0), (1e-3, 2)):
        stored = {"ids": ids, "dense": dense, "logits": torch.from_numpy(logits) + shift}
        safetensors.torch.save_file(stored, tmp_path / "check.safetensors")
        output = tmp_path / f"again{code}"
        arguments = ["export", "--spec", str(spec), "--weights", str(weights), "-o", str(output)]
        done = CliRunner().invoke(
            root, [*arguments, "--check", str(tmp_path / "check.safetensors")]
        )
        assert output.exists() == (code == 0)
        assert code == 0 or "differs from the model by" in str(done.exception)


def lists_of(clicks: torch.Tensor) -> pa.Array:
    """The lists that were padded behind, without their pads."""
    return pa.array([[int(i) for i in row if i] for row in clicks], pa.list_(pa.int64()))


@pytest.mark.slow
def test_a_job_scores_encoded_rows_as_the_module_does(exported, tmp_path, ray_session):
    columns = {"item": "target item", "clicks": "clicks", "price": "price"}
    dpi.from_torch(
        dpi.read_archive(exported / "clicks.pt2"), columns=columns, path=tmp_path / "bundle"
    )
    given = samples(ROWS)
    table = {
        "row_id": np.arange(ROWS),
        "target item": given["item"].numpy(),
        "clicks": lists_of(given["clicks"]),
        "price": given["price"].numpy(),
    }
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    scores = scored(tmp_path, tmp_path / "rows.parquet", "row_id", ray_session)
    with torch.no_grad():
        expected = Clicks().eval()(given)["y_pred"].flatten().numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


def scored(folder: Path, rows: Path, key: str, ray_address: str) -> np.ndarray:
    config = JobConfig(
        bundle=str(folder / "bundle"),
        input=str(rows),
        output=str(folder / "scores"),
        key_columns=[key],
        tracking=False,
        ray_address=ray_address,
    )
    result = run_job(config)
    assert result.scored == result.rows
    return open_scores(folder / "scores").to_table()["score"].to_numpy()


class Criteo(nn.Module):
    """Ids [B, 26] and numbers [B, 13]."""

    def __init__(self, rows):
        super().__init__()
        torch.manual_seed(3)
        self.tables = nn.ModuleList(nn.Embedding(n, 8) for n in rows)
        self.deep = nn.Sequential(nn.Linear(26 * 8 + 13, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids, numbers):
        rows = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.deep(torch.cat([*rows, numbers], 1)).squeeze(1)


@pytest.mark.slow
def test_a_job_scores_real_raw_rows_as_the_module_does(criteo_tsv, tmp_path, ray_session):
    convert(ConvertOptions(dataset="criteo", inputs=(criteo_tsv,), output=tmp_path / "rows"))
    table = pq.read_table(tmp_path / "rows")
    schema, vocabularies = fit_schema(criteo_schema("dense", "vocabulary", min_count=2), [table])
    module = Criteo([f.rows for f in schema.fields]).eval()
    examples = (torch.zeros(2, 26, dtype=torch.int64), torch.zeros(2, 13))
    columns = {"ids": [f.name for f in schema.fields], "numbers": [d.name for d in schema.dense]}
    encoding = Encoding(schema, vocabularies)
    dpi.from_torch(module, examples, columns, encoding=encoding, path=tmp_path / "bundle")

    scores = scored(tmp_path, tmp_path / "rows", "row_id", ray_session)
    encoded = Encoder(schema, vocabularies).encode(table)
    ids, dense = np.stack(encoded.ids, 1), np.stack(encoded.dense, 1)
    with torch.no_grad():
        logits = module(torch.from_numpy(ids).long(), torch.from_numpy(dense))
    np.testing.assert_allclose(scores, logits.sigmoid().numpy(), rtol=1e-5, atol=1e-6)


@pytest.fixture
def feature_map(tmp_path) -> Path:
    """FuxiCTR's files for `Clicks`: values i1, i2, ... of items and of the clicks on them."""
    vocabulary = {"__PAD__": 0, **{f"i{n}": n for n in range(1, ITEMS - 1)}, "__OOV__": ITEMS - 1}
    rows = {"source": "", "vocab_size": ITEMS, "padding_idx": 0}
    features = [
        {"price": {"source": "", "type": "numeric"}},
        {"item": {"type": "categorical", **rows}},
        {"shop": {"type": "categorical", **rows}},
        {"clicks": {"type": "sequence", "max_len": LENGTH, "share_embedding": "item", **rows}},
    ]
    whole = {"dataset_id": "shop", "labels": ["label"], "features": features}
    (tmp_path / "feature_map.json").write_text(json.dumps(whole))
    words = dict.fromkeys(("item", "shop", "clicks"), vocabulary)
    (tmp_path / "feature_vocab.json").write_text(json.dumps(words))
    return tmp_path


def test_raw_rows_are_encoded_by_fuxictr_s_vocabularies(exported, feature_map):
    options = ImportOptions(
        feature_map=feature_map / "feature_map.json",
        feature_vocab=feature_map / "feature_vocab.json",
    )
    bundle = import_model(exported / "clicks.pt2", feature_map / "bundle", options)
    assert [f.name for f in bundle.schema.features] == ["price", "item", "clicks"]  # no shop
    rows = pa.table(
        {
            "item": ["i1", "i7", "never"],
            "clicks": ["i3^i1", None, "i1^i2^i3^i4^i5"],
            "price": [0.5, 0.25, 1.0],
        }
    )
    encoded = Encoder(bundle.schema, bundle.vocabularies).encode(rows)
    logits = dpi.load_engine(bundle, device="cpu").logits(encoded.ids, encoded.dense)
    given = {
        "item": torch.tensor([1, 7, ITEMS - 1]),
        "clicks": torch.tensor([[3, 1, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]]),
        "price": torch.tensor([0.5, 0.25, 1.0]),
    }
    with torch.no_grad():
        expected = Clicks().eval()(given)["y_pred"].flatten().logit().numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
    assert bundle.spec.fields[0].oov_row == ITEMS - 1


def test_a_feature_map_of_another_training_is_refused(exported, feature_map):
    for name in ("feature_map.json", "feature_vocab.json"):
        file = feature_map / name
        file.write_text(file.read_text().replace(f": {ITEMS}", f": {ITEMS + 1}"))
    options = ImportOptions(
        feature_map=feature_map / "feature_map.json",
        feature_vocab=feature_map / "feature_vocab.json",
    )
    with pytest.raises(ConfigError, match="field item has 24 rows, the model's table 23"):
        import_model(exported / "clicks.pt2", feature_map / "bundle", options)


class TwoTasks(Clicks):
    """A click, and a conversion of the same features."""

    def forward(self, inputs):
        sums = self.items(inputs["item"]).sum(1) - self.items(inputs["clicks"]).sum((1, 2))
        return {**super().forward(inputs), "bought": (sums + inputs["price"]).sigmoid()}


def test_a_module_of_two_outputs_is_imported_as_two_tasks(exported, tmp_path):
    module, given = TwoTasks().eval(), samples(19)
    batch = {name: {0: torch.export.Dim("batch", min=1, max=2**20)} for name in given}
    program = torch.export.export(module, (given,), dynamic_shapes=(batch,))
    torch.export.save(program, tmp_path / "clicks.pt2")
    done = imported(
        tmp_path, "-o", str(tmp_path / "bundle"), "--columns", str(exported / "columns.yaml"),
        "--output", "y_pred", "--task", "cvr=bought",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "CPU, fp32 of cvr, output bought: a probability" in done.output
    report = dpi.open_bundle(tmp_path / "bundle").report()
    assert report["tasks"]["cvr"]["differences"]["CPU, fp32"]["largest"] < 1e-5
    wrong = imported(tmp_path, "-o", str(tmp_path / "wrong"), "--task", "cvr")
    assert wrong.exit_code == 2 and "'cvr' is not NAME=OUTPUT" in wrong.output
