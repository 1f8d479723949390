"""JobPlan: everything about a job that is settled before anything is started or written."""

from __future__ import annotations

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from pipeline.config.job import JobConfig, beside, embedding_column, score_column
from pipeline.planning.columns import Columns
from pipeline.planning.inputs import InputFile, Quarantined
from pipeline.planning.row_cost import ModelCost
from pipeline.planning.units import Unit
from pipeline.storage.registered import Registered


class PlannedModel(BaseModel):
    """One of `bundles` or `outputs`: where its bundle lies, and what it takes of the columns that
    are read. `output`: the module of one of `outputs`; `width`: numbers a row, 1 for a score.

    `ids` [F] and `dense` [N]: places among the ids and the dense features of a unit, whose first
    ones are those of `bundle`. `encodes`: raw columns are encoded by its schema, which no bundle
    before it has, and these features follow those of the bundles before.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    location: str
    digest: str
    ids: tuple[int, ...]
    dense: tuple[int, ...]
    encodes: bool = False
    output: str | None = None
    width: int = 1

    @property
    def column(self) -> str:
        """What it makes is published as."""
        return score_column(self.name) if self.width == 1 else embedding_column(self.name)

    @property
    def type(self) -> pa.DataType:
        """The type of that column."""
        return pa.float32() if self.width == 1 else pa.list_(pa.float32())


class WorkerPlan(BaseModel):
    """What readers and scorers need to know of a job; travels to every worker.

    `config` has absolute paths, and its form and keys are settled.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: JobConfig
    columns: Columns
    bundle_digest: str
    registered: Registered | None = None
    others: tuple[PlannedModel, ...] = ()

    @property
    def bundles(self) -> dict[str, str]:
        """The digests of the bundles beside `bundle`, by name."""
        return {model.name: model.digest for model in self.others if model.output is None}

    @property
    def beside(self) -> list[PlannedModel]:
        """Those of `others` that have a column of their own."""
        names = beside((model.name for model in self.others), self.config.bundle_of)
        return [model for model in self.others if model.name in names]

    @property
    def outputs(self) -> dict[str, int]:
        """The numbers a row of each of `outputs`, by name."""
        return {model.name: model.width for model in self.others if model.output is not None}

    @property
    def encoding_bundles(self) -> list[tuple[str, str]]:
        """Location and digest of the bundles whose schemas encode raw columns, in order."""
        others = [(model.location, model.digest) for model in self.others if model.encodes]
        return [(self.bundle, self.bundle_digest), *others]

    @property
    def bundle(self) -> str:
        """Where the bundle lies: its path or address."""
        return self.registered.location if self.registered else self.config.bundle


class JobPlan(WorkerPlan):
    """What a job will read, and as what.

    A file that is listed twice is twice in `files`; `total_bytes` counts whole files, `row_bytes`
    one row once read. With `partition_by`, `parts` are the plans of the partitions, whose units
    follow one another in `units`.
    """

    identity: str
    files: list[InputFile]
    units: list[Unit]
    quarantined: list[Quarantined]
    total_rows: int
    total_bytes: int
    row_bytes: int
    model: ModelCost
    parts: list[JobPlan] = []

    @property
    def for_workers(self) -> WorkerPlan:
        """The part that workers need, without files, units and the driver's MLflow server."""
        return WorkerPlan(
            config=self.config.model_copy(update={"mlflow_uri": None, "notify_webhook": None}),
            columns=self.columns,
            bundle_digest=self.bundle_digest,
            registered=self.registered,
            others=self.others,
        )
