"""`segments` of a job: which of its bundles makes the score of a row, by the value of a column."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pipeline.config.types import Column, ModelName


def _values_are_texts(given: object) -> object:
    """Whole numbers are taken as they are written; what YAML reads as something else is refused."""
    if not isinstance(given, dict):
        return given
    for value in given:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(
                f"must name values that are texts or whole numbers, got {value!r}; YAML takes NO, "
                "YES, ON, null and 1.5 for something else: write such a text in quotes"
            )
    texts = {str(value): name for value, name in given.items()}
    if len(texts) < len(given):
        raise ValueError(f"names a value twice, as a text and as a number: {list(given)}")
    return texts


class Segments(BaseModel):
    """`bundles`: value of `column` -> name of one of the job's `bundles`, which scores its rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: Column
    bundles: Annotated[
        dict[str, ModelName], Field(min_length=1), BeforeValidator(_values_are_texts)
    ]
