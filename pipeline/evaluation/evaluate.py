"""evaluate_output: the scores of a finished output against labels.

Parts are read by several threads, each row once, in memory that is bounded whatever the number of
rows. The result does not depend on the order in which parts come.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
from pydantic import BaseModel, ConfigDict, computed_field

from pipeline.config.job import SCORE_COLUMN, score_column
from pipeline.errors import ConfigError
from pipeline.evaluation.grouped_rows import GroupedRows
from pipeline.evaluation.labels import LabelFiles, LabelsInOrder
from pipeline.evaluation.ranking import CountedAuc, unpack
from pipeline.evaluation.rows import group_numbers, labelled_rows
from pipeline.evaluation.score_counts import (
    ReliabilityBin,
    ScoreCounts,
    expected_calibration_error,
)
from pipeline.evaluation.slices import Slice, Slicing, encode
from pipeline.evaluation.sums import (
    Sums,
    calibration,
    logloss,
    normalised_entropy,
    sums_of,
    total,
)
from pipeline.publishing.scores import open_scores

SLICES_SHOWN = 100  # of each slicing, those of the most rows


class Question(BaseModel):
    """What to evaluate: the label's column, where it is, and by what rows are parted.

    `labels`: parquet files that hold the label, joined by `keys`; without it the output carries it.
    `bundles`: names of bundles beside the job's own whose scores are evaluated, too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    labels: str | None = None
    keys: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    pairs: bool = False
    group: str | None = None
    bundles: tuple[str, ...] = ()

    @property
    def slicings(self) -> list[tuple[str, ...]]:
        """The columns of each slicing."""
        single: list[tuple[str, ...]] = [(name,) for name in self.slices]
        return single + (list(combinations(self.slices, 2)) if self.pairs else [])


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
    `others`: of the scores by the question's `bundles`, by name.
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
    for bundle in question.bundles:
        began = time.perf_counter()
        with evaluated(output, question, threads, score_column(bundle)) as evaluator:
            others[bundle] = evaluator.result(time.perf_counter() - began)
    return found.model_copy(update={"others": others})


@contextlib.contextmanager
def evaluated(
    output: str | Path, question: Question, threads: int = 0, score: str = SCORE_COLUMN
) -> Iterator[Evaluator]:
    """An evaluator with all rows of a finished output; errors as of `evaluate_output`."""
    parts = open_scores(output)
    _check_columns(parts.schema, question, output)
    evaluator = Evaluator(question, threads or len(os.sched_getaffinity(0)), score)
    with contextlib.closing(evaluator):
        if question.labels is None:
            _each(parts, evaluator.threads, evaluator.add, evaluator.columns)
        else:
            _add_joined(parts, question, evaluator)
        yield evaluator


