"""Errors of the engine. All are ValueErrors: the caller can put them right."""


class SpecError(ValueError):
    """A model spec that cannot be run: names the module or field, and what is wrong with it."""


class BundleError(ValueError):
    """A bundle that cannot be opened: a file is missing, changed, or does not fit the spec."""


class BadIdError(ValueError):
    """An id outside its table, with the `fail` policy.

    Attributes: `field` (name), `row` (position in the batch given to `score`), `value` (the id).
    """

    def __init__(self, field: str, row: int, value: int, rows: int) -> None:
        super().__init__(
            f"id {value} in row {row} of field {field} is outside its table of {rows} rows "
            f"(valid: 0 to {rows - 1}); fix the encoding or load the engine with on_bad_id='oov'"
        )
        self.field, self.row, self.value = field, row, value
