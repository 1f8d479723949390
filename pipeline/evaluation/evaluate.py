"""evaluate_output: the scores of a finished output against labels.

Parts are read by several threads, each row once, in memory that is bounded whatever the number of
rows. The result does not depend on the order in which parts come. What each output comes to is kept
beside it: an evaluation that is stopped goes on, and one of a root of outputs adds theirs up.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
from pydantic import BaseModel, ConfigDict, computed_field

from pipeline.config.job import SCORE_COLUMN, score_column
from pipeline.errors import ConfigError
from pipeline.evaluation.grouped_rows import GroupedRows, PartedRows, parted
from pipeline.evaluation.kept_tally import KeptTally
from pipeline.evaluation.labels import LabelFiles, LabelsInOrder
from pipeline.evaluation.rows import LabelledRows, group_numbers, labelled_rows
from pipeline.evaluation.score_counts import (
    ReliabilityBin,
    ScoreCounts,
    expected_calibration_error,
)
from pipeline.evaluation.slices import encode
from pipeline.evaluation.sums import Sums, brier, calibration, logloss, normalised_entropy
from pipeline.evaluation.tally import TalliedRows, Tally
from pipeline.publishing.scores import FinishedOutput, finished_outputs, open_scores

SLICES_SHOWN = 100  # of each slicing, those of the most rows


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


def evaluate_output(output: str | Path, question: Question, threads: int = 0) -> Evaluation:
    """Evaluate a finished output; `threads` 0: as many as the process may use.

    ConfigError: no finished output, or a column that is not there. ContractError: a label that is
    neither 0 nor 1, a key with two labels.
    """
    began = time.perf_counter()
    with evaluated(output, question, threads) as evaluator:
        found = evaluator.result(time.perf_counter() - began)
    others = {}
    for name, other in question.others().items():
        began = time.perf_counter()
        with evaluated(output, other, threads, score_column(name)) as evaluator:
            others[name] = evaluator.result(time.perf_counter() - began)
    return found.model_copy(update={"others": others})


@contextlib.contextmanager
def evaluated(
    output: str | Path, question: Question, threads: int = 0, score: str = SCORE_COLUMN
) -> Iterator[Evaluator]:
    """An evaluator with all rows of a finished output; errors as of `evaluate_output`."""
    outputs = finished_outputs(output)
    _check_columns(outputs[0].rows.schema, question, output, score)
    evaluator = Evaluator(question, threads or len(os.sched_getaffinity(0)), score)
    with contextlib.closing(evaluator):
        if question.labels is None:
            evaluator.add_outputs(outputs)
        else:
            _add_joined(open_scores(output), question, evaluator)
        yield evaluator


class Evaluator:
    """Takes tables of scores and labels, in any order; `tally` counts all of them.

    `score`: the column of the scores.
    """

    def __init__(self, question: Question, threads: int = 1, score: str = SCORE_COLUMN) -> None:
        self.question, self.threads, self.score = question, threads, score
        self.columns = [score, *question.slices, *self._grouped_by()]
        self.columns += [question.label] if question.labels is None else []
        self.columns = list(dict.fromkeys(self.columns))
        self._start()

    def _start(self) -> None:
        self.tally = self._new_tally()
        self._groups = GroupedRows() if self.question.group is not None else None

    def _new_tally(self) -> Tally:
        return Tally(self.question.slices, self.question.pairs)

    def _grouped_by(self) -> list[str]:
        return [self.question.group] if self.question.group is not None else []

    def restart(self) -> None:
        """Forget what was added."""
        self.close()
        self._start()

    def add(self, table: pa.Table, where: str) -> None:
        """Count the rows of a table; `where` it is from."""
        found, table = self._labelled(table, where)
        self.tally.add(self._look(found, table))
        self._add_groups(self._parted(found, table))

    def add_outputs(self, outputs: Sequence[FinishedOutput]) -> None:
        """Count all rows of outputs, but of those that have been tallied add up the tallies."""
        kept: deque[KeptTally] = deque()
        try:
            _side_by_side(self._work(outputs, kept), self.threads)
            while kept:
                self._finish(kept.popleft(), alone=len(outputs) == 1)
        finally:
            for one in kept:
                one.save()

    def _work(
        self, outputs: Sequence[FinishedOutput], kept: deque[KeptTally]
    ) -> Iterator[Callable[[], Callable[[], None]]]:
        """What there is to read; each gives what counts it."""
        for output in outputs:
            own = KeptTally(output, self.question, self.score)
            kept.append(own)
            for name, fragment in own.parts.items():
                if name not in own.tally.parts:
                    yield partial(self._read, own, name, fragment, output.rows.schema)
                elif self._groups is not None:
                    yield partial(self._read_groups, fragment, output.rows.schema)
            while len(kept) > 1 and kept[0].is_whole:
                self._finish(kept.popleft())

    def _finish(self, own: KeptTally, alone: bool = False) -> None:
        own.save()
        if alone:
            self.tally = own.tally
        else:
            self.tally.merge(own.tally)

    def _read(
        self, own: KeptTally, name: str, fragment: pads.Fragment, schema: pa.Schema
    ) -> Callable[[], None]:
        table = fragment.to_table(columns=self.columns, schema=schema, use_threads=False)
        found, table = self._labelled(table, fragment.path)
        part, groups = self._look(found, table), self._parted(found, table)

        def count() -> None:
            own.add(part, name)
            self._add_groups(groups)

        return count

    def _read_groups(self, fragment: pads.Fragment, schema: pa.Schema) -> Callable[[], None]:
        columns = [self.score, self.question.label, *self._grouped_by()]
        table = fragment.to_table(columns=columns, schema=schema, use_threads=False)
        return partial(self._add_groups, self._parted(*self._labelled(table, fragment.path)))

    def _labelled(self, table: pa.Table, where: str) -> tuple[LabelledRows, pa.Table]:
        """The rows with score and label, packed and as a table."""
        label = self.question.label
        found = labelled_rows(table.column(self.score), table.column(label), label, where)
        return found, table if found.kept is None else table.filter(pa.array(found.kept))

    def _look(self, found: LabelledRows, table: pa.Table) -> TalliedRows:
        codes = {name: encode(table.column(name)) for name in self.question.slices}
        return self.tally.look(found, codes)

    def _parted(self, found: LabelledRows, table: pa.Table) -> PartedRows | None:
        if self.question.group is None:
            return None
        return parted(group_numbers(table.column(self.question.group)), found.rows)

    def _add_groups(self, found: PartedRows | None) -> None:
        if self._groups is not None and found is not None:
            self._groups.add(found)

    def result(self, seconds: float) -> Evaluation:
        """The evaluation of all that was added."""
        tally = self.tally
        curve = tally.scores.reliability()
        groups = self._groups.summary(self.threads) if self._groups is not None else None
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

    def close(self) -> None:
        """Remove temporary files."""
        if self._groups is not None:
            self._groups.close()


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


def _side_by_side(work: Iterator[Callable[[], Callable[[], None]]], threads: int) -> None:
    """Do the work in so many threads; count, which what each gives does, in this one."""
    with ThreadPoolExecutor(threads) as pool:
        running: set[Future[Callable[[], None]]] = set()
        try:
            for one in work:
                running.add(pool.submit(one))
                if len(running) > threads:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for each in done:
                        each.result()()
            for each in running:
                each.result()()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _add_joined(parts: pads.Dataset, question: Question, evaluator: Evaluator) -> None:
    assert question.labels is not None
    labels = LabelFiles(question.labels, question.keys, question.label)
    if _add_in_order(parts, labels, evaluator):
        return
    evaluator.restart()
    columns = list(dict.fromkeys([*question.keys, *evaluator.columns]))
    tables = (fragment.to_table(columns=columns) for fragment in parts.get_fragments())
    schema = pa.schema([parts.schema.field(name) for name in columns])
    for table in labels.joined(tables, schema):
        evaluator.add(table, question.labels)


def _add_in_order(parts: pads.Dataset, labels: LabelFiles, evaluator: Evaluator) -> bool:
    """Add all rows if the labels have the same ones in the same order; False: they have not."""
    columns = list(dict.fromkeys([*labels.keys, *evaluator.columns]))
    in_order = LabelsInOrder(labels)
    for fragment in parts.get_fragments():
        table = fragment.to_table(columns=columns)
        found = in_order.take(table.select(labels.keys))
        if found is None:
            return False
        evaluator.add(table.append_column(labels.label, found), labels.source)
    return in_order.at_end()


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
