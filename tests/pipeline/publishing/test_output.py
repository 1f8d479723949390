"""The end of a job: the limit of rejected rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_cases import job_keys, tiny_bundle, write_shards

from pipeline.config.job import JobConfig
from pipeline.errors import ContractError
from pipeline.planning.plan import make_plan
from pipeline.publishing.output import check_rejected


@pytest.mark.parametrize(("allowed", "rejected"), [(0.29, 29), (0.07, 7), (0, 0), (1, 100)])
def test_exactly_the_allowed_fraction_may_be_rejected(
    tmp_path: Path, allowed: float, rejected: int
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 1, 100, 100)
    keys = job_keys(tmp_path, max_rejected_fraction=allowed)
    plan = make_plan(JobConfig.model_validate(keys))

    check_rejected(plan, rejected)
    with pytest.raises(ContractError, match=f"{rejected + 1} of 100 rows are rejected"):
        check_rejected(plan, rejected + 1)
