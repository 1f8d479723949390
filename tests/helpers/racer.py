"""One of several processes that race for an output: `python racer.py FOLDER`.

Reads `OUTPUT UNIT_ROWS` lines; each is a job that it does at once, as `run_job` does but with the
scorer in this process; answers with a line: scored, complete, or the error's exit code.
"""

from __future__ import annotations

import sys
from pathlib import Path

from job_cases import job_keys, outcomes

from pipeline.config.job import JobConfig
from pipeline.errors import DpiframeError
from pipeline.planning.plan import make_plan
from pipeline.publishing.output import open_output
from pipeline.publishing.records import UnitError
from pipeline.scoring.job import job_error


def race(folder: Path, output: str, unit_rows: int) -> str:
    """Do one job; says how it ended."""
    keys = job_keys(folder, output=output, unit_rows=unit_rows)
    plan, found = make_plan(JobConfig.model_validate(keys)), open_output(output)
    try:
        with found.errors(), found.lock() as lock:
            if found.completed(plan.identity):
                return "complete"
            attempt, _ = found.claim(plan)
            for outcome in outcomes(plan, attempt):
                if isinstance(outcome, UnitError):
                    raise job_error(outcome)
            lock.check()
            found.finish(plan, attempt, [])
            found.tidy()
    except DpiframeError as error:
        return str(error.exit_code)
    return "scored"


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        path, rows = line.split()
        print(race(Path(sys.argv[1]), path, int(rows)), flush=True)
