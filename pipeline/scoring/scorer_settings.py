"""What scorers need to know of a job; travels to the actors as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline.config.job import JobConfig
from pipeline.planning.columns import Columns
from pipeline.reading.unit_reader import ReadSettings


class ScorerSettings(BaseModel):
    """`threads`: of the engine; `max_batch`: rows in one call of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: JobConfig
    columns: Columns
    bundle_digest: str
    attempt: str
    device: Literal["cpu", "cuda"]
    threads: int
    max_batch: int

    @property
    def read_settings(self) -> ReadSettings:
        """What reading a unit needs of these."""
        return ReadSettings(
            columns=self.columns, bundle=self.config.bundle, bundle_digest=self.bundle_digest
        )
