"""KeptTally: what an output comes to, in a file beside its scores, written now and then."""

from __future__ import annotations

import hashlib
import json
import logging
import time

import pyarrow as pa

from pipeline.errors import DpiframeError
from pipeline.evaluation.question import Question
from pipeline.evaluation.tally import Tally
from pipeline.publishing.output import open_output
from pipeline.publishing.records import tally_name
from pipeline.publishing.scores import FinishedOutput

log = logging.getLogger("dpiframe.evaluation")

SAVE_SECONDS = 5.0  # between two writes, at least
SAVE_SHARE = 0.05  # of the time, at most


class KeptTally:
    """The tally of an output for a question; `parts`: what the output has, by name and content."""

    def __init__(self, output: FinishedOutput, question: Question, score: str) -> None:
        """Begins with what the file says, if all of its parts are still there."""
        units = zip(output.units, output.rows.get_fragments(), strict=True)
        self.parts = {f"{unit.part} {unit.bytes} {unit.sha256}": rows for unit, rows in units}
        asked = [question.label, question.slices, question.pairs, score]
        digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
        self._place, self._name = open_output(output.address), tally_name(digest[:16])
        self.tally = self._read(question) or Tally(question.slices, question.pairs)
        self._saved, self._pause, self._changed = time.monotonic(), SAVE_SECONDS, False

    @property
    def is_whole(self) -> bool:
        """Whether all parts are counted."""
        return len(self.tally.parts) == len(self.parts)

    def merge(self, found: Tally) -> None:
        """Count more parts."""
        self.tally.merge(found)
        self._changed = True
        if time.monotonic() - self._saved > self._pause:
            self.save()

    def save(self) -> None:
        """Write the file, if there is anything new and the output can be written."""
        if not self._changed:
            return
        began = time.monotonic()
        try:
            with self._place.errors():
                self._place.write(self._name, self.tally.to_bytes())
        except (OSError, DpiframeError) as error:
            log.warning("the evaluation cannot be gone on with later: %s", error)
        self._saved, self._changed = time.monotonic(), False
        self._pause = max(SAVE_SECONDS, (self._saved - began) / SAVE_SHARE)

    def _read(self, question: Question) -> Tally | None:
        try:
            with self._place.errors(), self._place.open(self._name) as file:
                found = Tally.of_bytes(file.read(), question.slices, question.pairs)
        except (OSError, DpiframeError, ValueError, KeyError, TypeError, pa.ArrowException):
            return None
        return found if found.parts <= self.parts.keys() else None
