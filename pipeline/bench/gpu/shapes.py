"""The cases of `zoo` and `shapes`: all models of the zoo at one shape; the built-in models at
shapes that a seed draws.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

from pipeline.bench.cases.engine_case import EngineCase, criteo_fields
from pipeline.bench.cases.zoo import ZOO
from pipeline.bench.gpu.targets import BATCHES, PRECISIONS

MODELS = ("wdl", "deepfm", "dcn", "dcnv2")
DIMS = (8, 10, 32, 64, 128)
HIDDEN = ((256, 128, 64), (512, 512), (1000,) * 5, (1024, 512, 256))
FIELDS = (10, 26, 39, 200)
SHAPE_BATCHES = (1024, 8192, 65536)
COUNT = 40
REPEATS, SHORT_REPEATS = 24, 96
SHORT_FLOP = 10**11  # up to here calls are so short that the machine disturbs many in a row
MOST_FLOP = 6 * 10**12  # of a batch: 0.1 s of plain fp32 on an H200
SLOW_FLOP = 10**12  # from here on few repeats are enough
MOST_WEIGHTS = 2**28  # in the tables of a shape: 1 GiB in float32, far more than an L2 cache holds


def zoo_cases() -> Iterator[EngineCase]:
    """26 fields, 13 dense features, dim 16; the fp16 ones, which have more to show, first."""
    for precision, batch, model in itertools.product(PRECISIONS, reversed(BATCHES), ZOO):
        yield EngineCase.model_validate(
            {
                "model": model,
                "fields": 26,
                "dense": 13,
                "hidden": (400, 400),
                "batch": batch,
                "precision": precision,
                "device": "cuda",
                "repeats": SHORT_REPEATS if batch == min(BATCHES) else REPEATS,
                "tuned": False,
            }
        )


def shape_cases(seed: int, count: int = COUNT) -> list[EngineCase]:
    """`count` different cases, each model, batch, and precision about as often as the others."""
    drawn = random.Random(seed)
    kinds = itertools.product(MODELS, DIMS, HIDDEN, FIELDS, SHAPE_BATCHES, PRECISIONS)
    shapes = [shape for shape in kinds if _flop(*shape[:5]) <= MOST_FLOP]
    drawn.shuffle(shapes)
    # Models, batches and precisions take turns; in a turn all shapes are equally likely.
    turns = list(itertools.product(SHAPE_BATCHES, PRECISIONS, MODELS))
    drawn.shuffle(turns)
    found = []
    for batch, precision, model in itertools.islice(itertools.cycle(turns), count):
        shape = next(s for s in shapes if (s[4], s[5], s[0]) == (batch, precision, model))
        shapes.remove(shape)
        found.append(_shape_case(*shape))
    return found


def shape_title(case: EngineCase) -> str:
    """What tells the case from the others of its part."""
    hidden = "-".join(map(str, case.hidden))
    return f"{case.model} {case.fields}x{case.dim} {hidden} {case.batch} {case.precision}"


def _flop(model: str, dim: int, hidden: tuple[int, ...], fields: int, batch: int) -> int:
    """Operations of a batch's products."""
    width = dim * fields
    cross = 3 * width * width if model == "dcnv2" else 0
    return 2 * batch * (cross + sum(a * b for a, b in itertools.pairwise([width, *hidden])))


def _repeats(flop: int) -> int:
    if flop < SHORT_FLOP:
        return SHORT_REPEATS
    return REPEATS if flop < SLOW_FLOP else 8


def _shape_case(
    model: str, dim: int, hidden: tuple[int, ...], fields: int, batch: int, precision: str
) -> EngineCase:
    weights = dim * sum(field.rows for field in criteo_fields(fields, dim))
    scale = min(1.0, MOST_WEIGHTS / weights)
    return EngineCase.model_validate(
        {
            "model": model,
            "dim": dim,
            "hidden": hidden,
            "fields": fields,
            "batch": batch,
            "precision": precision,
            "device": "cuda",
            "repeats": _repeats(_flop(model, dim, hidden, fields, batch)),
            "tuned": False,
            "scale": math.floor(1000 * scale) / 1000,
        }
    )