class Evaluator:
    """Takes tables of scores and labels, in any order; `scores` counts all of them.

    `score`: the column of the scores.
    """

    def __init__(self, question: Question, threads: int = 1, score: str = SCORE_COLUMN) -> None:
        self.question, self.threads, self.score = question, threads, score
        self.columns = [score, *question.slices]
        self.columns += [question.group] if question.group is not None else []
        self.columns += [question.label] if question.labels is None else []
        self.columns = list(dict.fromkeys(self.columns))
        self._start()

    def _start(self) -> None:
        self._sums: list[Sums] = []
        self.scores = ScoreCounts()
        self._slicings = [Slicing(columns) for columns in self.question.slicings]
        self._groups = GroupedRows() if self.question.group is not None else None
        self._without_score = self._without_label = 0

    def restart(self) -> None:
        """Forget what was added."""
        self.close()
        self._start()

    def add(self, table: pa.Table, where: str) -> Callable[[], None]:
        """Look at the rows of a table; calling the result, one at a time, counts them."""
        question = self.question
        found = labelled_rows(
            table.column(self.score), table.column(question.label), question.label, where
        )
        if found.kept is not None:
            table = table.filter(pa.array(found.kept))
        sums = sums_of(*unpack(found.rows))
        codes = {name: encode(table.column(name)) for name in question.slices}
        sliced = [slicing.look(codes, found.rows) for slicing in self._slicings]
        if self._groups is not None and question.group is not None:
            self._groups.add(group_numbers(table.column(question.group)), found.rows)

        def count() -> None:
            self._sums.append(sums)
            self.scores.add(found.rows)
            for slicing, some in zip(self._slicings, sliced, strict=True):
                slicing.add(some)
            self._without_score += found.without_score
            self._without_label += found.without_label

        return count

    def result(self, seconds: float) -> Evaluation:
        """The evaluation of all that was added."""
        curve = self.scores.reliability()
        groups = self._groups.summary(self.threads) if self._groups is not None else None
        slices = {", ".join(slicing.columns): slicing.slices() for slicing in self._slicings}
        return Evaluation(
            question=self.question,
            quality=Quality(**_figures(total(self._sums), self.scores.auc())),
            ece=expected_calibration_error(curve),
            reliability=curve,
            gauc=groups.gauc if groups else None,
            groups=groups.groups if groups else 0,
            groups_with_both=groups.groups_with_both if groups else 0,
            slices={
                name: [_slice(s) for s in found[:SLICES_SHOWN]] for name, found in slices.items()
            },
            slices_left_out={
                name: len(found) - SLICES_SHOWN
                for name, found in slices.items()
                if len(found) > SLICES_SHOWN
            },
            without_score=self._without_score,
            without_label=self._without_label,
            seconds=seconds,
        )

    def close(self) -> None:
        """Remove temporary files."""
        if self._groups is not None:
            self._groups.close()


def _figures(sums: Sums, auc: CountedAuc | None) -> dict[str, Any]:
    return {
        "rows": sums.rows,
        "clicks": sums.clicks,
        "auc": auc.auc if auc else None,
        "auc_error": auc.error if auc else None,
        "logloss": logloss(sums),
        "normalised_entropy": normalised_entropy(sums),
        "calibration": calibration(sums),
        "brier": sums.squared / sums.rows if sums.rows else None,
    }


def _slice(one: Slice) -> SliceQuality:
    return SliceQuality(values=one.values, **_figures(one.sums, one.counts.auc()))


def _each(
    parts: pads.Dataset,
    threads: int,
    look: Callable[[pa.Table, str], Callable[[], None]],
    columns: Sequence[str],
) -> None:
    """Look at parts in so many threads; count in this one."""

    def work(fragment: pads.Fragment) -> Callable[[], None]:
        return look(fragment.to_table(columns=list(columns), use_threads=False), fragment.path)

    with ThreadPoolExecutor(threads) as pool:
        running: set[Future[Callable[[], None]]] = set()
        try:
            for fragment in parts.get_fragments():
                running.add(pool.submit(work, fragment))
                if len(running) > threads:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for one in done:
                        one.result()()
            for one in running:
                one.result()()
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
        evaluator.add(table, question.labels)()


def _add_in_order(parts: pads.Dataset, labels: LabelFiles, evaluator: Evaluator) -> bool:
    """Add all rows if the labels have the same ones in the same order; False: they have not."""
    columns = list(dict.fromkeys([*labels.keys, *evaluator.columns]))
    in_order = LabelsInOrder(labels)
    for fragment in parts.get_fragments():
        table = fragment.to_table(columns=columns)
        found = in_order.take(table.select(labels.keys))
        if found is None:
            return False
        evaluator.add(table.append_column(labels.label, found), labels.source)()
    return in_order.at_end()


def _check_columns(schema: pa.Schema, question: Question, output: str | Path) -> None:
    wanted = dict.fromkeys(question.slices, "slice")
    wanted |= {question.group: "group"} if question.group is not None else {}
    wanted |= {question.label: "label"} if question.labels is None else {}
    wanted |= dict.fromkeys(question.keys, "key") if question.labels is not None else {}
    for bundle in question.bundles:
        if score_column(bundle) not in schema.names:
            raise ConfigError(f"{output} has no scores by a bundle {bundle!r}")
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
