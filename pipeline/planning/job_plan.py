"""JobPlan: everything about a job that is settled before anything is started or written."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from pipeline.config.job import JobConfig
from pipeline.planning.columns import Columns
from pipeline.planning.inputs import InputFile
from pipeline.planning.row_cost import ModelCost
from pipeline.planning.units import Unit
from pipeline.publishing.records import Quarantined


class JobPlan(BaseModel):
    """What a job will read, and as what. `config` has absolute paths, its form and keys settled.

    `files` come twice when they are listed twice; `total_bytes` counts whole files, `row_bytes`
    a row on its way to a scorer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str
    config: JobConfig
    bundle_path: str
    bundle_digest: str
    columns: Columns
    files: list[InputFile]
    units: list[Unit]
    quarantined: list[Quarantined]
    total_rows: int
    total_bytes: int
    row_bytes: int
    model: ModelCost
