"""The files of an output beside the scores (unit records, identity, manifest), and its layout.

A unit is published when its record exists: the record is written last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.config.job import SCORE_COLUMN, beside, embedding_column, score_column
from pipeline.errors import ConfigError, ErrorKind
from pipeline.planning.inputs import Quarantined
from pipeline.publishing.atomic import write_atomic

FORMAT = 1
EVALUATION = "_evaluation.json"  # of the finished scores against labels
TALLIES = "_evaluation-*.tally"  # what the scores come to, for each question asked of them
UNIT_NAME = r"u\d{6,}-[0-9a-f]{8}(?:[0-9a-f]{8})?"
UNITS, REJECTED = "_units", "_rejected"  # folders
STAMP_HALF = 8  # hex digits: of the generation; of the try
_PART_NAME = re.compile(rf"part-({UNIT_NAME})(?:-([0-9a-f]{{{2 * STAMP_HALF}}}))?\.parquet")
_RECORD_NAME = re.compile(rf"{UNITS}/({UNIT_NAME})\.json")

# The schema of `_rejected/part-*.parquet`.
REJECTED_SCHEMA = pa.schema(
    [
        ("unit", pa.string()),
        ("row", pa.int64()),  # position in the part file
        ("source_row", pa.int64()),  # position in the input file
        ("column", pa.string()),
        ("value", pa.string()),
        ("reason", pa.string()),
        ("path", pa.string()),  # of the input file; outputs of before lack it
    ]
)
# What decoded a unit's rows: a GPU, the project's own reader, pyarrow.
Reader = Literal["", "gpu", "cpu", "arrow"]
Record = TypeVar("Record", bound=BaseModel)


class ScoreSummary(BaseModel):
    """Range, sum and logit histogram of a unit's scores by another bundle."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    score_min: float | None
    score_max: float | None
    score_sum: float
    score_histogram: list[int]


class FileRows(NamedTuple):
    """A whole input file of a unit."""

    path: str
    row_groups: int
    rows: int


class UnitRecord(BaseModel):
    """One published unit: where its rows came from, its files, its statistics, its times.

    `rows` are those of `path` and, behind them, of the files of `more`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: str
    index: int
    path: str
    first_row_group: int
    stop_row_group: int
    more: list[FileRows] = []
    rows: int
    scored: int
    rejected: int
    part: str
    bytes: int
    sha256: str
    rejected_part: str | None = None
    rejected_sha256: str | None = None
    bad_ids: dict[str, int] = {}
    score_min: float | None = None
    score_max: float | None = None
    score_sum: float = 0.0
    score_histogram: list[int] = []
    others: dict[str, ScoreSummary] = {}  # of the scores by `bundles`, by name
    segments: dict[str, int] = {}  # rows with each value of `segments`
    started: float = 0.0
    read_by: Reader = ""
    read_s: float = 0.0
    encode_s: float = 0.0
    score_s: float = 0.0
    write_s: float = 0.0
    copy_in_s: float = 0.0
    unpack_s: float = 0.0
    copy_out_s: float = 0.0
    batch_s: list[float] = []
    scorer: str = ""
    device: str = ""
    reduced_batch: int | None = None  # rows a call, where GPU memory was too short for max_batch
    unpack_error: str = ""  # why a GPU that was to unpack the unit did not, where it is to blame

    @property
    def where(self) -> str:
        """Its files, for people."""
        return f"{self.path} and {len(self.more)} more" if self.more else self.path

    @property
    def files(self) -> list[tuple[str, int, int, int]]:
        """Path, first and stop row group, and rows, of each of its files."""
        rows = self.rows - sum(file.rows for file in self.more)
        first = (self.path, self.first_row_group, self.stop_row_group, rows)
        return [first, *((file.path, 0, file.row_groups, file.rows) for file in self.more)]


class UnitError(BaseModel):
    """Why a unit has no record; travels to the driver as data, never as an exception."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: str
    kind: ErrorKind
    message: str
    scorer: str = ""


Outcome = UnitRecord | UnitError


class IdentityFile(BaseModel):
    """`_identity.json`: which job owns the output, written before any unit is.

    `attempt` changes with every start of the job. Scorers publish only while it is theirs, so a
    worker that outlived its driver cannot write into the output of the next attempt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    identity: str
    attempt: str
    bundle_digest: str
    bundles: dict[str, str] = {}  # digests of the bundles beside it, by name
    config: dict[str, Any]
    units: int
    rows: int


class ManifestFile(BaseModel):
    """One input file as it was when the job was planned; `etag` is that of an object."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    size: int
    mtime_ns: int
    etag: str = ""
    rows: int
    row_groups: int


class Manifest(BaseModel):
    """`_manifest.json`: everything that readers of the scores need."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    identity: str
    bundle_digest: str
    bundles: dict[str, str] = {}  # digests of the bundles beside it, by name
    config: dict[str, Any]
    outputs: dict[str, int] = {}  # of `outputs`, the numbers a row by name
    key_columns: list[str]
    carry_columns: list[str]
    rows: int
    scored: int
    rejected: int
    units: list[UnitRecord]
    quarantined: list[Quarantined]
    files: list[ManifestFile]
    duplicate_keys: int | None = None  # rows beyond the first of each key; None: not counted
    attempt: str = ""  # in a store: of the job that published it

    @property
    def bundle_of(self) -> dict[str, str]:
        """The name of the bundle of each value of the column of `segments`."""
        return dict((self.config.get("segments") or {}).get("bundles", {}))

    @property
    def segment_rows(self) -> dict[str, int]:
        """The rows with each value of `segments`, rejected ones too; others are the bundle's."""
        counts = dict.fromkeys(self.bundle_of, 0)
        for unit in self.units:
            for value, rows in unit.segments.items():
                counts[value] += rows
        return counts

    @property
    def beside(self) -> list[str]:
        """The names of the `bundles` that have a column of their own."""
        return beside(self.bundles, self.bundle_of)

    @property
    def score_columns(self) -> list[str]:
        """The columns of scores: of `bundle`, of those beside it, of other tasks."""
        tasks = [name for name, width in self.outputs.items() if width == 1]
        return [SCORE_COLUMN, *map(score_column, (*self.beside, *tasks))]

    @property
    def made_columns(self) -> list[str]:
        """All columns that models made, in the order of the parts."""
        named = [
            score_column(n) if w == 1 else embedding_column(n) for n, w in self.outputs.items()
        ]
        return [SCORE_COLUMN, *map(score_column, self.beside), *named]


