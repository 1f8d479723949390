"""What a job whose label is known says of its scores."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pipeline.config.job import JobConfig
from pipeline.errors import DpiframeError
from pipeline.publishing.output import Output
from pipeline.publishing.partitioned import PartitionedOutput

if TYPE_CHECKING:
    from pipeline.evaluation.evaluate import Evaluation

log = logging.getLogger("dpiframe.job")


def evaluate_job(output: Output | PartitionedOutput, config: JobConfig) -> Evaluation | None:
    """Evaluate the finished scores against `label_column`; None without a label.

    An evaluation of the same scores that lies there already is taken as it is; one of partitions
    is made anew, as it is of all that are finished, and other jobs may have added some.
    Never raises what a job may fail by: the scores are published, and `dpiframe evaluate` tries
    again.
    """
    if config.label_column is None:
        return None
    from pipeline.evaluation.evaluate import evaluate_output
    from pipeline.evaluation.question import Question
    from pipeline.evaluation.report import read_evaluation, write_evaluation

    question = Question(
        label=config.label_column,
        slices=tuple(config.slice_columns),
        pairs=len(config.slice_columns) > 1,
        group=config.group_column,
        bundles=tuple(config.beside),
        outputs=config.output_labels,
    )
    try:
        partitioned = isinstance(output, PartitionedOutput)
        found = None if partitioned else read_evaluation(output.address)
        if found is None or found.question != question:
            found = evaluate_output(output.address, question)
            write_evaluation(output.address, found)
    except (DpiframeError, OSError, ValueError) as error:
        log.warning("the scores are not evaluated: %s", error)
        return None
    return found
