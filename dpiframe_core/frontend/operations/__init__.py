"""How each operation of PyTorch's core is made of values: a file per family."""

from dpiframe_core.frontend.operations import (
    activations,
    attention,
    embeddings,
    fourier,
    joining,
    making,
    moving,
    norms,
    picking,
    products,
    reducing,
    sorting,
    windows,
    writing,
)
from dpiframe_core.frontend.operations.table import Operation

_FAMILIES = (
    activations, attention, embeddings, fourier, joining, making, moving, norms, picking, products,
    reducing, sorting, windows, writing,
)  # fmt: skip

OPERATIONS: dict[str, Operation] = {
    name: function for family in _FAMILIES for name, function in family.TABLE.items()
}

# Complex numbers have a dimension more, which these would take for one of the model's.
OF_REAL_NUMBERS: frozenset[str] = frozenset(
    name
    for family in (activations, attention, norms, products, reducing, sorting, windows)
    for name in family.TABLE
) - {"sum", "mean"}
