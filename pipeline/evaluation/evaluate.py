"""evaluate_output: the scores of a finished output against labels.

Parts are read by several processes, each row once, in memory that is bounded whatever the number of
rows. The result does not depend on who reads which part, or when. What each output comes to is kept
beside it: an evaluation that is stopped goes on, and one of a root of outputs adds theirs up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
from pydantic import BaseModel, ConfigDict, computed_field

from pipeline.config.job import SCORE_COLUMN, score_column
from pipeline.errors import ConfigError
from pipeline.evaluation.grouped_rows import GroupSummary
from pipeline.evaluation.kept_tally import KeptTally
from pipeline.evaluation.labels import LabelFiles, LabelsInOrder, OtherOrderError
from pipeline.evaluation.part_counter import OutputRows, Part, columns_read
from pipeline.evaluation.question import Question
from pipeline.evaluation.score_counts import (
    ReliabilityBin,
    ScoreCounts,
    expected_calibration_error,
)
from pipeline.evaluation.sums import Sums, brier, calibration, logloss, normalised_entropy
from pipeline.evaluation.tally import Tally
from pipeline.evaluation.workers import Workers, one_worker, start_workers
from pipeline.publishing.scores import FinishedOutput, finished_outputs, open_scores
from pipeline.sizing.machine import free_memory, usable_cores

SLICES_SHOWN = 100  # of each slicing, those of the most rows
MOST_WORKERS = 16  # that are started unasked
FEW_ROWS = 1 << 25  # are counted sooner than processes are started
WORKER_BYTES = 1 << 30  # of free memory, with parts of a few million rows


class Quality(BaseModel):
    """How good some rows' scores are; a figure is None where a class is absent.

    `auc_error`: the exact AUC is at most so far away (0: it is exact). `normalised_entropy`:
    logloss over that of the mean label. `calibration`: mean score over mean label.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    clicks: int
    auc: float | None
    auc_error: float | None
    logloss: float | None
    normalised_entropy: float | None
    calibration: float | None
    brier: float | None


class SliceQuality(Quality):
    """Of the rows with these values of the slicing's columns."""

    values: tuple[str, ...]


