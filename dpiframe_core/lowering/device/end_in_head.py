"""Pass for a device: the last step is a Head, since the head's kernel writes the scores."""

from __future__ import annotations

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Head
from dpiframe_core.program.views import View


def end_in_head(program: Program) -> Program:
    """Append a Head over the logit where something else makes it."""
    if isinstance(program.steps[-1], Head) and program.steps[-1].out == program.output:
        return program
    out = View("head.logit", 0, 1)
    head = Head("head.logit", (), (program.output,), (), None, out)
    buffers = {**program.buffers, out.buffer: 1}
    return program.changed(steps=(*program.steps, head), buffers=buffers, output=out)
