"""The pages of a folder of measurements, and the README's table, from their JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from pipeline.bench.gpu.page import page as gpu_page
from pipeline.bench.gpu.paper import paper_page
from pipeline.bench.gpu.results import Results
from pipeline.bench.job.report import JobReport
from pipeline.bench.job.report import page as job_page
from pipeline.errors import ConfigError

_TABLE = re.compile(
    r"(<!-- made by dpiframe bench pages of (\S+) -->\n).*?(<!-- end -->)", re.DOTALL
)


def made_pages(folder: Path) -> dict[Path, str]:
    """Every page by its path: of `bench gpu` (GPU.json, and paper.md of the one with most parts),
    and of `bench job` (job_MACHINE_CASE.json, together as job_MACHINE.md). ConfigError: there is
    none, or a JSON of something else.
    """
    pages: dict[Path, str] = {}
    jobs, most = job_reports(folder), 0
    for path in sorted(set(folder.glob("*.json")) - set(_job_files(folder))):
        results = Results.load(path)
        pages[path.with_suffix(".md")] = gpu_page(results)
        if len(results.parts) > most:
            pages[folder / "paper.md"] = paper_page(results)
            most = len(results.parts)
    pages |= {folder / f"{name}.md": job_page(found) for name, found in jobs.items()}
    if not pages:
        raise ConfigError(f"{folder} has no JSON of `dpiframe bench gpu` or `dpiframe bench job`")
    return pages


def job_reports(folder: Path) -> dict[str, list[JobReport]]:
    """The reports of `bench job` by machine, those of fewer GPUs first."""
    found: dict[str, list[JobReport]] = {}
    for path in _job_files(folder):
        report = read_job_report(path)
        found.setdefault(path.stem.rpartition("_")[0], []).append(report)
    for reports in found.values():
        reports.sort(key=lambda report: max(run.gpus for run in report.runs))
    return found


def read_job_report(path: Path) -> JobReport:
    """What `bench job --json` wrote. ConfigError: the file is not such a one."""
    try:
        return JobReport.model_validate_json(path.read_text())
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise ConfigError(f"{path} is no JSON of `dpiframe bench job`: {why}") from None


def _job_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("job_*_*.json"))


def headline(reports: Sequence[JobReport]) -> str:
    """A table of the runs, a line each."""
    lines = [
        "| model | rows | GPUs | cores | s from the command to `_SUCCESS` | M rows/s, steady |",
        "|---|---|---|---|---|---|",
    ]
    for report in reports:
        for run in report.runs:
            steady = run.rates.steady_rows_per_s
            cells = (
                report.case.model,
                f"{run.rows:,} {report.case.form}{report.case.written}",
                str(run.gpus),
                str(run.cores),
                f"{run.rates.seconds:.0f}",
                "-" if steady is None else f"{steady / 1e6:.0f}",
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def with_headlines(text: str, reports: Mapping[str, Sequence[JobReport]]) -> str:
    """A page with a table between each two marks, of the machine that they name (`job_h200`).

    ConfigError: it has no marks, or they name a machine that has no reports.
    """

    def made(found: re.Match[str]) -> str:
        begin, machine, end = found.groups()
        if machine not in reports:
            raise ConfigError(
                f"no reports of {machine}; there are of {', '.join(reports) or 'none'}"
            )
        return f"{begin}{headline(reports[machine])}\n{end}"

    new, tables = _TABLE.subn(made, text)
    if not tables:
        raise ConfigError(
            "there is no place for the table: put <!-- made by dpiframe bench pages of MACHINE --> "
            f"and <!-- end --> around it, where MACHINE is one of {', '.join(reports) or 'none'}"
        )
    return new
