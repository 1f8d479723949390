"""PartCounter: what one worker does of an evaluation, in this process or in one of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.dataset as pads

from pipeline.evaluation.grouped_rows import (
    GroupedRows,
    PartSummary,
    Piece,
    part_summary,
    parted,
)
from pipeline.evaluation.labels import LabelsInOrder
from pipeline.evaluation.question import Question
from pipeline.evaluation.rows import group_numbers, labelled_rows
from pipeline.evaluation.slices import encode
from pipeline.evaluation.tally import Tally
from pipeline.publishing.scores import FinishedOutput

HAND_OVER_SECONDS = 5.0

Handed = tuple[int, Tally]  # an output's number, what some of its parts come to


class OutputRows(NamedTuple):
    """The rows of an output: a fragment a part, and the columns of all."""

    fragments: list[pads.Fragment]
    schema: pa.Schema

    @classmethod
    def of(cls, output: FinishedOutput) -> OutputRows:
        """Those of a finished output."""
        return cls(list(output.rows.get_fragments()), output.rows.schema)


class Part(NamedTuple):
    """A part to read: the number of its output, its place there, the name that a tally has for it.

    `groups_alone`: it is in a tally already, but for the AUC by group. `first_row`: how many rows
    are before it, where labels come in the order of the scores.
    """

    output: int
    place: int
    name: str
    groups_alone: bool = False
    first_row: int = 0


class Setup(NamedTuple):
    """What a worker needs to begin. `score`: the column of the scores; `labels`: where they are no
    column of the output; `rows_by_group`: the file for rows by group, beyond `rows_in_memory`.
    """

    question: Question
    score: str
    labels: LabelsInOrder | None
    rows_by_group: Path
    rows_in_memory: int


def columns_read(question: Question, score: str, groups_alone: bool = False) -> list[str]:
    """The columns of an output that are read."""
    found = [score] if question.labels is not None else [score, question.label]
    found += [question.group] if question.group is not None else []
    return list(dict.fromkeys(found if groups_alone else [*found, *question.slices]))


class PartCounter:
    """Reads parts and counts their rows: in a tally, which is handed over now and then, and by
    group.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self._question = setup, setup.question
        self._outputs: dict[int, OutputRows] = {}
        self._groups = GroupedRows(setup.rows_by_group, setup.rows_in_memory)
        self._output = 0
        self._start_tally()

    def _start_tally(self) -> None:
        self._tally = Tally(self._question.slices, self._question.pairs)
        self._since = time.monotonic()

    def open(self, output: int, rows: OutputRows) -> None:
        """Get ready for parts of an output."""
        self._outputs[output] = rows

    def read(self, part: Part) -> tuple[int, list[Handed]]:
        """Count a part; returns its rows with a label and a score, and what is due to be handed
        over. ConfigError and ContractError as of `evaluate_output`.
        """
        handed = self.hand_over() if part.output != self._output else []
        self._output = part.output
        rows = self.add(*self._table(part), part.name, part.groups_alone)
        due = time.monotonic() - self._since > HAND_OVER_SECONDS
        return rows, handed + (self.hand_over() if due else [])

    def _table(self, part: Part) -> tuple[pa.Table, str]:
        fragments, schema = self._outputs[part.output]
        columns = columns_read(self._question, self._setup.score, part.groups_alone)
        labels = self._setup.labels
        if labels is not None:
            columns = list(dict.fromkeys([*labels.keys, *columns]))
        fragment = fragments[part.place]
        table = fragment.to_table(columns=columns, schema=schema, use_threads=False)
        if labels is None:
            return table, fragment.path
        found = labels.take(part.first_row, table.select(labels.keys))
        return table.append_column(labels.label, found), labels.source

    def add(self, table: pa.Table, where: str, name: str = "", groups_alone: bool = False) -> int:
        """Count the rows of a table, which is from `where`, as the part of this name; returns how
        many have a label and a score.
        """
        label, group = self._question.label, self._question.group
        found = labelled_rows(table.column(self._setup.score), table.column(label), label, where)
        if found.kept is not None:
            table = table.filter(pa.array(found.kept))
        if not groups_alone:
            codes = {one: encode(table.column(one)) for one in self._question.slices}
            self._tally.add(self._tally.look(found, codes), name)
        if group is not None:
            self._groups.add(parted(group_numbers(table.column(group)), found.rows))
        return len(found.rows)

    def hand_over(self, rows: Mapping[int, int] = MappingProxyType({})) -> list[Handed]:
        """What was counted since the last time. `rows`: how many each output has at least."""
        self._tally.shrink(rows.get(self._output, 0))
        found = [(self._output, self._tally)] if self._tally.parts else []
        self._start_tally()
        return found

    def pieces(self, spill: bool) -> list[Piece]:
        """All rows by group; `spill`: in files, so that others can read them."""
        if spill:
            self._groups.spill()
        return self._groups.pieces()

    def part_summaries(self, parts: Sequence[int], pieces: Sequence[Piece]) -> list[PartSummary]:
        """The groups of some parts of the pieces of all workers."""
        return [part_summary(number, pieces) for number in parts]
