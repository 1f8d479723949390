"""A scoring job in a process of its own, as `running_job.Case`, whose output is in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from job_cases import reference_scores
from running_job import ATOL, Case

from pipeline.publishing.output import open_output
from pipeline.publishing.records import UnitRecord, recorded_unit
from pipeline.publishing.scores import open_scores
from pipeline.publishing.store import StoreOutput
from pipeline.publishing.store_head import Head, read_record
from pipeline.publishing.verify import verify_output


class StoreCase(Case):
    """The output is at `address`."""

    def __init__(self, folder: Path, ray: str, address: str, **keys: Any) -> None:
        super().__init__(folder, ray, output=address, **keys)
        output = open_output(address)
        assert isinstance(output, StoreOutput)
        self.place = output
        self._seen: dict[str, str] = {}  # unit -> part

    def finished(self) -> bool:
        """Whether the job has committed and told of it."""
        return self.place.store.info("_SUCCESS") is not None

    def published(self) -> dict[str, str]:  # type: ignore[override]
        """Parts of the published units, by unit; records are read once, and never replaced."""
        found = {unit for key in self.place.sizes() if (unit := recorded_unit(key))}
        for unit in found - self._seen.keys():
            record = read_record(self.place.store, f"_units/{unit}.json", UnitRecord)
            if record is not None:
                self._seen[unit] = record.part
        return {unit: self._seen[unit] for unit in found & self._seen.keys()}

    def faults(self, untouched: dict[str, str]) -> dict[str, int]:  # type: ignore[override]
        """What is wrong with a finished output; see `Case.faults`."""
        address = self.place.address
        problems = verify_output(address).problems  # it tidies the output first
        table = open_scores(address).to_table()
        rows = table.column("row_id").to_numpy()  # 0, 1, ... in the input
        keys, counts = np.unique(rows, return_counts=True)
        right = reference_scores(self.model, self.table)
        error = np.abs(table.column("score").to_numpy() - right[rows])
        manifest, owner = self.place.manifest(), self.place.owner()
        assert manifest is not None and isinstance(owner, Head)
        now = {record.unit: record.part for record in manifest.units}
        known = {"_SUCCESS", "_config.yaml", "_identity.json", "_manifest.json", owner.manifest}
        return {
            "lost": len(right) - len(keys),
            "doubled": int((counts - 1).sum()),
            "wrong": int((~(error <= ATOL)).sum()),
            "rewritten": sum(now.get(unit) != part for unit, part in untouched.items()),
            "left_over": len(self.place.sizes().keys() - known - set(now.values())),
            "problems": len(problems),
        }
