from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from pipeline.config.job import JobConfig, known_keys, load_config, resolved_yaml
from pipeline.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
SMALL = "bundle: b\ninput: x\noutput: o\n"


def load(folder: Path, text: str, *overrides: str) -> JobConfig:
    path = folder / "job.yaml"
    path.write_text(text)
    return load_config(path, overrides)


def failure(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_defaults_and_overrides(tmp_path: Path) -> None:
    config = load(tmp_path, SMALL, "unit_rows=19", "key_columns=[a, b]", "graphs=false", "threads=")
    assert (config.unit_rows, config.key_columns) == (19, ["a", "b"])
    assert not config.graphs
    assert (config.threads, config.max_batch) == ("auto", "auto")


def test_numbers_and_dates_are_read_as_people_mean_them(tmp_path: Path) -> None:
    lines = "unit_rows: 1e6\nprice_per_hour: 1e-3\nrun_name: 2026-11-20\nexperiment: 5\n"
    config = load(tmp_path, SMALL + lines)
    assert (config.unit_rows, config.price_per_hour) == (1_000_000, 0.001)
    assert (config.run_name, config.experiment) == ("2026-11-20", "5")


def test_a_config_does_not_change() -> None:
    config = JobConfig(bundle="b", input="x", output="o")
    with pytest.raises(ValidationError):
        config.unit_rows = 5


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("unit_row", "unit_rows"), ("key-columns", "key_columns"), ("Devize", "device")],
)
def test_a_misspelt_key_names_the_right_one_and_the_file(
    tmp_path: Path, wrong: str, right: str
) -> None:
    text = failure(tmp_path, f"{SMALL}{wrong}: 1\n")
    assert f"unknown key {wrong!r} in {tmp_path / 'job.yaml'}; did you mean {right!r}?" in text


def test_an_unknown_key_like_no_other_lists_all(tmp_path: Path) -> None:
    text = failure(tmp_path, SMALL, "zzz=1")
    assert "unknown key 'zzz' in override 'zzz=1'" in text
    assert all(key in text for key in known_keys())


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("unit_rows: 0", "unit_rows must be auto or from 1 to 1000000000, got 0"),
        ("unit_rows: 1.5", "unit_rows must be auto or a whole number, got 1.5"),
        ("max_batch: true", "max_batch must be auto or a whole number, got True"),
        ("streams: true", "streams must be a valid integer, got True"),
        ("threads: 2000", "threads must be auto or from 1 to 1024, got 2000"),
        ("max_rejected_fraction: 1.5", "max_rejected_fraction must be from 0 to 1, got 1.5"),
        ("max_rejected_fraction: .nan", "max_rejected_fraction must be from 0 to 1, got nan"),
        ("device: gpu", "device must be one of 'auto', 'cpu' or 'cuda', got 'gpu'"),
        ("overwrite: 1", "overwrite must be a valid boolean, got 1"),
        ("key_columns: a", "key_columns must be a valid list, got 'a'"),
        ("key_columns: ['']", "key_columns.0 a column name must not be empty"),
        ("field_columns: [C1]", "field_columns must be a valid dictionary"),
        ("key_columns: [a, a]", "name 'a' twice"),
        ("carry_columns: [score]", "must not name 'score'"),
    ],
)
def test_a_wrong_value_is_told_with_the_bounds(tmp_path: Path, line: str, told: str) -> None:
    assert told in failure(tmp_path, SMALL + line)


@pytest.mark.parametrize(
    ("override", "told"),
    [('output="a\\0b"', "a null character"), ("output=~nobody-at-all/x", "a home folder")],
)
def test_a_path_that_cannot_be_is_told(tmp_path: Path, override: str, told: str) -> None:
    assert told in failure(tmp_path, SMALL, override)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = failure(tmp_path, "input: []\nunit_rows: -1\nnope: 1\n", "output=hdfs://host/x")
    assert "'bundle' is missing" in text
    assert "input must be a path or address, or a list of these, got []" in text
    assert "unit_rows must be auto or from 1" in text
    assert "unknown key 'nope'" in text
    assert "got 'hdfs://host/x'; mount another store" in text


@pytest.mark.parametrize("item", ["hdfs://a/b", "https://a/*.parquet", "file:///a"])
def test_an_unknown_scheme_asks_for_a_mounted_path(tmp_path: Path, item: str) -> None:
    assert "give the mounted path" in failure(tmp_path, SMALL, f"input=[x, '{item}']")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SMALL + "bundle: c\n", "key 'bundle' is given twice (line 4, column 1)"),
        ("? [a]\n: 1\n", "a key is a list, not a text (line 1, column 3)"),
        ("b: &b {c: 1}\nd:\n  <<: *b\n", "unknown key 'd'"),
        ("bundle: [", "is not valid YAML"),
        ("- bundle", "must hold `key: value` lines, but holds list"),
        ("", "but holds nothing"),
    ],
)
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str, told: str) -> None:
    assert told in failure(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("override", ["unit_rows", "=3", "unit_rows=[1"])
def test_an_override_must_be_key_and_value(tmp_path: Path, override: str) -> None:
    assert override in failure(tmp_path, SMALL, override)


def test_the_resolved_configuration_reads_back_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = JobConfig(bundle="b", input=["x", "/y"], output="o", field_columns={"C1": "c"})
    text = resolved_yaml(config)
    assert load(tmp_path, text) == config.with_absolute_paths()
    assert yaml.safe_load(text)["input"] == [str(tmp_path / "x"), "/y"]


def test_every_key_is_documented() -> None:
    fields: dict[str, Any] = JobConfig.model_fields
    assert all(field.description for field in fields.values())


@pytest.mark.parametrize("name", ["criteo.yaml", "avazu.yaml"])
def test_the_example_configurations_are_valid(name: str) -> None:
    config = load_config(ROOT / "configs" / name)
    assert config.output.startswith("out/")


def test_addresses_stay_as_they_are(tmp_path: Path) -> None:
    config = load(tmp_path, "bundle: s3://b/m/\ninput: [gs://a/*.parquet, x]\noutput: o\n")
    absolute = config.with_absolute_paths()
    assert absolute.bundle == "s3://b/m"
    assert absolute.input == ["gs://a/*.parquet", str(Path("x").absolute())]
