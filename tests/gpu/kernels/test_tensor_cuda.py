"""Generic tensor operations on the GPU against float64: shapes, strides, types, batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from dpiframe_core import _core
from dpiframe_core.engine.cuda.device_program import native_op, native_operand
from dpiframe_core.program.tensor_ops import (
    Join,
    LayerNorm,
    Map,
    MatMul,
    Operand,
    Reduce,
    Softmax,
    Take,
    TakeAlong,
    TensorOp,
    TopK,
    row_major,
)

DEVICE = "cuda"
TYPES = (torch.float32, torch.float16, torch.bfloat16)
BATCHES = (1, 2, 19, 130, 3000)
# Largest error in terms of max(1, |result|, size of what was summed): float32 by functions of a few
# roundings, and 11 or 8 bits where the result is written in 16.
BOUNDS = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass
class Source:
    """A buffer [B, width] on the GPU with every other element NaN, or a constant [1, width]."""

    values: torch.Tensor
    operand: Operand
    constant: bool

    def matrix(self) -> _core.DeviceMatrix:
        stride = 0 if self.constant else self.values.stride(0)
        return device_matrix(self.values, stride)


def device_matrix(values: torch.Tensor, stride: int) -> _core.DeviceMatrix:
    name = str(values.dtype).removeprefix("torch.")
    return _core.DeviceMatrix(values.data_ptr(), stride, values.shape[1], name)


def buffer(rng, batch: int, width: int, dtype) -> torch.Tensor:
    """Columns of a wider matrix of NaN."""
    before, after = (int(n) for n in rng.integers(0, 9, 2))
    whole = torch.full((batch, before + width + after), torch.nan, dtype=dtype, device=DEVICE)
    return whole[:, before : before + width]


def source(rng, batch, shape, *, dtype=torch.float32, form=None, constant=False, values=None):
    """An operand of the shape: contiguous, transposed, part of a wider one, or repeated."""
    form = form or str(rng.choice(["whole", "transposed", "sliced", "repeated"]))
    sizes, strides = list(shape), [0] * len(shape)
    order = rng.permutation(len(shape)) if form == "transposed" else np.arange(len(shape))
    step = 1
    for axis in reversed(order):
        repeated = form == "repeated" and rng.random() < 0.5
        strides[axis] = 0 if repeated else step
        step *= (
            1 if repeated else sizes[axis] + (int(rng.integers(0, 4)) if form == "sliced" else 0)
        )
    offset = int(rng.integers(0, 5))
    operand = Operand(tuple(sizes), tuple(strides), offset)
    width = operand.end + int(rng.integers(0, 3))
    rows = 1 if constant else batch
    made = buffer(rng, rows, width, torch.float32 if constant else dtype)
    if values is None:
        numbers = torch.from_numpy(rng.standard_normal((rows, width)))
    else:
        numbers = torch.zeros(rows, width, dtype=torch.float64)
        operand.read(numbers).copy_(values.to(torch.float64))
    made.copy_(numbers)
    return Source(made, operand, constant)


def run(rng, op: TensorOp, sources: list[Source], batch: int, dtype=torch.float32) -> torch.Tensor:
    """The result [B, *shape] in float64, after a check that nothing else was written."""
    shape = op.shape([s.operand for s in sources])
    out = buffer(rng, batch, math.prod(shape), dtype)
    _core.tensor_op(
        native_op(op),
        [s.matrix() for s in sources],
        [native_operand(s.operand) for s in sources],
        device_matrix(out, out.stride(0)),
        batch,
    )
    found = out.double().reshape(batch, *shape).cpu()
    out.fill_(torch.nan)
    base = out._base if out._base is not None else out
    assert base.isnan().all(), "wrote outside its columns"
    return found


def read(sources: list[Source]) -> list[torch.Tensor]:
    return [s.operand.read(s.values.double().cpu().contiguous()) for s in sources]


def check(op, sources, batch, rng, dtype=torch.float32, size=1.0):
    """The result is that of float64, in terms of max(1, |result|, size)."""
    found = run(rng, op, sources, batch, dtype)
    wanted = op.compute(read(sources))
    wanted = wanted.reshape(wanted.shape[0], *found.shape[1:]).expand(found.shape)
    assert torch.equal(found.isnan(), wanted.isnan())
    error = (found - wanted).abs() / wanted.abs().clamp(min=1).maximum(torch.as_tensor(size))
    assert error.nan_to_num().max().item() < BOUNDS[dtype], f"{op}, batch {batch}"


def random_shape(rng, least=0, most=4, sizes=(1, 2, 3, 5, 8, 19)):
    return tuple(int(n) for n in rng.choice(sizes, rng.integers(least, most + 1)))


def random_types(rng):
    """Of an operand and of the result: mostly float32."""
    first, second = (TYPES[int(rng.choice([0, 0, 1, 2]))] for _ in range(2))
    return first, second


@pytest.mark.parametrize("seed", range(40))
def test_map(seed):
    rng = np.random.default_rng(seed)
    batch, shape = int(rng.choice(BATCHES)), random_shape(rng)
    dtype, out = random_types(rng)
    sources = [
        source(rng, batch, shape, dtype=dtype),
        source(rng, batch, shape),
        source(rng, batch, shape, constant=True),
    ]
    quotient = ("div", "x0", ("add", ("abs", "x1"), 0.5))
    other = ("add", quotient, ("sigmoid", "x2"))
    expression = ("where", ("gt", "x0", 0.1), ("mul", ("tanh", "x1"), "x2"), other)
    check(Map(expression), sources, batch, rng, out)


@pytest.mark.parametrize("leaf", ["x0", 2.5, float("nan")])
def test_map_of_a_leaf(leaf):
    rng = np.random.default_rng(0)
    check(Map(leaf), [source(rng, 19, (3, 7), form="transposed")], 19, rng)


def test_map_of_many_intermediate_results_and_operands():
    rng = np.random.default_rng(1)
    sources = [source(rng, 130, (33,)) for _ in range(64)]
    expression = tuple(f"x{i}" for i in range(64))
    while len(expression) > 1:
        pairs = zip(expression[::2], expression[1::2], strict=True)
        expression = tuple(("mul", 0.7, ("add", ("tanh", a), b)) for a, b in pairs)
    check(Map(expression[0]), sources, 130, rng)


def test_map_propagates_nan_and_rounds_half_to_even():
    rng = np.random.default_rng(2)
    values = torch.tensor([[math.nan, 0.5, 1.5, -2.5, math.inf, -math.inf, 0.0, -3.0]])
    pair = [source(rng, 1, (8,), form="whole", values=v) for v in (values, values.flip(1))]
    for expression in (("max", "x0", "x1"), ("min", "x0", "x1"), ("round", "x0"), ("relu", "x0"),
                       ("sign", "x0"), ("mod", "x0", 2.0), ("pow", "x0", 3.0), ("isfinite", "x0"),
                       ("and", "x0", "x1"), ("not", "x0")):  # fmt: skip
        found = run(rng, Map(expression), pair, 1)
        wanted = Map(expression).compute([x.float() for x in read(pair)]).double()
        torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("function", ["sum", "mean", "prod", "max", "min"])
@pytest.mark.parametrize("seed", range(12))
def test_reduce(function, seed):
    rng = np.random.default_rng(seed)
    batch, shape = int(rng.choice(BATCHES)), random_shape(rng, least=1)
    count = int(rng.integers(1, len(shape) + 1))
    axes = tuple(int(a) for a in rng.permutation(len(shape))[:count])
    dtype, out = random_types(rng)
    x = source(rng, batch, shape, dtype=dtype)
    if function == "prod":  # of numbers near 1
        x.values.copy_(1 + 0.01 * torch.randn(x.values.shape))
    size = read([x])[0].abs().sum().item() / batch if function == "sum" else 1.0
    check(Reduce(function, axes), [x], batch, rng, out, size)


@pytest.mark.parametrize("elements", [33, 1025, 2049, 70_001])
@pytest.mark.parametrize("function", ["sum", "max"])
def test_reduce_of_many(elements, function):
    rng = np.random.default_rng(elements)
    for shape, axes, form in (((elements,), (0,), "whole"), ((elements, 3), (0,), "whole"),
                              ((2, elements), (1,), "transposed")):  # fmt: skip
        x = source(rng, 3, shape, form=form)
        check(Reduce(function, axes), [x], 3, rng, size=elements**0.5)


def test_reduce_of_nan_is_nan():
    rng = np.random.default_rng(3)
    x = source(rng, 19, (5, 40), form="whole")
    x.values[3, x.operand.offset + 41] = math.nan
    for function in ("sum", "mean", "prod", "max", "min"):
        found = run(rng, Reduce(function, (1,)), [x], 19)
        assert found[3, 1].isnan()
        assert found.isnan().sum() == 1


@pytest.mark.parametrize("seed", range(30))
def test_softmax(seed):
    rng = np.random.default_rng(seed)
    batch, shape = int(rng.choice(BATCHES)), random_shape(rng, least=1)
    count = int(rng.integers(1, len(shape) + 1))
    axes = tuple(sorted(int(a) for a in rng.permutation(len(shape))[:count]))
    dtype, out = random_types(rng)
    check(Softmax(axes), [source(rng, batch, shape, dtype=dtype)], batch, rng, out)


@pytest.mark.parametrize("elements", [33, 1025, 5000])
def test_softmax_of_many_and_of_large_numbers(elements):
    rng = np.random.default_rng(elements)
    for shape, axes in (((elements,), (0,)), ((elements, 3), (0,)), ((2, elements), (1,))):
        x = source(rng, 3, shape, form="whole")
        x.values.mul_(100)
        check(Softmax(axes), [x], 3, rng)


@pytest.mark.parametrize("seed", range(30))
def test_layer_norm(seed):
    rng = np.random.default_rng(seed)
    batch = int(rng.choice(BATCHES))
    shape = random_shape(rng, least=1, sizes=(1, 2, 3, 16, 33, 40))
    axes = int(rng.integers(1, min(3, len(shape) + 1)))
    dtype, out = random_types(rng)
    sources = [source(rng, batch, shape, dtype=dtype)]
    for _ in range(int(rng.integers(0, 3))):
        sources.append(source(rng, batch, shape[-axes:], constant=True))
    # With few elements the quotient of small differences, so in terms of 1 / sqrt(eps).
    check(LayerNorm(axes, 1e-2), sources, batch, rng, out, size=4.0)


def test_layer_norm_of_a_large_mean_and_many_elements():
    rng = np.random.default_rng(4)
    x = source(rng, 5, (3, 4100), form="whole")
    x.values.add_(1000)
    check(LayerNorm(1, 1e-5), [x], 5, rng)


MATMULS = [  # batch, rows, inner and columns axes
    ((), (1,), (1,), (1,)),
    ((), (26,), (16,), (26,)),
    ((), (5,), (300,), ()),
    ((), (), (300,), (7,)),
    ((), (), (33,), ()),
    ((4,), (26,), (16,), (26,)),
    ((3, 2), (5,), (7,), (11,)),
    ((), (3, 5), (2, 8), (4, 3)),
    ((2,), (70,), (33,), (90,)),
    ((), (130,), (65,), (130,)),
    ((7,), (1,), (19,), (40,)),
    ((), (40,), (19,), (1,)),
]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("parts", MATMULS)
def test_matmul(parts, constant):
    outer, rows, inner, columns = parts
    op = MatMul(len(outer), len(rows), len(inner))
    for seed, batch in enumerate((1, 19, 130)):
        rng = np.random.default_rng(seed)
        dtype, out = random_types(rng) if seed else (torch.float32, torch.float32)
        a = source(rng, batch, (*outer, *rows, *inner), dtype=dtype)
        b = source(rng, batch, (*outer, *inner, *columns), constant=constant)
        # |a| |b| of the longest row and column
        check(op, [a, b], batch, rng, out, size=math.prod(inner) ** 0.5)


@pytest.mark.parametrize("seed", range(20))
def test_join(seed):
    rng = np.random.default_rng(seed)
    batch, outer = int(rng.choice(BATCHES)), int(rng.choice([1, 2, 5]))
    sources = [
        source(rng, batch, (outer, *random_shape(rng, most=2)),
               dtype=random_types(rng)[0], constant=bool(rng.random() < 0.2))
        for _ in range(int(rng.integers(1, 12)))
    ]  # fmt: skip
    check(Join(outer), sources, batch, rng, random_types(rng)[1])


@pytest.mark.parametrize("seed", range(15))
def test_take(seed):
    rng = np.random.default_rng(seed)
    batch, shape = int(rng.choice(BATCHES)), random_shape(rng, least=1)
    behind = int(rng.integers(0, len(shape)))
    places = shape[len(shape) - 1 - behind]
    index = tuple(int(i) for i in rng.integers(0, places, rng.integers(1, 40)))
    check(Take(index, behind), [source(rng, batch, shape)], batch, rng)


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("size", [1, 2, 8, 13, 19, 32, 40, 64, 65, 100, 700, 4096, 5000])
def test_top_k(size, largest, places):
    rng = np.random.default_rng(size)
    for k in sorted({1, min(5, size), min(9, size), min(100, size)}):
        x = source(rng, 7, (3, size), form=str(rng.choice(["whole", "transposed"])))
        x.values.mul_(4).round_().div_(4)  # many equal numbers
        x.values[2, -1] = math.nan
        x.values[4, x.operand.offset] = -0.0
        check(TopK(k, largest, places), [x], 7, rng)


@pytest.mark.parametrize("constant", [False, True])
def test_take_along(constant):
    rng = np.random.default_rng(5)
    for batch in BATCHES:
        x = source(rng, batch, (3, 19))
        where = torch.from_numpy(rng.integers(0, 19, (1 if constant else batch, 3, 8)))
        places = source(rng, batch, (3, 8), constant=constant, values=where, form="transposed")
        check(TakeAlong(), [x, places], batch, rng)
        where = torch.from_numpy(rng.integers(0, 19, (batch, 3, 8)))
        table = source(rng, batch, (3, 19), constant=constant)
        places = source(rng, batch, (3, 8), values=where, form="sliced")
        check(TakeAlong(places_first=True), [places, table], batch, rng)


def test_take_along_places_outside_the_axis_gives_nan():
    rng = np.random.default_rng(6)
    where = torch.tensor([[-1.0, 5.0, 4.9, -0.5, math.nan, math.inf, 1e30]])
    x = source(rng, 1, (5,), form="whole")
    found = run(rng, TakeAlong(), [x, source(rng, 1, (7,), values=where, form="whole")], 1)
    values = read([x])[0]
    nan = torch.tensor(math.nan, dtype=torch.float64)
    wanted = torch.stack([nan, nan, values[0, 4], values[0, 0], nan, nan, nan])
    torch.testing.assert_close(found[0], wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("op", "shapes", "width", "message"),
    [
        (Map("x0"), [(3,)], 2, "a map writes 3 columns, got 2"),
        (Map(("add", "x0", "x1")), [(3,), (4,)], 3, "a map does not fit"),
        (Reduce("sum", (1,)), [(3,)], 1, "an axis 1 of a tensor of 1 axes"),
        (Take((0, 3)), [(3,)], 2, "place 3 of an axis of 3"),
        (MatMul(0, 1, 1), [(2, 3), (4, 5)], 10, "a product does not fit"),
        (TopK(4), [(3,)], 4, "a top k does not fit"),
    ],
)
def test_what_does_not_fit_is_refused(op, shapes, width, message):
    rng = np.random.default_rng(7)
    sources = [source(rng, 2, shape, form="whole") for shape in shapes]
    out = buffer(rng, 2, width, torch.float32)
    with pytest.raises(ValueError, match=message):
        _core.tensor_op(
            native_op(op),
            [s.matrix() for s in sources],
            [native_operand(s.operand) for s in sources],
            device_matrix(out, out.stride(0)),
            2,
        )


def test_an_operand_outside_its_matrix_is_refused():
    out = torch.zeros(2, 6, device=DEVICE)
    x = device_matrix(torch.zeros(2, 6, device=DEVICE), 6)
    for operand in (_core.TensorOperand([6], [1], 1), _core.TensorOperand([2, 3], [4, 1], 0)):
        with pytest.raises(ValueError, match="reads column 6 of 6"):
            _core.tensor_op(_core.JoinOp(1), [x], [operand], device_matrix(out, 6), 2)
    operand = _core.TensorOperand([6], row_major((6,)), -1)
    with pytest.raises(ValueError, match="reads column"):
        _core.tensor_op(_core.JoinOp(1), [x], [operand], device_matrix(out, 6), 2)
