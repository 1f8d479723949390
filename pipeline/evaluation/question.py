"""Question: what to evaluate of an output."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Question(BaseModel):
    """What to evaluate: the label's column, where it is, and by what rows are parted.

    `labels`: parquet files that hold the label, joined by `keys`; without it the output carries it.
    `bundles`: names of bundles beside the job's own whose scores are evaluated, too; `outputs`:
    names of these or of other tasks, each with a label column of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    labels: str | None = None
    keys: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    pairs: bool = False
    group: str | None = None
    bundles: tuple[str, ...] = ()
    outputs: dict[str, str] = {}

    def others(self) -> dict[str, Question]:
        """The same question of the scores by `bundles` and `outputs`, by name."""
        labels = dict.fromkeys(self.bundles, self.label) | self.outputs
        none: dict[str, Any] = {"bundles": (), "outputs": {}}
        return {n: self.model_copy(update={"label": one, **none}) for n, one in labels.items()}
