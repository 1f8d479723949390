"""Damages archives of torch.export: each is read, or refused by ModelImportError, and neither takes
5 seconds or more memory than 4 times the file and 64 MiB."""

from __future__ import annotations

import copy
import json
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from archive_models import BATCH, Matrix, Tower, members, packed, save, tower_inputs
from fuzzing import change, changed, main

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.pt2.archive import read_archive

MOST_SECONDS = 5
MOST_BYTES = 64 << 20
VALUES: list[Any] = [
    None, True, 0, 1, -1, 7, 2**31, 2**62, 2**63, -(2**70), 10**4000, 0.5, 1e308, "", "NaN",
    [], {}, [[]], [None] * 99, {"as_int": 2**60}, {"as_name": "sym_size_int"}, {"as_none": True},
    {"as_expr": {"expr_str": "__import__('os').abort()"}}, {"as_tensor": {"name": "x"}},
    {"as_string": "') or exit('"}, {"as_graph": {}}, {"as_custom_obj": {"name": "x"}},
]  # fmt: skip
TEXTS = [
    "torch.ops.aten.save.default", "torch.ops.aten.from_file.default", "x'); exit(1) #",
    "torch.ops.higher_order.cond", "torch.ops.aten.__class__.default", "_operator.add",
    "_operator.attrgetter", "builtins.eval", "torch.ops.aten.relu.default", "math.trunc",
    "../../../etc/passwd", "weight_0", "weight_1", "a.b.c", "forward", "self", "class", "input",
    "x" * 5000, "a." * 5000, "1" * 5000, "x_" + "9" * 5000, "x\n\ty",
    "torch.ops.aten.set_.default", '"\\', "\0",
    "ﬁ", "[" * 500, '[1, {"type": null, "context": null, "children_spec": []}]', "as_tensor",
]  # fmt: skip


def archives() -> list[tuple[bytes, dict[str, bytes]]]:
    """Archives that are right: their bytes, and their members."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saved = [
            save(folder / "tower.pt2", Tower(), (tower_inputs(),)),
            save(folder / "matrix.pt2", Matrix(), (torch.rand(BATCH, 3),)),
        ]
        return [(path.read_bytes(), members(path)) for path in saved]


def archive_cases(
    found: list[tuple[bytes, dict[str, bytes]]],
) -> Callable[[Path, np.random.Generator], None]:
    """What writes a damaged archive."""

    def write(path: Path, random: np.random.Generator) -> None:
        data, parts = found[random.integers(0, len(found))]
        kind = random.random()
        if kind < 0.1:
            path.write_bytes(changed(data, random, 8))
        elif kind < 0.2:
            end = bytearray(data[-4096:])  # the directory
            for _ in range(random.integers(1, 9)):
                change(end, int(random.integers(0, len(end))), random, grow=False)
            path.write_bytes(data[:-4096] + end)
        elif kind < 0.4:
            name = _member(parts, random)
            path.write_bytes(packed(parts | {name: changed(parts[name], random, 8)}))
        elif kind < 0.5:
            path.write_bytes(_other_members(parts, random))
        else:
            name = _member({n: d for n, d in parts.items() if n.endswith(".json")}, random)
            path.write_bytes(packed(parts | {name: _other_json(parts[name], random)}))

    return write


def _member(parts: dict[str, bytes], random: np.random.Generator) -> str:
    """A member; every second one is the program, which has most in it."""
    programs = [name for name in parts if "/models/" in name]
    names = programs if random.random() < 0.5 else list(parts)
    return names[random.integers(0, len(names))]


def _other_members(parts: dict[str, bytes], random: np.random.Generator) -> bytes:
    """Members that are missing, renamed, swapped, empty, too many or compressed."""
    found = dict(parts)
    for _ in range(random.integers(1, 4)):
        name, other = (list(found)[i] for i in random.integers(0, len(found), 2))
        kind = random.integers(0, 6)
        if kind == 0 and len(found) > 1:
            del found[name]
        elif kind == 1:
            text = TEXTS[random.integers(0, len(TEXTS))]
            found[text.replace("\0", "?")] = found[name]
        elif kind == 2:
            found[name], found[other] = found[other], found[name]
        elif kind == 3:
            found[name] = found[name][: random.integers(0, len(found[name]) + 1)]
        elif kind == 4:
            found[name.rsplit("/", 1)[0] + "/" + other.rsplit("/", 1)[-1]] = found[name]
        else:
            found |= {f"{name}{i}": b"" for i in range(300)}
    compression = zipfile.ZIP_DEFLATED if random.random() < 0.1 else zipfile.ZIP_STORED
    return packed(found, compression)


def _other_json(data: bytes, random: np.random.Generator) -> bytes:
    """JSON where up to 3 values are others, gone, doubled, or those of another place."""
    content = json.loads(data)
    for _ in range(random.integers(1, 4)):
        if not content:
            break
        holder, key = _place(content, random)
        from_holder, from_key = _place(content, random)
        kind = random.integers(0, 6)
        if kind == 0:
            holder[key] = copy.deepcopy(VALUES[random.integers(0, len(VALUES))])
        elif kind == 1:
            holder[key] = TEXTS[random.integers(0, len(TEXTS))]
        elif kind == 2:
            del holder[key]
        elif kind == 3:
            holder[key] = json.loads(json.dumps(from_holder[from_key]))
        elif kind == 4 and isinstance(holder, list):
            holder += [holder[key]] * int(random.integers(1, 99))
        elif kind == 4:
            holder[TEXTS[random.integers(0, len(TEXTS))]] = holder[key]
        elif isinstance(holder[key], int):
            holder[key] += int(random.integers(-3, 4))
        elif isinstance(holder[key], str):
            holder[key] = changed(holder[key].encode(), random).decode(errors="replace")
    return json.dumps(content).encode()


def _place(content: Any, random: np.random.Generator) -> tuple[Any, Any]:
    """A value of the JSON, mostly a deep one, as what holds it and its key or index there."""
    while True:
        keys = list(content) if isinstance(content, dict) else range(len(content))
        key = keys[random.integers(0, len(keys))]
        if not (isinstance(content[key], dict | list) and content[key]) or random.random() < 0.1:
            return content, key
        content = content[key]


def attempt(path: Path) -> list[str]:
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before, start = _memory("VmRSS"), time.process_time()
    try:
        found = read_archive(path)
        outcome = "read" if found.inputs else "read, without inputs"
    except ModelImportError as error:
        assert str(path) in str(error), error
        outcome = "refused"
    seconds, used = time.process_time() - start, _memory("VmHWM") - before
    assert seconds < MOST_SECONDS, seconds
    assert used < 4 * path.stat().st_size + MOST_BYTES, used
    return [outcome]


def _memory(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise ValueError(name)


if __name__ == "__main__":
    right = archives()  # takes seconds, which are not those of the cases
    main(attempt, lambda _: archive_cases(right), __doc__)