class Evaluation(BaseModel):
    """`_evaluation.json`: the quality of an output's scores.

    `gauc`: mean AUC of the groups with both classes, weighted by their rows. `ece`: mean distance
    of mean score and click rate over the bins of `reliability`, which have as many rows each.
    `others`: of the scores by the question's `bundles` and `outputs`, by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: Question
    quality: Quality
    ece: float | None
    reliability: list[ReliabilityBin]
    gauc: float | None = None
    groups: int = 0
    groups_with_both: int = 0
    slices: dict[str, list[SliceQuality]]
    slices_left_out: dict[str, int]
    without_score: int
    without_label: int
    seconds: float
    others: dict[str, Evaluation] = {}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def metrics(self) -> dict[str, float]:
        """The figures that have a value, by the names of `METRICS`; of `others` with `_NAME`."""
        quality = self.quality
        figures = quality.model_dump(exclude={"rows", "clicks"}) | {"ece": self.ece}
        figures |= {"gauc": self.gauc, "labelled_rows": quality.rows}
        figures["labelled_clicks"] = quality.clicks
        found = {name: float(value) for name, value in figures.items() if value is not None}
        for bundle, other in self.others.items():
            found |= {f"{name}_{bundle}": value for name, value in other.metrics.items()}
        return found


def evaluate_output(output: str | Path, question: Question, workers: int = 0) -> Evaluation:
    """Evaluate a finished output; `workers` 0: this process alone for FEW_ROWS, else one a
    core, at most one a GiB of free memory and MOST_WORKERS.

    ConfigError: no finished output, or a column that is not there. ContractError: a label that is
    neither 0 nor 1, a key with two labels. ResumableError: a worker was killed.
    """
    began = time.perf_counter()
    found = evaluated(output, question, workers).result(time.perf_counter() - began)
    others = {}
    for name, other in question.others().items():
        began = time.perf_counter()
        evaluator = evaluated(output, other, workers, score_column(name))
        others[name] = evaluator.result(time.perf_counter() - began)
    return found.model_copy(update={"others": others})


def evaluated(
    output: str | Path, question: Question, workers: int = 0, score: str = SCORE_COLUMN
) -> Evaluator:
    """An evaluator with all rows of a finished output; errors as of `evaluate_output`."""
    outputs = finished_outputs(output)
    _check_columns(outputs[0].rows.schema, question, output, score)
    rows = sum(one.manifest.rows for one in outputs)
    number = workers if workers > 0 else _useful_workers(rows)
    evaluator = Evaluator(question, score)
    if question.labels is None:
        evaluator.add_outputs(outputs, number)
        return evaluator
    labels = LabelFiles(question.labels, question.keys, question.label)
    try:
        evaluator.add_in_order(outputs, labels, number)
    except OtherOrderError:
        evaluator = Evaluator(question, score)
        evaluator.add_joined(open_scores(output), labels)
    return evaluator


def _useful_workers(rows: int) -> int:
    if rows < FEW_ROWS:
        return 1
    room = free_memory() // WORKER_BYTES
    return max(1, min(usable_cores(), MOST_WORKERS, room))


class Evaluator:
    """Counts the rows of outputs: `tally`. `score`: the column of the scores."""

    def __init__(self, question: Question, score: str) -> None:
        self.question, self.score = question, score
        self.tally = Tally(question.slices, question.pairs)
        self._groups: GroupSummary | None = None

    def add_outputs(self, outputs: Sequence[FinishedOutput], workers: int) -> None:
        """Count all rows of outputs, but of those that have been tallied add up the tallies."""
        kept: dict[int, KeptTally] = {}
        try:
            parts = self._untallied(outputs, kept)
            if first := next(parts, None):
                with start_workers(workers, self.question, self.score) as started:
                    rows = [OutputRows.of(one) for one in outputs]
                    for output, found in started.count(chain([first], parts), rows):
                        kept[output].merge(found)
                    self._add_groups(started)
            for output in list(kept):
                self._finish(kept.pop(output), alone=len(outputs) == 1)
        finally:
            for one in kept.values():
                one.save()

    def _untallied(
        self, outputs: Sequence[FinishedOutput], kept: dict[int, KeptTally]
    ) -> Iterator[Part]:
        """What there is to read; `kept`: tallies that lack a part of it."""
        for number, output in enumerate(outputs):
            own = kept[number] = KeptTally(output, self.question, self.score)
            for place, name in enumerate(own.parts):
                tallied = name in own.tally.parts
                if not tallied or self.question.group is not None:
                    yield Part(number, place, name, groups_alone=tallied)
            for earlier in [n for n, one in kept.items() if n < number and one.is_whole]:
                self._finish(kept.pop(earlier))

    def _finish(self, own: KeptTally, alone: bool = False) -> None:
        own.save()
        if alone:
            self.tally = own.tally
        else:
            self.tally.merge(own.tally)

    def add_in_order(
        self, outputs: Sequence[FinishedOutput], files: LabelFiles, workers: int
    ) -> None:
        """Count all rows. OtherOrderError: the labels are not of these rows in this order."""
        labels = LabelsInOrder(files)
        units = [(n, *of) for n, one in enumerate(outputs) for of in enumerate(one.units)]
        ends = list(accumulate(unit.rows for *_, unit in units))
        if labels.rows != (ends[-1] if ends else 0):
            raise OtherOrderError
        parts = (
            Part(number, place, unit.part, first_row=end - unit.rows)
            for (number, place, unit), end in zip(units, ends, strict=True)
        )
        with start_workers(workers, self.question, self.score, labels) as started:
            for _, found in started.count(parts, [OutputRows.of(one) for one in outputs]):
                self.tally.merge(found)
            self._add_groups(started)

    def add_joined(self, rows: pads.Dataset, files: LabelFiles) -> None:
        """Count all rows; they and the labels are in any order."""
        with one_worker(self.question, self.score) as started:
            columns = list(dict.fromkeys([*files.keys, *columns_read(self.question, self.score)]))
            tables = (fragment.to_table(columns=columns) for fragment in rows.get_fragments())
            schema = pa.schema([rows.schema.field(name) for name in columns])
            for _, found in started.count_tables(files.joined(tables, schema), files.source):
                self.tally.merge(found)
            self._add_groups(started)

    def _add_groups(self, started: Workers) -> None:
        if self.question.group is not None:
            self._groups = started.groups()

    def result(self, seconds: float) -> Evaluation:
        """The evaluation of all that was added."""
        tally = self.tally
        curve = tally.scores.reliability()
        groups = self._groups
        slices = {", ".join(s.columns): s.largest_first() for s in tally.slicings()}
        return Evaluation(
            question=self.question,
            quality=Quality(**_figures(tally.sums, tally.scores)),
            ece=expected_calibration_error(curve),
            reliability=curve,
            gauc=groups.gauc if groups else None,
            groups=groups.groups if groups else 0,
            groups_with_both=groups.groups_with_both if groups else 0,
            slices={
                name: [SliceQuality(values=v, **_figures(*one)) for v, one in found[:SLICES_SHOWN]]
                for name, found in slices.items()
            },
            slices_left_out={
                name: len(found) - SLICES_SHOWN
                for name, found in slices.items()
                if len(found) > SLICES_SHOWN
            },
            without_score=tally.without_score,
            without_label=tally.without_label,
            seconds=seconds,
        )


def _figures(sums: Sums, scores: ScoreCounts) -> dict[str, Any]:
    auc = scores.auc()
    return {
        "rows": sums.rows,
        "clicks": sums.clicks,
        "auc": auc.auc if auc else None,
        "auc_error": auc.error if auc else None,
        "logloss": logloss(sums),
        "normalised_entropy": normalised_entropy(sums),
        "calibration": calibration(sums),
        "brier": brier(sums),
    }


def _check_columns(schema: pa.Schema, question: Question, output: str | Path, score: str) -> None:
    wanted = dict.fromkeys(question.slices, "slice")
    wanted |= {question.group: "group"} if question.group is not None else {}
    wanted |= {question.label: "label"} if question.labels is None else {}
    wanted |= dict.fromkeys(question.keys, "key") if question.labels is not None else {}
    for column in (score, *map(score_column, question.others())):
        if column not in schema.names:
            raise ConfigError(
                f"{output} has no scores {column!r}; it has {', '.join(schema.names)}"
            )
    for name, role in wanted.items():
        if name not in schema.names:
            raise ConfigError(
                f"{output} has no column {name!r} for the {role}; it has "
                f"{', '.join(schema.names)}: score with carry_columns: [{name}]"
            )
    if question.labels is not None and question.label in schema.names:
        raise ConfigError(
            f"{output} carries a column {question.label!r} already; leave out the files of labels"
        )
