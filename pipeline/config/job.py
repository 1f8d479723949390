"""JobConfig: everything a user can say about a job, in one flat YAML file.

A key that does not exist, a value out of range or a key given twice is an error, never ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from pipeline.config.dates import DATED_KEYS, asks_for, with_dates
from pipeline.config.segments import Segments
from pipeline.config.strict_yaml import dump_yaml, load_yaml
from pipeline.config.types import (
    AutoBatch,
    AutoBytes,
    AutoCount,
    AutoRows,
    AutoScorers,
    AutoSeconds,
    Between,
    BundleLocation,
    Column,
    Duration,
    Flag,
    Location,
    ModelName,
    Paths,
    Table,
    TimeZone,
    WaitFor,
    Where,
    Whole,
    secret_address,
)
from pipeline.errors import ConfigError
from pipeline.lakehouse.addresses import is_table, parse_table
from pipeline.redaction import HIDDEN, redacted, redacted_data
from pipeline.storage.address import check_address, is_registered, is_remote

SCORE_COLUMN = "score"
# Keys whose override is taken as it stands, unless it begins as a YAML list or a quoted text does.
PATH_KEYS = ("bundle", "input", "output")
_RENAMED = {"iceberg_table": "table"}  # keys that were -> that are
_YAML_TEXT = ("[", "'", '"', "")


def score_column(name: str) -> str:
    """The column of the scores of one of `bundles`, or of another task."""
    return f"{SCORE_COLUMN}_{name}"


def embedding_column(name: str) -> str:
    """The column of one of `outputs` that is an embedding."""
    return f"embedding_{name}"


def beside(bundles: Iterable[str], segments: Mapping[str, str]) -> list[str]:
    """The names of `bundles` that are none of a segment, by value, and so have a column."""
    return [name for name in bundles if name not in segments.values()]


class JobConfig(BaseModel):
    """One scoring job. Paths are relative to the directory in which the command runs, not to the
    configuration's; `~` is the home folder; `s3://bucket/key` is an address in an object store.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    bundle: BundleLocation = Field(
        description="folder of the model bundle, its address in an object store, or its name in "
        "MLflow's registry: models:/NAME@alias, models:/NAME/version"
    )
    bundles: dict[ModelName, BundleLocation] = Field(
        default={},
        description="more bundles that score the same rows, in the same read: name -> where it is, "
        "as for `bundle`; the scores of each are a column `score_NAME` beside `score`",
    )
    segments: Segments | None = Field(
        default=None,
        description="a bundle for each segment: `{column: C, bundles: {VALUE: NAME}}`; `score` of "
        "rows with that value in C is that of NAME among `bundles`, which has no column of its own "
        "then, of other rows that of `bundle`; C is carried, too",
    )
    outputs: dict[ModelName, Annotated[str, Field(min_length=1)]] = Field(
        default={},
        description="more outputs of `bundle`: name -> module of its model; one number a row is "
        "the logit of another task, scored into a column `score_NAME`; more are an embedding, a "
        "list in a column `embedding_NAME`",
    )
    input: Paths = Field(
        description="parquet file, folder (searched in depth) or glob, or a list of these; paths, "
        "or addresses in object stores; a file that is listed twice is scored twice"
    )
    output: Location = Field(
        description="folder or address for the scores; one job at a time writes it"
    )
    where: Where | None = Field(
        default=None,
        description="conditions on partition columns, which choose among the input's files: "
        "date >= 2026-11-01 and hour in (5, 6)",
    )
    partition_base: Location | None = Field(
        default=None,
        description="folder above the input, below which folder names such as date=2026-11-19 are "
        "partition columns; default: each entry of the input itself",
    )
    partition_by: list[Column] = Field(
        default=[],
        description="partition columns of the input; each of their values gets an output of its "
        "own, complete in a folder such as date=2026-11-19/hour=5 below `output`",
    )
    date: str | None = Field(
        default=None,
        description="day or hour that the job is for, which `{date}` and `{hour}` in other keys "
        "stand for; `--date` says it",
    )
    time_zone: TimeZone = Field(default="UTC", description="whose days and hours `date` means")
    wait_for: WaitFor | None = Field(
        default=None,
        description="success: wait until every input file has a _SUCCESS beside or above it; "
        "quiet 10m: until no input file changed for so long",
    )
    deadline: Duration = Field(
        default="1h", description="how long `wait_for` waits before the job gives up"
    )
    min_rows: Annotated[Whole, AfterValidator(Between(0, 10**15))] = Field(
        default=1,
        description="an input of fewer rows is refused; with 0 an input of no rows makes an "
        "output of no rows",
    )
    table: Table | None = Field(
        default=None,
        description="table, iceberg://catalog/namespace.table or delta:folder, that the published "
        "parts become files of, in one commit; they lie in a folder of the job's own below output",
    )
    form: Literal["auto", "raw", "encoded"] = Field(
        default="auto",
        description="raw: as published, encoded by the bundle's schema; encoded: columns hold "
        "ids; auto: looks at the files",
    )
    key_columns: list[Column] = Field(
        default=[],
        description="columns copied beside each score, null only in a rejected row; "
        "default: the schema's",
    )
    carry_columns: list[Column] = Field(
        default=[],
        description="more columns to copy beside each score, nulls allowed, such as a label",
    )
    label_column: Column | None = Field(
        default=None,
        description="column of the label (0, 1, null): the finished scores are evaluated against "
        "it; it is carried, too",
    )
    slice_columns: list[Column] = Field(
        default=[],
        description="columns by whose values the scores are evaluated apart; carried, too",
    )
    group_column: Column | None = Field(
        default=None,
        description="column, such as a user, by whose values the AUC by group is taken; carried, "
        "too",
    )
    output_labels: dict[ModelName, Column] = Field(
        default={},
        description="label columns of more tasks: name of one of `outputs` or `bundles` -> column "
        "of 0, 1, null that its scores are evaluated against; carried, too",
    )
    field_columns: dict[str, Column] = Field(
        default={},
        description="encoded form: field, dense feature or list -> its column, where names differ",
    )
    unit_rows: AutoRows = Field(
        default="auto",
        description="rows scored and published as one file, cut at row groups, joined of small "
        "files; auto: by the input alone, so that any machine goes on where another stopped",
    )
    on_bad_row: Literal["fail", "reject"] = Field(
        default="fail",
        description="a row that breaks the contract stops the job, or has a null score and is "
        "listed in _rejected",
    )
    max_rejected_fraction: Annotated[float, AfterValidator(Between(0, 1))] = Field(
        default=0.01, description="fraction of the rows that may be rejected before the job fails"
    )
    on_bad_id: Literal["bad_row", "oov"] = Field(
        default="bad_row",
        description="an id outside its table makes a bad row, or is scored as the declared "
        "out-of-vocabulary row of that table",
    )
    check_keys: Literal["off", "count", "fail"] = Field(
        default="off",
        description="duplicate keys among all rows are not looked for, are counted when the job "
        "ends, or fail it then",
    )
    on_corrupt_file: Literal["fail", "quarantine"] = Field(
        default="fail", description="a file that is not whole parquet stops the job, or is left out"
    )
    overwrite: Flag = Field(
        default=False, description="replace what another job identity left in the output folder"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where models run")
    precision: Literal["fp32", "tf32", "fp16", "bf16"] = Field(
        default="fp32",
        description="arithmetic of the model on a GPU, bf16 in fp16 where that holds all numbers; "
        "the CPU computes in float32",
    )
    max_batch: AutoBatch = Field(
        default="auto",
        description="rows in one call of the engine; auto: 65536, or what the GPU's memory leaves",
    )
    streams: Annotated[Whole, AfterValidator(Between(1, 64))] = Field(
        default=4, description="CUDA streams an engine"
    )
    graphs: Flag = Field(default=True, description="replay captured CUDA graphs")
    threads: AutoCount = Field(
        default="auto", description="CPU threads a scorer; auto: by its share of the cores"
    )
    runner: Literal["auto", "ray", "local"] = Field(
        default="auto",
        description="where scorers run: on Ray, or one in the job's own process, which starts in a "
        "second and has no use for Ray's keys; auto: local on a machine with one GPU, unless Ray "
        "runs there or one of its keys is set",
    )
    ray_address: str | None = Field(
        default=None,
        description="Ray cluster to attach to; default: the running one, else a local one",
    )
    num_scorers: AutoScorers = Field(
        default="auto",
        description="scorer actors; auto: one a GPU, or one for 8 cores where there is none",
    )
    read_in: Literal["auto", "scorer", "tasks"] = Field(
        default="auto",
        description="where units are read: by threads of the scorers, or by tasks on any CPU of "
        "the cluster; auto: tasks where machines without a GPU can help",
    )
    max_tasks_in_flight: AutoCount = Field(
        default="auto",
        description="calls queued or running at one scorer; auto: enough that it never waits",
    )
    max_read_tasks: AutoCount = Field(
        default="auto",
        description="units read at one time; auto: by the cores, fewer when memory is short",
    )
    object_store_bytes: AutoBytes = Field(
        default="auto",
        description="object store of a local Ray; auto: what units read, waiting and scored need",
    )
    tracking: Flag = Field(default=True, description="record the job in MLflow")
    mlflow_uri: str | None = Field(
        default=None, description="MLflow tracking server; default: sqlite:///mlflow.db"
    )
    tracking_wait: AutoSeconds = Field(
        default="auto",
        description="seconds that the end of a job waits for MLflow; auto: 20, with runner local "
        "0, as its sender goes on alone",
    )
    experiment: str = Field(default="dpiframe", min_length=1, description="MLflow experiment")
    run_name: str | None = Field(
        default=None, description="name of the MLflow run; default: bundle, date and rows"
    )
    baseline_run: str | None = Field(
        default=None, description="id of the MLflow run whose scores the drift is measured against"
    )
    price_per_hour: Annotated[float, AfterValidator(Between(0, 1e6))] | None = Field(
        default=None,
        description="price of one GPU (one machine without GPUs) an hour, for the cost",
    )
    notify_command: str | None = Field(
        default=None,
        description="command that gets the JSON summary on standard input when the job has ended",
    )
    notify_webhook: Annotated[str, AfterValidator(secret_address)] | None = Field(
        default=None,
        description="http or https address that gets the JSON summary by POST; a secret, which is "
        "stored and shown nowhere",
    )

    @model_validator(mode="before")
    @classmethod
    def _dates_are_filled_in(cls, data: Any) -> Any:
        return with_dates(data) if isinstance(data, dict) else data

    @model_validator(mode="before")
    @classmethod
    def _carry_what_is_evaluated(cls, data: Any) -> Any:
        """The label, slices, group and the column of segments are carried columns, whether or not
        they are named there.
        """
        if not isinstance(data, dict):
            return data
        slices = data.get("slice_columns", [])
        wanted = [data.get("label_column"), *(slices if isinstance(slices, list) else [])]
        wanted.append(data.get("group_column"))
        labels = data.get("output_labels", {})
        wanted += labels.values() if isinstance(labels, dict) else []
        segments = data.get("segments")
        wanted.append(segments.get("column") if isinstance(segments, dict) else None)
        keys, carried = data.get("key_columns", []), data.get("carry_columns", [])
        if not isinstance(keys, list) or not isinstance(carried, list):
            return data  # refused below
        names = dict.fromkeys(name for name in wanted if isinstance(name, str) and name)
        more = [name for name in names if name not in keys and name not in carried]
        return {**data, "carry_columns": [*carried, *more]} if more else data

    @model_validator(mode="after")
    def _evaluation_has_a_label(self) -> Self:
        if self.label_column is None and (
            self.slice_columns or self.group_column or self.output_labels
        ):
            raise ValueError("slice_columns, group_column and output_labels need a label_column")
        for name in self.output_labels:
            if name not in self.outputs and name not in self.beside:
                raise ValueError(
                    f"output_labels names {name!r}, which is none of outputs, bundles (of those, "
                    "none that segments name)"
                )
        return self

    @model_validator(mode="after")
    def _segments_name_bundles(self) -> Self:
        for value, name in self.bundle_of.items():
            if name not in self.bundles:
                known = ", ".join(self.bundles) or "none"
                raise ValueError(
                    f"segments gives {value!r} to {name!r}, which is none of bundles ({known}); "
                    "add it there: NAME -> where it is"
                )
        return self

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> Self:
        copied = [*self.key_columns, *self.carry_columns]
        twice = sorted({name for name in copied if copied.count(name) > 1})
        if twice:
            raise ValueError(f"key_columns and carry_columns name {twice[0]!r} twice")
        if len(set(self.partition_by)) < len(self.partition_by):
            raise ValueError("partition_by names a column twice")
        if both := [name for name in self.outputs if name in self.bundles]:
            raise ValueError(f"bundles and outputs both name {both[0]!r}")
        made = [*map(score_column, self.outputs), *map(embedding_column, self.outputs)]
        made += [SCORE_COLUMN, *map(score_column, self.beside)]
        clash = [name for name in made if name in copied]
        if clash:
            raise ValueError(
                f"key_columns and carry_columns must not name {clash[0]!r}: "
                "the output has a column of that name; rename the input's column"
            )
        return self

    @property
    def bundle_of(self) -> dict[str, str]:
        """The name of the bundle of each value of the column of `segments`."""
        return {} if self.segments is None else self.segments.bundles

    @property
    def beside(self) -> list[str]:
        """The names of the `bundles` that have a column of their own: no segment's."""
        return beside(self.bundles, self.bundle_of)

    def public(self) -> dict[str, Any]:
        """All keys and values without secrets, fit to be stored and shown."""
        public: dict[str, Any] = redacted_data(self.model_dump(mode="json"))
        if self.notify_webhook is not None:
            public["notify_webhook"] = HIDDEN
        return public

    def with_absolute_paths(self) -> JobConfig:
        """The same job, whatever directory it is read from."""
        inputs = self.input if isinstance(self.input, list) else [self.input]
        update = {
            "bundle": _absolute(self.bundle),
            "bundles": {name: _absolute(where) for name, where in self.bundles.items()},
            "output": _absolute(self.output),
            "input": [_absolute(item) for item in inputs],
        }
        if self.partition_base is not None:
            update["partition_base"] = _absolute(self.partition_base)
        if self.table is not None:
            update["table"] = _absolute(self.table)
        return self.model_copy(update=update)


def load_config(
    source: str | Path | Mapping[str, Any] | JobConfig,
    overrides: Sequence[str] = (),
    date: str | None = None,
) -> JobConfig:
    """Read a YAML file (or take its keys) and then `key=value` overrides (values are YAML: a scalar
    or a list).

    `date` is the key of that name, which some placeholder must use then.

    Raises ConfigError that lists every problem, with the file or override it comes from.
    """
    data, origin = read_keys(source, overrides)
    path = _named(source)
    if date is not None:
        data["date"], origin["date"] = date, "--date"
    try:
        if date is not None:
            _check_date_is_used(data)
        return JobConfig.model_validate(data)
    except ValidationError as error:
        problems = [_problem(detail, origin, path) for detail in error.errors()]
    except ValueError as error:
        problems = [str(error)]
    lines = "".join(f"\n  - {problem:.1000}" for problem in problems)
    raise ConfigError(redacted(f"the job's configuration is not valid:{lines}"))


def read_keys(
    source: str | Path | Mapping[str, Any] | JobConfig, overrides: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """The keys of a configuration as they are written, and where each comes from. ConfigError where
    there are none to read; the values are not looked at.
    """
    path = _named(source)
    if isinstance(source, JobConfig):
        data = source.model_dump(exclude_unset=True)
    else:
        data = dict(source) if isinstance(source, Mapping) else _read_yaml(Path(source))
    origin = dict.fromkeys(data, path)
    for override in overrides:
        key, value = _parse_override(override)
        data[key] = value
        origin[key] = f"override {override!r}"
    return data, origin


def _named(source: object) -> str:
    return str(source) if isinstance(source, str | Path) else "the given keys"


def _check_date_is_used(data: dict[str, Any]) -> None:
    """ValueError when days or hours would share one output, as no placeholder tells them apart."""
    needed, date = asks_for(data), data["date"]
    if needed is None:
        keys = ", ".join(DATED_KEYS)
        raise ValueError(
            f"--date {date} is given, but no key ({keys}) holds a placeholder such as {{date}}, so "
            "every date would be the same job"
        )
    if needed == "date" and ("T" in date or date == "last-hour"):
        raise ValueError(
            f"--date {date} names an hour, but no placeholder such as {{hour}} uses it, so every "
            "hour of a day would be the same job"
        )


def resolved_yaml(config: JobConfig) -> str:
    """The whole configuration as YAML, defaults included, paths absolute."""
    data = config.with_absolute_paths().public()
    return dump_yaml(data)


def _absolute(path: str) -> str:
    """Make a path absolute; symbolic links in it stay, as they may be moved on purpose."""
    if is_table(path):
        return str(parse_table(path))
    if is_remote(path):
        return check_address(path)
    if is_registered(path):
        return path
    if path.startswith("/") and os.path.normpath(path) == path:  # the quick way, of many files
        return path
    return str(Path(path).expanduser().absolute())


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"cannot read the job's configuration {path}: {reason}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        where = f"(line {line}, byte {column})"
        raise ConfigError(f"{path} is not valid YAML: it is not UTF-8 {where}") from None
    except ValueError as error:
        raise ConfigError(redacted(f"{path} is not valid YAML: {error}")) from None
    if not isinstance(data, dict):
        found = "nothing" if data is None else type(data).__name__
        raise ConfigError(f"{path} must hold `key: value` lines, but holds {found}")
    return {str(key): value for key, value in data.items()}


def _parse_override(override: str) -> tuple[str, Any]:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"an override must look like key=value, got {override!r}")
    key, value = key.strip(), value.strip()
    if key in PATH_KEYS and value[:1] not in _YAML_TEXT:
        return key, value  # a pattern such as *.parquet would be an alias
    try:
        return key, load_yaml(value)
    except ValueError as error:
        text = f"the value of override {override:.200} is not YAML: {error}"
        raise ConfigError(redacted(text)) from None


def _problem(detail: ErrorDetails, origin: dict[str, str], path: str) -> str:
    if not detail["loc"]:  # a rule about several keys
        return f"{_text(detail)} ({path})"
    key, *inner = (str(part) for part in detail["loc"])
    where = origin.get(key, path)
    if detail["type"] == "extra_forbidden" and not inner:
        plain = key.replace("-", "_").lower()
        close = get_close_matches(_RENAMED.get(plain, plain), JobConfig.model_fields, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known_keys())
        return f"unknown key {key!r} in {where}; {hint}"
    if detail["type"] == "missing":
        return f"{key!r} is missing in {where}: {JobConfig.model_fields[key].description}"
    return f"{'.'.join([key, *inner])} {_text(detail)} ({where})"


def _text(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if detail["type"] == "value_error":  # raised above: it holds the value already
        return str(context["error"])
    if detail["type"] == "literal_error":
        return f"must be one of {context['expected']}, got {detail['input']!r}"
    message = detail["msg"].replace("Input should be", "must be")
    return f"{message[:1].lower()}{message[1:]}, got {detail['input']!r}"


def known_keys() -> list[str]:
    """Names of all keys, in the order of the documentation."""
    return list(JobConfig.model_fields)
