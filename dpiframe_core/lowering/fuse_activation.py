"""Pass: a ReLU after a product becomes the product's epilogue."""

from __future__ import annotations

from dataclasses import replace

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Linear, Relu


def fuse_activation(program: Program) -> Program:
    """Fuse every Relu whose input is a whole Linear that nothing else reads."""
    made_by = program.producers()
    steps = {step.name: step for step in program.steps}
    for relu in [s for s in program.steps if isinstance(s, Relu)]:
        linear = made_by.get(relu.x)
        if isinstance(linear, Linear) and program.only_reader(relu.x) is relu:
            steps[relu.name] = replace(linear, out=relu.out, relu=((0, relu.out.width),))
            del steps[linear.name]
    return program.changed(steps=tuple(steps.values()))
