"""Damages bundles, configurations and text files: each is read, or refused by an error that says
what is wrong with it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import model_zoo
import numpy as np
from fuzzing import changed, main

from dpiframe_core import BundleError, open_bundle, save_bundle
from dpiframe_core.model.builtin import Deep, Features, dcn
from pipeline.config.job import load_config
from pipeline.data.convert import ConvertOptions, convert
from pipeline.data.parquet_layouts import raw_schema
from pipeline.errors import ConfigError, ContractError

YAML = """\
# a job
bundle: &b models/ctr
input: ['day=*/part-?.parquet', "x y"]
output: /tmp/scores
key_columns: [row_id, *b]
unit_rows: 1_000_000
device: cpu
max_batch: 65536   # rows
carry_columns: [a, b]
on_bad_row: >-
  reject
mlflow_uri: |
  http://host:5000
"""
VALUES = ["-", "0", "9" * 30, "1e999", "null", "[]", "{}", '""', "NaN", "true", "[" * 9999]


def input_cases(folder: Path) -> Callable[[Path, np.random.Generator], None]:
    """What writes a bundle (a folder), a YAML file, or text files of Criteo and Avazu."""
    spec = dcn(Features(model_zoo.fields(10), ["I1"], "raw"), Deep((8,), batch_norm=True))
    weights = model_zoo.random_model(spec).state_dict()
    criteo = "\t".join(["0", *"12345678", "-1", "", "20", "300", "2147483647", *["68fd1e64"] * 26])
    avazu = "184467440737,1,14102100,1005,0," + "1fbe01fe," * 9 + "1,0,15704,320,50,1722,0,35,-1,79"
    header = ",".join(raw_schema("avazu").names)

    def write(path: Path, random: np.random.Generator) -> None:
        kind = random.integers(0, 4)
        if kind == 0:
            save_bundle(path, spec, weights)
            _damage_bundle(path, random)
        elif kind == 1:
            path.write_bytes(b"yaml\n" + changed(YAML.encode(), random, 8))
        elif kind == 2:
            lines = [criteo] * int(random.integers(1, 60))
            path.write_bytes(b"criteo\n" + changed("\n".join(lines).encode(), random, 2))
        else:
            lines = [header] + [avazu] * int(random.integers(1, 60))
            path.write_bytes(b"avazu\n" + changed("\n".join(lines).encode(), random, 2))

    return write


def _damage_bundle(path: Path, random: np.random.Generator) -> None:
    """Changes one file; most often the manifest agrees with it, so that it is read."""
    names = ["MANIFEST.json", "model.json", "weights.safetensors"]
    name = names[random.integers(0, 3)]
    file = path / name
    data = file.read_bytes()
    if name != "weights.safetensors" and random.random() < 0.5:
        data = _other_value(data, random)
    else:
        data = changed(data, random)
    file.unlink()
    file.write_bytes(data)
    if name == "MANIFEST.json" or random.random() < 0.1:
        return
    manifest = path / "MANIFEST.json"
    found = json.loads(manifest.read_text())
    found["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    manifest.write_text(json.dumps(found))


def _other_value(data: bytes, random: np.random.Generator) -> bytes:
    """JSON where one value is another one."""
    parts = data.decode().split(":")
    at = int(random.integers(1, len(parts)))
    _, comma, rest = parts[at].partition(",")
    other = VALUES[random.integers(0, len(VALUES))]
    parts[at] = f" {other}{comma}{rest}"
    return ":".join(parts).encode()


def attempt(path: Path) -> list[str]:
    if path.is_dir():
        return [f"bundle: {_bundle(path)}"]
    kind, _, data = path.read_bytes().partition(b"\n")
    if kind == b"yaml":
        return [f"yaml: {_yaml(path, data)}"]
    return [f"{kind.decode()}: {_text(path, kind.decode(), data)}"]


def _bundle(path: Path) -> str:
    try:
        open_bundle(path).arrays()
    except BundleError:
        return "refused"
    return "read"


def _yaml(path: Path, data: bytes) -> str:
    file = path.with_suffix(".yaml")
    file.write_bytes(data)
    try:
        load_config(file)
    except ConfigError as error:
        return "no YAML" if "is not valid YAML" in str(error) else "refused"
    finally:
        file.unlink()
    return "read"


def _text(path: Path, dataset: str, data: bytes) -> str:
    file, output = path.with_suffix(".txt"), path.with_suffix(".out")
    file.write_bytes(data)
    try:
        convert(
            ConvertOptions.model_validate(
                {"dataset": dataset, "inputs": [file], "output": output, "block_bytes": 1024}
            )
        )
    except (ConfigError, ContractError):
        return "refused"
    finally:
        file.unlink()
        shutil.rmtree(output, ignore_errors=True)
    return "read"


if __name__ == "__main__":
    main(attempt, input_cases, __doc__)
