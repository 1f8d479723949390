"""Groups of steps on the CPU against torch in float64: every operation, instruction set and form of
operand; what is fused; threads; refusals.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from dpiframe_core import _core
from dpiframe_core.engine.cpu_group import CpuGroup, find_groups, is_native, own_buffers
from dpiframe_core.program import steps as p
from dpiframe_core.program.expression import ARITY
from dpiframe_core.program.program import Program
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
    TopK,
)
from dpiframe_core.program.views import State, View, Weight

pytestmark = pytest.mark.native

LOOPS = _core.host_loops()
EDGES = [
    *(0.0, 0.5, 1.0, 1.5, 2.5, 7.25, 88.0, 1e-8, 1e8, math.inf),
    *(-0.0, -0.5, -1.0, -1.5, -2.5, -7.25, -88.0, -1e-8, -1e8, -math.inf),
    *(89.0, -104.0, 1e-40, 0.6249, 0.9277, -0.9278, 4.0, 3e38, math.nan),
]
BATCHES = (1, 3, 19, 130)


def made_program(buffers, steps, weights=None, output="out"):
    weights = {k: np.asarray(w, np.float32) for k, w in (weights or {}).items()}
    return Program((), (), (), 0, buffers, tuple(steps), weights, View(output, 0, buffers[output]))


def random_operand(rng, shape):
    """Contiguous, transposed, part of a wider tensor, or repeated along some axes."""
    form = rng.choice(["whole", "transposed", "sliced", "repeated"])
    strides, step = [0] * len(shape), 1
    order = rng.permutation(len(shape)) if form == "transposed" else np.arange(len(shape))
    for axis in reversed(order):
        if form == "repeated" and rng.random() < 0.5:
            continue
        strides[axis] = step
        step *= shape[axis] + (int(rng.integers(0, 4)) if form == "sliced" else 0)
    return Operand(tuple(shape), tuple(strides), int(rng.integers(0, 5)))


def check(rng, op, operands, constants=(), batch=19, scale=1.0, bound=2e-6, loops=""):
    """One operation, of buffers wider than what is read, into a part of a wider one."""
    names = [f"b{i}" for i in range(len(operands) - len(constants))]
    widths = [o.end + int(rng.integers(0, 3)) for o in operands]
    buffers = dict(zip(names, widths, strict=False))
    values = {
        n: torch.from_numpy(scale * rng.standard_normal((batch, w))) for n, w in buffers.items()
    }
    weights = {f"c{i}": scale * rng.standard_normal(w) for i, w in enumerate(widths[len(names) :])}
    size = math.prod(op.shape(operands))
    buffers["out"] = size + 7
    step = p.TensorStep(
        "s", op, tuple(View(n, 0, buffers[n]) for n in names), tuple(map(Weight, weights)),
        tuple(operands), View("out", 4, size),
    )  # fmt: skip
    program = made_program(buffers, [step], weights)
    threads = int(rng.integers(1, 4))
    group = CpuGroup(program, [step], frozenset(), threads, loops)
    given = {n: v.float() for n, v in values.items()} | {"out": torch.full((batch, size + 7), 9.0)}
    group.run(State(given, {}, torch.empty(0)), batch)
    exact = {n: given[n].double() for n in names} | {"out": torch.zeros(batch, size + 7).double()}
    held = {n: torch.from_numpy(w.astype(np.float32)).double() for n, w in weights.items()}
    state = State(exact, held, torch.empty(0))
    step.run(state)
    found = given["out"]
    assert (found[:, :4] == 9).all() and (found[:, 4 + size :] == 9).all(), "wrote elsewhere"
    torch.testing.assert_close(
        found[:, 4 : 4 + size], state[step.out].float(), rtol=bound, atol=bound, equal_nan=True
    )


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("name", ARITY)
def test_a_function_is_that_of_torch(name, loops):
    """Within a few units in the last place of float64's result, at the edges and between."""
    arity = ARITY[name]
    rng = np.random.default_rng(len(name))
    grid = np.meshgrid(*[np.array(EDGES)] * arity, indexing="ij")
    between = rng.standard_normal((arity, 999)) * rng.choice([0.1, 1.0, 10.0], 999)
    xs = np.concatenate([np.stack([g.ravel() for g in grid]), between], 1).astype(np.float32)
    if name in ("sin", "cos", "tan"):
        xs = np.where(np.abs(xs) > 1e4, np.float32(9.5), xs)
        # The last chunk has angles that no loop takes; those before it have none.
        xs[:, -9:] = [[9e3, -1e6, 1e8, np.inf, np.nan, 8192.0, -8192.0, 8193.0, 3e5]]
        xs = np.concatenate([xs[:, :-9], rng.uniform(-8192, 8192, (1, 999)), xs[:, -9:]], 1)
        xs = xs.astype(np.float32)
    width = xs.shape[1]
    op = Map((name, *(f"x{i}" for i in range(arity))))
    names = [f"b{i}" for i in range(arity)]
    step = p.TensorStep(
        "s", op, tuple(View(n, 0, width) for n in names), (), (Operand.whole(width),) * arity,
        View("out", 0, width),
    )  # fmt: skip
    buffers = dict.fromkeys([*names, "out"], width)
    group = CpuGroup(made_program(buffers, [step]), [step], frozenset(), 1, loops)
    given = {n: torch.from_numpy(x).reshape(1, -1).clone() for n, x in zip(names, xs, strict=True)}
    given["out"] = torch.zeros(1, width)
    group.run(State(given, {}, torch.empty(0)), 1)
    expected = op.compute([torch.from_numpy(x).double() for x in xs])
    in_float = op.compute([torch.from_numpy(x) for x in xs])  # rounding may take it over an edge
    found = given["out"][0]
    near = torch.isclose(found.double(), expected, rtol=6e-7, atol=2e-38, equal_nan=True)
    same = torch.isclose(found, in_float, rtol=4e-6, atol=2e-38, equal_nan=True)
    wrong = ~(near | same)
    assert not wrong.any(), (xs[:, wrong][:, :5], found[wrong][:5], expected[wrong][:5])


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("dim", [1, 7, 10, 16, 33, 100])
def test_fm_of_one_large_field_among_small_ones(dim, loops):
    """In float32 the square of the sum less the sum of squares would have no right digit."""
    rng = np.random.default_rng(dim)
    buffers = {"a": 5 * dim + 3, "b": 2 * dim, "out": 3}
    xs = View("a", 3, 5 * dim), View("b", 0, dim), View("b", dim, dim)
    step = p.FM("fm", xs, dim, View("out", 1, 1))
    given = {n: torch.from_numpy(rng.normal(size=(19, w))).float() for n, w in buffers.items()}
    given["b"][:, :dim] *= 3e3
    exact = {n: v.double() for n, v in given.items()}
    CpuGroup(made_program(buffers, [step]), [step], frozenset(), 2, loops).run(
        State(given, {}, torch.empty(0)), 19
    )
    step.run(State(exact, {}, torch.empty(0)))
    torch.testing.assert_close(given["out"], exact["out"].float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loops", LOOPS)
def test_steps_that_a_gpu_has_kernels_for(loops):
    """What dense features are multiplied by, and the scalars of a collapsed cross network."""
    rng = np.random.default_rng(0)
    shapes = {"outer": (3, 16), "shift": (4,), "beta": (48,)}
    weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    steps = [
        p.Outer("outer", View("x", 1, 3), Weight("outer"), View("y", 0, 48)),
        p.CrossScalar("alpha", View("x", 0, 4), Weight("shift"), View("alpha", 0, 1)),
        p.ScaleShift(
            "scaled", View("y", 0, 48), View("alpha", 0, 1), Weight("beta"), View("out", 0, 48)
        ),
    ]
    buffers = {"x": 5, "y": 48, "alpha": 1, "out": 48}
    program = made_program(buffers, steps, weights)
    given = {n: torch.from_numpy(rng.normal(size=(19, w))).float() for n, w in buffers.items()}
    exact = {n: v.double() for n, v in given.items()}
    CpuGroup(program, steps, frozenset({"y", "alpha"}), 2, loops).run(
        State(given, {}, torch.empty(0)), 19
    )
    held = {n: torch.from_numpy(w).double() for n, w in program.weights.items()}
    for step in steps:
        step.run(State(exact, held, torch.empty(0)))
    torch.testing.assert_close(given["out"], exact["out"].float(), rtol=1e-5, atol=1e-5)


SHAPES = [(), (1,), (5,), (16,), (600,), (3, 7), (26, 16), (2, 5, 8), (4, 1, 9), (3, 2, 2, 5)]


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_maps(shape, loops):
    rng = np.random.default_rng(len(shape))
    expressions = (
        "x0",
        ("add", "x0", ("mul", "x1", "x2")),
        ("where", ("gt", "x0", 0.2), ("tanh", "x1"), 0.5),
        ("mul", ("sub", ("sigmoid", "x0"), ("erf", "x1")), ("max", "x2", ("exp", ("neg", "x0")))),
        ("atan2", ("sin", "x0"), ("add", 3.0, "x1")),
    )
    for expression in expressions:
        for batch in BATCHES:
            operands = [random_operand(rng, shape) for _ in range(4)]
            check(rng, Map(expression), operands, (0,) * int(rng.integers(3)), batch, loops=loops)


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("function", ["sum", "mean", "prod", "max", "min"])
def test_reductions(function, loops):
    rng = np.random.default_rng(7)
    for shape in SHAPES[1:]:
        for batch in BATCHES:
            count = int(rng.integers(1, len(shape) + 1))
            axes = tuple(int(a) for a in rng.permutation(len(shape))[:count])
            check(rng, Reduce(function, axes), [random_operand(rng, shape)], (), batch, loops=loops)


@pytest.mark.parametrize("loops", LOOPS)
def test_softmax_and_layer_norm(loops):
    rng = np.random.default_rng(8)
    for shape in [*SHAPES[1:], (26, 26), (2, 33), (400,)]:
        for batch in BATCHES:
            axes = tuple(int(a) for a in rng.permutation(len(shape))[: int(rng.integers(1, 3))])
            x = random_operand(rng, shape)
            check(rng, Softmax(axes), [x], (), batch, 3.0, loops=loops)
            count = int(rng.integers(1, len(shape) + 1))
            affine = [random_operand(rng, shape[-count:]) for _ in range(int(rng.integers(3)))]
            norm = LayerNorm(count, 0.1)
            check(rng, norm, [x, *affine], affine, batch, bound=1e-5, loops=loops)


def test_softmax_of_infinite_numbers_is_that_of_torch():
    rows = [
        [math.inf, 1, 2],
        [-math.inf] * 3,
        [math.nan, 0, 0],
        [-math.inf, 1, 2],
        [3e38, -3e38, 0],
    ]
    for width, times, guarded in itertools.product((3, 11), (1, 9), (False, True)):
        x = torch.tensor(rows).repeat(times, 4)[:, :width].contiguous()
        step = p.TensorStep(
            "s", Softmax((0,), guarded), (View("x", 0, width),), (), (Operand.whole(width),),
            View("out", 0, width),
        )  # fmt: skip
        program = made_program({"x": width, "out": width}, [step])
        expected = x.softmax(1)
        if guarded:
            expected[1::5] = 0
        for loops in LOOPS:
            given = {"x": x, "out": torch.zeros_like(x)}
            CpuGroup(program, [step], frozenset(), 1, loops).run(State(given, {}, x), len(x))
            torch.testing.assert_close(given["out"], expected, equal_nan=True)


PRODUCTS = [  # batch, rows, inner, columns
    ((), (26,), (16,), (64,)), ((2,), (26,), (32,), (26,)), ((2,), (7,), (5,), (9,)),
    ((26,), (), (16,), (16,)), ((3,), (), (40,), ()), ((), (), (13,), ()), ((), (6,), (), (5,)),
    ((), (4, 3), (2, 5), (3, 2)), ((2, 3), (5,), (4,), (17,)), ((), (2,), (700,), (33,)),
    ((), (1,), (1,), (1,)), ((), (), (20,), (8,)),
]  # fmt: skip


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("sizes", PRODUCTS, ids=str)
def test_products(sizes, loops):
    rng = np.random.default_rng(sum(map(sum, sizes)))
    batch_axes, rows, inner, columns = sizes
    op = MatMul(len(batch_axes), len(rows), len(inner))
    for batch in BATCHES:
        for constants in (0, 1):
            a = random_operand(rng, (*batch_axes, *rows, *inner))
            b = random_operand(rng, (*batch_axes, *inner, *columns))
            scale = 1 / math.sqrt(max(1, math.prod(inner)))
            check(rng, op, [a, b], (0,) * constants, batch, scale, 4e-6, loops)


@pytest.mark.parametrize("loops", LOOPS)
def test_joins_and_takes(loops):
    rng = np.random.default_rng(9)
    for batch in BATCHES:
        for outer in (1, 2, 6):
            shapes = [(outer, 4), (2, 3, 4), (outer * 3,), (6, 5)]
            check(
                rng, Join(outer), [random_operand(rng, s) for s in shapes], (0,), batch, loops=loops
            )
        for shape, behind in (((26, 16), 1), ((9,), 0), ((2, 7, 3), 1), ((3, 4, 2, 2), 2)):
            places = shape[len(shape) - 1 - behind]
            index = tuple(int(i) for i in np.sort(rng.integers(0, places, 11)))
            check(rng, Take(index, behind), [random_operand(rng, shape)], (), batch, loops=loops)


def outer_products(heads, fields, dim, width, expression=("mul", "x0", "x1")):
    """x [heads, dim], y [fields, dim] -> outer [heads, fields, dim] -> a product with a matrix."""
    shape = (heads, fields, dim)
    x, y = Operand(shape, (dim, 0, 1)), Operand(shape, (0, dim, 1))
    size = math.prod(shape)
    outer = View("outer", 0, size)
    views = (View("x", 0, heads * dim), View("y", 0, fields * dim))
    contracted = Operand((dim, heads * fields), (1, dim))
    weight = Operand((heads * fields, width), (1, heads * fields))
    steps = [
        p.TensorStep("outer", Map(expression), views, (), (x, y), outer),
        p.TensorStep("product", MatMul(0, 1, 1), (outer,), (Weight("w"),), (contracted, weight),
                     View("out", 0, dim * width)),
    ]  # fmt: skip
    buffers = {"x": heads * dim, "y": fields * dim, "outer": size, "out": dim * width}
    numbers = np.random.default_rng(1).standard_normal(width * heads * fields) / heads
    return made_program(buffers, steps, {"w": numbers})


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize(
    "sizes", [(13, 26, 16, 40), (128, 26, 16, 9), (7, 300, 3, 20), (2, 5, 2, 3)]
)
def test_an_outer_product_is_made_slice_by_slice_for_its_product(sizes, loops):
    program = outer_products(*sizes, ("tanh", ("add", "x0", ("mul", 0.5, "x1"))))
    own = frozenset({"outer"})
    group = CpuGroup(program, program.steps, own, 2, loops)
    is_large = math.prod(sizes[:3]) >= 4096
    assert group.native.num_fused == is_large
    if is_large:
        assert group.native.scratch_floats < math.prod(sizes[:3])
    rng = np.random.default_rng(2)
    for batch in BATCHES:
        given = {
            n: torch.from_numpy(rng.standard_normal((batch, w))).float()
            for n, w in program.buffers.items()
        }
        group.run(State(given, {}, torch.empty(0)), batch)
        exact = {n: t.double().clone() for n, t in given.items()}
        weights = {n: torch.from_numpy(w).double() for n, w in program.weights.items()}
        state = State(exact, weights, torch.empty(0))
        for step in program.steps:
            step.run(state)
        bound = 2e-6 * math.sqrt(sizes[0] * sizes[1])
        torch.testing.assert_close(given["out"].double(), exact["out"], rtol=bound, atol=bound)


def test_small_steps_between_products_are_one_group():
    width = 9
    view = {n: View(n, 0, width) for n in "abcdef"}
    norm = tuple(map(Weight, ("w", "bias", "mean", "var")))
    steps = [
        p.Relu("relu", view["a"], view["b"]),
        p.Affine("affine", view["b"], Weight("scale"), Weight("shift"), view["c"]),
        p.BatchNorm("norm", view["c"], norm, 1e-3, view["d"]),
        p.Add("add", (view["a"], view["c"], view["d"]), Weight("shift"), view["e"]),
        p.CrossCombine("cross", view["a"], view["b"], view["e"], view["f"]),
        p.Head("head", ((view["f"], Weight("scale")),), (View("b", 2, 1),),
               ((View("d", 1, 1), View("e", 3, 1)),), Weight("one"), View("out", 0, 1)),
    ]  # fmt: skip
    rng = np.random.default_rng(3)
    weights = {n: rng.standard_normal(width) for n in ("scale", "shift", "w", "bias", "mean")}
    weights |= {"var": rng.random(width), "one": np.array([0.25])}
    program = made_program({**dict.fromkeys("abcdef", width), "out": 1}, steps, weights)
    assert find_groups(program, steps) == [steps]
    own = own_buffers(program, [steps])
    assert own == set("abcdef")
    group = CpuGroup(program, steps, own - {"a"}, 2)
    for batch in (*BATCHES, 0):
        a = torch.from_numpy(rng.standard_normal((batch, width))).float()
        given = {"a": a, "out": torch.zeros(batch, 1)}
        group.run(State(given, {}, torch.empty(0)), batch)
        exact = {n: torch.zeros(batch, w).double() for n, w in program.buffers.items()}
        exact["a"] = a.double()
        held = {n: torch.from_numpy(w).double() for n, w in program.weights.items()}
        state = State(exact, held, torch.empty(0))
        for step in steps:
            step.run(state)
        torch.testing.assert_close(given["out"].double(), exact["out"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("places_first", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("shape", "count"), [((5,), 7), ((1,), 1), ((3, 19), 8), ((2, 3, 6), 1), ((16, 9), 1)]
)
def test_take_along(shape, count, constant, places_first):
    """Places between, outside and none; of any form of operand, and shared by all rows."""
    rng = np.random.default_rng(count)
    op = TakeAlong(places_first=places_first)
    for batch in BATCHES:
        x, places = random_operand(rng, shape), random_operand(rng, (*shape[:-1], count))
        shared = Operand(places.shape, (*[0] * (len(shape) - 1), 1), 2)
        for at in (places, shared):
            operands = [at, x] if places_first else [x, at]
            check(rng, op, operands, operands[1:] if constant else (), batch, scale=4.0)
    table = Operand(shape, (*[1] * (len(shape) - 1), math.prod(shape[:-1])), 0)
    read = [shared, table] if places_first else [table, shared]
    check(rng, op, read, scale=4.0)


def test_take_along_a_place_that_is_no_number():
    x, at, out = View("x", 0, 5), View("at", 0, 7), View("out", 0, 7)
    operands = (Operand.whole(5), Operand.whole(7))
    step = p.TensorStep("s", TakeAlong(), (x, at), (), operands, out)
    group = CpuGroup(made_program({"x": 5, "at": 7, "out": 7}, [step]), [step], frozenset(), 1)
    where = torch.tensor([[-1.0, 5.0, 4.9, -0.5, math.nan, math.inf, 1e30]])
    given = {"x": torch.arange(5.0)[None], "at": where, "out": torch.zeros(1, 7)}
    group.run(State(given, {}, torch.empty(0)), 1)
    nan = math.nan
    wanted = torch.tensor([[nan, nan, 4.0, 0.0, nan, nan, nan]])
    torch.testing.assert_close(given["out"], wanted, equal_nan=True)


def test_what_has_no_kernel_is_left_to_torch():
    x, out = View("x", 0, 6), View("out", 0, 6)
    places = p.TensorStep("s", TakeAlong(), (x, x), (), (Operand.whole(6),) * 2, out)
    top = p.TensorStep("t", TopK(6), (x,), (), (Operand.whole(6),), out)
    copy = p.Copy("copy", x, out)
    program = made_program({"x": 6, "out": 6}, [places])
    assert [is_native(program, s) for s in (places, top, copy)] == [True, False, True]
    assert find_groups(program, [copy, top, copy, copy]) == [[copy], [top], [copy, copy]]


@pytest.mark.parametrize(
    ("op", "operand", "out", "message"),
    [
        (Softmax((0,)), Operand((7,), (1,)), View("out", 0, 6), "reads column 6 of 6"),
        (Softmax((0,)), Operand((6,), (1,)), View("out", 1, 6), "writes columns 1 to 7 of 6"),
        (Take((6,), 0), Operand((6,), (1,)), View("out", 0, 1), "place 6 is outside an axis of 6"),
        (Map(("add", "x0", "x1")), Operand((6,), (1,)), View("out", 0, 6), "names x1"),
        (TakeAlong(), Operand((6,), (1,)), View("out", 0, 6), "has two operands"),
    ],
)
def test_steps_that_do_not_fit_are_refused(op, operand, out, message):
    step = p.TensorStep("s", op, (View("x", 0, 6),), (), (operand,), out)
    with pytest.raises(ValueError, match=message):
        CpuGroup(made_program({"x": 6, "out": 6}, [step]), [step], frozenset(), 1)


def test_places_that_do_not_fit_are_refused():
    x = _core.TensorOperand([2, 3], [3, 1], 0)
    buffers = [_core.GroupBuffer(6), _core.GroupBuffer(6)]
    for places, message in (
        (_core.TensorOperand([3, 2], [2, 1], 0), "axes before the last"),
        (_core.TensorOperand([], [], 0), "needs one"),
    ):
        step = _core.GroupStep(_core.TakeAlongOp(False), [0, 0], [x, places], 1)
        with pytest.raises(ValueError, match=message):
            _core.TensorGroup(buffers, [step], 1)


def test_matrices_that_do_not_fit_are_refused():
    step = p.Copy("s", View("x", 0, 6), View("out", 0, 6))
    group = CpuGroup(made_program({"x": 6, "out": 6}, [step]), [step], frozenset(), 1).native
    x = np.zeros((3, 6), np.float32)
    for matrices, message in (
        ([x], "2 buffers was given 1"),
        ([x, None], "buffer 1 of a group is missing"),
        ([x, np.zeros((3, 7), np.float32)], "6 wide"),
        ([x, np.zeros((4, 6), np.float32)], "length 3"),
        ([x, np.zeros((6, 3), np.float32).T], "contiguous"),
        ([x, x.astype(np.float64)], "contiguous float32"),
    ):
        with pytest.raises(ValueError, match=message):
            group.run(matrices, 3)
    with pytest.raises(ValueError, match="no loops named sse9"):
        _core.TensorGroup([], [], 1, "sse9")
