"""Models of odd shapes: few and many fields, narrow and wide, shallow and deep."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpiframe_core import FieldSpec, ModelSpec
from dpiframe_core.model.builtin import MODELS, Deep, Features

MIXED = (1, 10, 16, 64, 4, 7, 2)
FIELDS = (1, 3, 39, 60)
DIMS = ((4,), (8,), (10,), (16,), (32,), (64,), (100,), MIXED)
HIDDEN = ((8,), (50, 30), (400, 400, 400), (1024, 512, 256), (1000,))
DENSE = (None, "raw", "field", "raw")
LAYERS = (1, 2, 3, 4)
STRUCTURES = ("parallel", "stacked", "parallel", "cross_only")
ROWS = (7, 1000, 1, 19, 20_000, 111, 2, 3)
NUM_DENSE = 13
FEWER = (39, 3, 1)
WIDEST = 2560  # columns of x0; beyond, all time would go to float64


@dataclass(frozen=True)
class Shape:
    """What a model is made from; `dims` go round the fields."""

    model: str
    fields: int
    dims: tuple[int, ...]
    hidden: tuple[int, ...]
    dense: str | None
    layers: int
    structure: str

    def __str__(self) -> str:
        dims = "mixed" if self.dims == MIXED else f"d{self.dims[0]}"
        parts = [self.model, f"f{self.fields}", dims, "x".join(map(str, self.hidden))]
        parts += [self.dense] if self.dense else []
        parts += [f"l{self.layers}", self.structure] if self.model.startswith("dcn") else []
        return "-".join(parts)

    def fits(self) -> bool:
        """Whether there is such a model, and no wider than WIDEST."""
        one_width = self.model == "deepfm" or self.dense == "field"
        width = sum(self.dims[i % len(self.dims)] for i in range(self.fields))
        width += NUM_DENSE * self.dims[0] if self.dense == "field" else 0
        return width <= WIDEST and not (one_width and self.dims == MIXED)

    def spec(self) -> ModelSpec:
        """The spec; every field has an oov row."""
        fields = [
            FieldSpec(name=f"C{i}", rows=rows, dim=self.dims[i % len(self.dims)], oov_row=rows // 2)
            for i in range(self.fields)
            for rows in (ROWS[i % len(ROWS)],)
        ]
        dense = [f"I{i}" for i in range(NUM_DENSE)] if self.dense else []
        features = Features(fields, dense, "raw" if self.dense == "raw" else "field")
        cross = {"layers": self.layers, "structure": self.structure}
        options = cross if self.model.startswith("dcn") else {}
        return MODELS[self.model](features, Deep(self.hidden), **options)


def odd_shapes(model: str) -> list[Shape]:
    """The usual shape, and two for each of DIMS; every value of every choice occurs."""
    shapes = [Shape(model, 39, (16,), (400, 400, 400), None, 3, "parallel")]
    for i in range(2 * len(DIMS)):
        j, turn = i + list(MODELS).index(model), i // len(DIMS)  # each model mixes otherwise
        shape = Shape(
            model,
            FIELDS[(j + 2 * turn) % len(FIELDS)],
            DIMS[i % len(DIMS)],
            HIDDEN[j % len(HIDDEN)],
            DENSE[(j + turn) % len(DENSE)],
            LAYERS[(j // 2 + turn) % len(LAYERS)],
            STRUCTURES[j // 3 % len(STRUCTURES)],
        )
        others = (replace(shape, fields=f, dense=d) for d in (shape.dense, "raw") for f in FEWER)
        shapes += [s for s in (shape, *others) if s.fits()][:1]
    return shapes
