"""The key `segments`: what it takes for a value, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.job import JobConfig, load_config
from pipeline.errors import ConfigError

KEYS: dict[str, Any] = {
    "bundle": "b",
    "input": "x",
    "output": "o",
    "bundles": {"de": "d", "x": "y"},
}


def config_of(bundles: Any, **keys: Any) -> JobConfig:
    return load_config({**KEYS, "segments": {"column": "country", "bundles": bundles}, **keys})


def test_the_column_is_carried_once() -> None:
    assert config_of({"DE": "de"}).carry_columns == ["country"]
    assert config_of({"DE": "de"}, key_columns=["country"]).carry_columns == []
    assert load_config(config_of({"DE": "de"})) == config_of({"DE": "de"})


def test_whole_numbers_are_taken_as_written() -> None:
    config = config_of({1: "de", -3: "de"})
    assert config.bundle_of == {"1": "de", "-3": "de"}
    assert config.beside == ["x"]
    assert load_config(KEYS, ["segments={column: c, bundles: {7: x}}"]).bundle_of == {"7": "x"}


@pytest.mark.parametrize(
    ("segments", "told"),
    [
        ("{column: c, bundles: {DE: nl}}", "'DE' to 'nl', which is none of bundles (de, x); add"),
        ("{column: c, bundles: {NO: de}}", "got False; YAML takes NO"),
        ("{column: c, bundles: {1.5: de}}", "got 1.5"),
        ("{column: c, bundles: {1: de, '1': x}}", "a value twice"),
        ("{column: c, bundles: {}}", "segments.bundles"),
        ("{column: c, bundles: de}", "segments.bundles"),
        ("{columns: c, bundles: {DE: de}}", "segments.column"),
        ("{column: score, bundles: {DE: de}}", "must not name 'score'"),
    ],
)
def test_what_is_wrong_is_said(segments: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(KEYS, [f"segments={segments}"])
    assert told in str(error.value)


def test_a_bundle_of_a_segment_has_no_label_of_its_own() -> None:
    keys: dict[str, Any] = {"label_column": "y", "output_labels": {"de": "bought"}}
    with pytest.raises(ConfigError, match="of those, none that segments name"):
        config_of({"DE": "de"}, **keys)
