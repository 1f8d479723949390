"""Pass: a ReLU behind a product becomes the product's epilogue."""

from __future__ import annotations

from dataclasses import replace

from dpiframe_core.program.rewrite import only_reader, producers
from dpiframe_core.program.steps import Linear, Program, Relu, changed


def fuse_activation(program: Program) -> Program:
    """Fuse every Relu whose input is a whole Linear that nothing else reads."""
    made_by = producers(program)
    steps = {step.name: step for step in program.steps}
    for relu in [s for s in program.steps if isinstance(s, Relu)]:
        linear = made_by.get(relu.x)
        if isinstance(linear, Linear) and only_reader(program, relu.x) is relu:
            steps[relu.name] = replace(linear, out=relu.out, relu=((0, relu.out.width),))
            del steps[linear.name]
    return changed(program, steps=tuple(steps.values()))
