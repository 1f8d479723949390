"""Errors of the engine; a ValueError is the caller's to correct.

`DeviceMemoryError`, a RuntimeError, says that a GPU has too little memory: how many bytes were
asked for and how many are free. The engine has given back what it took; a smaller `max_batch` needs
less. `DeviceLostError`, a RuntimeError, says that CUDA failed so that every further call of this
process fails too (a kernel's bad address, a fault of the GPU): only a new process can use the GPU.
"""

from dpiframe_core._core import DeviceLostError as DeviceLostError
from dpiframe_core._core import DeviceMemoryError as DeviceMemoryError


class SpecError(ValueError):
    """A model spec that cannot be run: names the module or field, and what is wrong with it."""


class BundleError(ValueError):
    """A bundle that cannot be opened: a file is missing, changed, or does not fit the spec."""


class ModelImportError(ValueError):
    """A PyTorch model that cannot be imported: names the file, or the operation and its module,
    what is wrong or unknown there, and what to do.
    """


class BadIdError(ValueError):
    """An id outside its table, with the `fail` policy.

    Attributes: `field` (name), `row` (the sample's position in the batch given to `score`), `value`
    (the id).
    """

    def __init__(
        self, field: str, row: int, value: int, rows: int, oov: bool, end: int | None = None
    ) -> None:
        """`oov`: the model declares an out-of-vocabulary row in every field; `end`: one more than
        the largest id, where that is not the table's last.
        """
        advice = " or load the engine with on_bad_id='oov'" if oov else ""
        super().__init__(
            f"id {value} in row {row} of field {field} is outside its table of {rows} rows "
            f"(valid: 0 to {(end or rows) - 1}); fix the encoding{advice}"
        )
        self.field, self.row, self.value = field, row, value