class Success(BaseModel):
    """`_SUCCESS`: the manifest is complete. In a store it names the attempt that made it so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str
    rows: int
    attempt: str = ""


class OutputLayout:
    """The names inside an output folder."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.units = self.root / UNITS
        self.rejected = self.root / REJECTED
        self.tracking = self.root / "_tracking"
        self.identity = self.root / "_identity.json"
        self.config = self.root / "_config.yaml"
        self.manifest = self.root / "_manifest.json"
        self.success = self.root / "_SUCCESS"
        self.evaluation = self.root / EVALUATION

    def part(self, unit: str) -> Path:
        """The scores of a unit."""
        return self.root / part_name(unit)

    def rejected_part(self, unit: str) -> Path:
        """The rejected rows of a unit; exists only if it has any."""
        return self.rejected / part_name(unit)

    def record(self, unit: str) -> Path:
        """The record of a unit; its appearance publishes the unit."""
        return self.units / f"{unit}.json"

    def parts(self) -> list[Path]:
        """Part files with names that a job gives, in order."""
        return sorted(p for p in self.root.glob("part-*.parquet") if is_part_name(p.name))


def foreign_parts(names: Iterable[str]) -> list[str]:
    """Parquet files at the top that a reader would mistake for scores: no job gives such names."""
    tops = (name for name in names if "/" not in name and name.endswith(".parquet"))
    return sorted(name for name in tops if not is_part_name(name))


def scores_among(names: Iterable[str]) -> bool:
    """Whether a job published anything: a part, a manifest, `_SUCCESS`, a record."""
    return any(
        name in ("_SUCCESS", "_manifest.json") or name.startswith("_units/u") or is_part_name(name)
        for name in names
    )


def tally_name(question: str) -> str:
    """The file of what the scores come to for the question of this digest."""
    return TALLIES.replace("*", question)


def part_name(unit: str, stamp: str = "") -> str:
    """File name of a unit's scores and of its rejected rows; in stores with a stamp of the try."""
    return f"part-{unit}-{stamp}.parquet" if stamp else f"part-{unit}.parquet"


def is_part_name(name: str) -> bool:
    """Whether a job gives such a name to a part."""
    return unit_of_part(name) is not None


def unit_of_part(name: str) -> str | None:
    """The unit of a part, by the part's name; None: no job gives such a name."""
    found = _PART_NAME.fullmatch(name)
    return found[1] if found else None


def stamp_of_part(name: str) -> str | None:
    """What tells the parts of one unit in a store apart."""
    found = _PART_NAME.fullmatch(name)
    return found[2] if found else None


def record_name(unit: str) -> str:
    """The name of a unit's record; its appearance publishes the unit."""
    return f"{UNITS}/{unit}.json"


def recorded_unit(name: str) -> str | None:
    """The unit whose record has this name."""
    found = _RECORD_NAME.fullmatch(name)
    return found[1] if found else None


def write_json(path: Path, record: BaseModel, check: Callable[[], None] = lambda: None) -> None:
    """Write one record atomically; `check` may forbid it right before the rename."""
    write_atomic(path, (record.model_dump_json() + "\n").encode(), check)


def read_json(path: Path, kind: type[Record]) -> Record | None:
    """Read one record; None if the file is not there, ConfigError if it is not such a record."""
    try:
        return parse_json(str(path), path.read_bytes(), kind)
    except FileNotFoundError:
        return None


def parse_json(where: str, data: bytes, kind: type[Record]) -> Record:
    """The record in the bytes of a file; ConfigError that names the file: it is not such a one."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "content"
        raise ConfigError(
            f"{where} is not a file that this version wrote ({place}: {first['msg']}); "
            "choose another output, or remove the file after a look at it"
        ) from None


def manifest_of(layout: OutputLayout, identity: str) -> Manifest | None:
    """The manifest if it is this job's; `_SUCCESS` may still be missing."""
    manifest = read_json(layout.manifest, Manifest)
    return manifest if manifest is not None and manifest.identity == identity else None


def finished_units(layout: OutputLayout, units: Iterable[str]) -> dict[str, UnitRecord]:
    """Records of the published units: the record exists, and so do the files that it names.

    A part that is missing or has another size makes its unit pending again.
    """
    present = {path.stem for path in layout.units.glob("*.json")}
    records = (read_json(layout.record(unit), UnitRecord) for unit in units if unit in present)
    return {r.unit: r for r in records if r is not None and has_files(layout, r)}


def has_files(layout: OutputLayout, record: UnitRecord) -> bool:
    """Whether the files that a record names exist, the scores with the recorded size."""
    try:
        same = (layout.root / record.part).stat().st_size == record.bytes
    except FileNotFoundError:
        return False
    return same and (record.rejected_part is None or layout.rejected_part(record.unit).exists())
