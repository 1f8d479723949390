"""The results file of a GPU: JSON of parts, each with its own commit, time and machine.

A part that is measured again is replaced as a whole. One that is resumed keeps what it has; each of
its results says which case it is and of which commit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from pipeline.bench.engine.ablation import AblationRow, TimeOfABatch
from pipeline.bench.engine.endurance import EnduranceReport
from pipeline.bench.engine.latency import EngineReport
from pipeline.bench.engine.lookup import LookupReport
from pipeline.bench.engine.memory import MemoryReport
from pipeline.bench.engine.stream import StreamReport
from pipeline.errors import ConfigError

FORMAT = 2
Report = (
    EngineReport
    | LookupReport
    | StreamReport
    | AblationRow
    | TimeOfABatch
    | MemoryReport
    | EnduranceReport
)
AnyReport = TypeVar("AnyReport", bound=BaseModel)
CEILINGS = "ceilings"


class Part(BaseModel):
    """The results of one part of the suite. `failed`: what could not be measured, and why; `lost`:
    the peers of a case after which the GPU answered no call any more.
    """

    commit: str
    time: str
    machine: dict[str, str]
    ceilings: dict[str, float] = Field(default_factory=dict)  # measured in the same run
    seconds: float = 0.0
    results: list[dict[str, Any]] = Field(default_factory=list)
    failed: dict[str, str] = Field(default_factory=dict)
    lost: dict[str, list[str]] = Field(default_factory=dict)

    def add(self, report: Report, title: str = "", **derived: float | None) -> None:
        """Add a report of a case, with figures derived from it for readers of the JSON."""
        found = {name: x for name, x in derived.items() if x is not None and math.isfinite(x)}
        values = report.model_dump(mode="json", exclude={"machine"})
        said = {"case_title": title, "commit": self.commit}
        self.results.append(
            {"report": type(report).__name__, **values, "derived": found, "measured": said}
        )

    def has(self, title: str) -> bool:
        """Whether the case was measured at the part's commit."""
        wanted = {"case_title": title, "commit": self.commit}
        return any(result.get("measured") == wanted for result in self.results)

    def drop(self, title: str) -> None:
        """Remove what there is of a case, to measure it again."""
        self.failed.pop(title, None)
        self.results = [r for r in self.results if r.get("measured", {}).get("case_title") != title]

    def commits(self) -> list[str]:
        """The commits that its results were measured at."""
        found = {result.get("measured", {}).get("commit", self.commit) for result in self.results}
        return sorted(found | {self.commit})

    def reports(self, kind: type[AnyReport]) -> list[AnyReport]:
        """The reports of one kind."""
        return [
            kind.model_validate({**result, "machine": self.machine})
            for result in self.results
            if result["report"] == kind.__name__
        ]


class Results(BaseModel):
    """All parts by name."""

    format: int = FORMAT
    parts: dict[str, Part] = Field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file; empty where there is none, or one of another format."""
        try:
            data = json.loads(path.read_text())
            return cls.model_validate(data) if data.get("format") == FORMAT else cls()
        except (OSError, json.JSONDecodeError, ValidationError):
            return cls()

    @classmethod
    def load(cls, path: Path) -> Results:
        """Of a file that is there. ConfigError: not of this format, damaged, or without results."""
        found = cls.read(path)
        if not found.parts:
            raise ConfigError(
                f"{path} holds no results of `dpiframe bench gpu`: it is damaged, of an older "
                "format, or another command's"
            )
        return found

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(self.model_dump(mode="json"), indent=1) + "\n")
        scratch.rename(path)

    def reports(self, part: str, kind: type[AnyReport]) -> Sequence[AnyReport]:
        """The reports of one kind in a part; none where the part is missing."""
        return self.parts[part].reports(kind) if part in self.parts else []

    def commits(self) -> list[str]:
        """The commits that the parts were measured at."""
        return sorted({commit for part in self.parts.values() for commit in part.commits()})


def now() -> str:
    """The current time as a part records it."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
