"""Configurations that are made to be slow, or to break the parser: one line, at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pipeline.config import strict_yaml
from pipeline.config.job import load_config
from pipeline.config.strict_yaml import LONG, dump_yaml, load_yaml
from pipeline.errors import ConfigError

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 30))
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 30)
)
HOSTILE = {
    "digits": (
        "unit_rows: " + "7" * 5000,
        "number of 5,000 characters (line 1, column 12)",
    ),
    "brackets": ("input: " + "[" * 20000, "more than 20 levels of nesting (line 1, column 27)"),
    "braces": ("input: " + "{a: " * 20000, "more than 20 levels of nesting"),
    "blocks": ("\n".join(" " * i + "a:" for i in range(3000)), "more than 20 levels"),
    "bomb": (f"{BOMB}input: *a29", "aliases make it more than 1,000,000 values"),
    "merges": (f"{MERGES}input: *a29", "aliases make it more than 1,000,000 values"),
    "itself": ("input: &a [*a, *a]", "aliases make it more than 1,000,000 values"),
    "broken": ("bundle: b\ninput: [", "expected the node content, but found"),
    "quote": ("bundle: b\ninput: 'x", "(line 2, column 10)"),
    "null": ("a: b\nbundle: \0", "the character 0x0 is not allowed (line 2, column 9)"),
    "no integer": ("a: b\nb: !!int ''", "'' is no int (line 2, column 4)"),
    "no bool": ("a: !!bool foo", "'foo' is no bool (line 1, column 4)"),
    "no time": ("a: !!timestamp foo", "'foo' is no timestamp (line 1, column 4)"),
    "no float": ("a: !!float foo", "'foo' is no float (line 1, column 4)"),
    "no UTF-8": (b"a: b\nb: \xff", "it is not UTF-8 (line 2, byte 4)"),
    "twice": ("a: b\nc: d\na: b", "key 'a' is given twice (line 3, column 1)"),
    "list as key": ("a: b\n? [a]\n: b", "a key is a list, not a text (line 2, column 3)"),
}


@pytest.mark.parametrize("long", [LONG, 0])  # 0: by libyaml
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, long: int
) -> None:
    text, told = HOSTILE[name]
    monkeypatch.setattr(strict_yaml, "LONG", long)
    (tmp_path / "job.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "job.yaml")
    assert time.process_time() - began < 2
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'job.yaml'} is not valid YAML: ")
    assert told in message and "\n" not in message and len(message) < 500


def test_long_values_are_not_repeated_in_full(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"device: {'x' * 100_000}")
    with pytest.raises(ConfigError, match="must be one of") as caught:
        load_config(tmp_path / "job.yaml")
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("input=*.parquet", "*.parquet"),
        ("input=&x/%y: {z}", "&x/%y: {z}"),
        ("input=[a, b]", ["a", "b"]),
        ("input='*.parquet'", "*.parquet"),
        ("output=2026", "2026"),
        ("bundle= b ", "b"),
    ],
)
def test_paths_of_the_command_line_are_texts(tmp_path: Path, override: str, value: object) -> None:
    (tmp_path / "job.yaml").write_text("{bundle: b, input: i, output: o}")
    config = load_config(tmp_path / "job.yaml", [override])
    assert getattr(config, override.partition("=")[0]) == value


def test_a_long_file_means_what_a_short_one_does() -> None:
    text = "a: [1e6, 0o7, 0x1f, 1_000, 2026-11-20, yes, ~, 'it''s', \"\\u00e9\", a:b, x#y]\n"
    text += "b: &b {c: 1, d: 'é'}\ne:\n  <<: *b\n  f: |\n    two\n    lines\n"
    assert load_yaml(f"{text}#{'x' * LONG}") == load_yaml(text)
    data = {"input": [f"/rows/é {i}.parquet" for i in range(99)], "a": None, "b": {"c": "x: y"}}
    assert load_yaml(dump_yaml(data)) == data
