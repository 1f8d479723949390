"""Every step of a program has a way onto a GPU."""

from __future__ import annotations

import re
from pathlib import Path

from dpiframe_core.engine.cuda.device_program import ADD
from dpiframe_core.lowering import DEVICE_FORM
from dpiframe_core.lowering.device.batch_norm_to_affine import batch_norm_to_affine
from dpiframe_core.program.steps import BatchNorm, Step, StepGroup

TABLE = Path(__file__).resolve().parents[4] / "csrc/kernels/elementwise/steps.cu"


def kinds() -> set[type[Step]]:
    """Every kind of step."""
    return {*Step.__subclasses__(), *StepGroup.__subclasses__()} - {StepGroup}


def test_steps_and_the_table_of_kernels_name_each_other():
    rows = re.search(r"kSteps = \{(.*?)\};", TABLE.read_text(), re.DOTALL)
    assert rows is not None
    names = re.findall(r'\{"(\w+)", ', rows[1])
    assert sorted(names) == sorted(step.kernel for step in kinds() if step.kernel)


def test_steps_without_such_a_kernel_have_a_way_of_their_own():
    assert batch_norm_to_affine in DEVICE_FORM
    others = {step for step in kinds() if not step.kernel}
    assert others == {*ADD, BatchNorm}
