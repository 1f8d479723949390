"""Pass for a device: note the form of a program that a fused forward kernel could run as a whole.

It runs before sibling products are merged, while a layer is still one step. `Program.form` keeps
what it finds; the other passes work on the steps, since batches of sizes that the fused kernel does
not take run as steps. Whether a kernel takes the form in a precision, the engine decides
(engine/cuda/fused.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpiframe_core.lowering.place_concat import place_concat
from dpiframe_core.program.program import CollapsedCross, CrossForm, Layer, MlpForm, Program
from dpiframe_core.program.steps import CrossCombine, CrossScalar, Head, Linear, Lookup, Step
from dpiframe_core.program.views import View, Weight


def find_form(program: Program) -> Program:
    """Note the form of the whole program, if it has one."""
    placed = place_concat(program)
    return replace(program, form=_mlp_form(placed) or _cross_form(placed))


def _mlp_form(program: Program) -> MlpForm | None:
    """WDL, DeepFM and DCN without dense features."""
    ends = _ends(program)
    if ends is None:
        return None
    lookup, x0, head = ends
    layers, h = _relu_layers(program, x0)
    collapsed = _collapsed_cross(program, x0, head)
    cross, cross_steps = collapsed or (None, [])
    if head.products and cross is None:
        return None
    sums = [v for v in (lookup.wide_out, lookup.fm_out) if v is not None]
    if not _only(program, [lookup, *layers, *cross_steps, head]) or not layers:
        return None
    if [view for view, _ in head.dots] != [h] or not _same(head.scalars, sums):
        return None
    made = tuple(_layer(program, step) for step in layers)
    weight = program.weights[head.dots[0][1]]
    return MlpForm(lookup, made, weight, _number(program, head.bias), cross)


def _cross_form(program: Program) -> CrossForm | None:
    """DCNv2, cross network and MLP side by side, without dense features."""
    ends = _ends(program)
    if ends is None:
        return None
    lookup, x0, head = ends
    layers, h = _relu_layers(program, x0)
    cross, combines, x = _cross_layers(program, x0)
    sums = [v for v in (lookup.wide_out,) if v is not None]
    if not _only(program, [lookup, *layers, *cross, *combines, head]) or not layers or not cross:
        return None
    dots = dict(head.dots)
    if len(head.dots) != 2 or set(dots) != {x, h} or head.products or lookup.fm_out is not None:
        return None
    if not _same(head.scalars, sums):
        return None
    return CrossForm(
        lookup,
        tuple(_layer(program, step) for step in cross),
        program.weights[dots[x]],
        tuple(_layer(program, step) for step in layers),
        program.weights[dots[h]],
        _number(program, head.bias),
    )


def _ends(program: Program) -> tuple[Lookup, View, Head] | None:
    """The lookup that begins the program, its embeddings, and the head that ends it."""
    lookup, head = program.steps[0], program.steps[-1]
    if not isinstance(lookup, Lookup) or not isinstance(head, Head) or lookup.out is None:
        return None
    dims = sum(slot.dim for slot in lookup.slots if slot.table is not None)
    return (lookup, lookup.out, head) if dims == lookup.out.width else None


def _relu_layers(program: Program, x: View) -> tuple[list[Linear], View]:
    """The chain of products with ReLU from x on, and what the last one writes."""
    layers: list[Linear] = []
    while following := [s for s in program.readers(x) if isinstance(s, Linear) and _all_relu(s)]:
        if len(following) > 1 or following[0].x != x:
            break
        layers.append(following[0])
        x = layers[-1].out
    return layers, x


def _cross_layers(program: Program, x0: View) -> tuple[list[Linear], list[CrossCombine], View]:
    """DCNv2's cross layers from x0 on: products, combinations, and what the last one writes."""
    products, combines, x = [], [], x0
    made_by = program.producers()
    for step in program.steps:
        if isinstance(step, CrossCombine) and (step.x0, step.xl) == (x0, x):
            product = made_by.get(step.wx)
            if isinstance(product, Linear) and product.x == x and not product.relu:
                products.append(product)
                combines.append(step)
                x = step.out
    return products, combines, x


def _collapsed_cross(
    program: Program, x0: View, head: Head
) -> tuple[CollapsedCross, list[Step]] | None:
    """The cross network whose alpha times a number is the head's one product, and its steps."""
    if len(head.products) != 1:
        return None
    made_by = program.producers()
    steps = [made_by.get(view) for view in head.products[0]]
    scalar = next((s for s in steps if isinstance(s, CrossScalar)), None)
    dot = next((s for s in steps if isinstance(s, Linear)), None)
    dots = made_by.get(scalar.dots) if scalar else None
    if scalar is None or dot is None or not isinstance(dots, Linear):
        return None
    if any(s.x != x0 or s.relu or s.bias for s in (dots, dot)) or dot.out.width != 1:
        return None
    weights = program.weights
    found = CollapsedCross(weights[dots.weight], weights[scalar.shift], weights[dot.weight])
    return found, [scalar, dot, dots]


def _all_relu(step: Linear) -> bool:
    return step.relu == ((0, step.out.width),)


def _only(program: Program, steps: Sequence[Step]) -> bool:
    """Whether these are all steps of the program."""
    names = [step.name for step in steps]
    return sorted(names) == sorted(step.name for step in program.steps)


def _same(found: Sequence[View], wanted: Sequence[View]) -> bool:
    return sorted(map(str, found)) == sorted(map(str, wanted))


def _layer(program: Program, step: Linear) -> Layer:
    return Layer(program.weights[step.weight], program.weights[step.bias] if step.bias else None)


def _number(program: Program, bias: Weight | None) -> float:
    return float(program.weights[bias].astype(np.float32).item()) if bias else 0.0
