"""What a disk may hold after a power loss: POSIX's least promise, replayed from traced calls.

What `fsync` of a file pushed is there; of later writes nothing, half or all is. What `fsync` of a
folder pushed are its entries; each later change of an entry is there or not, whatever came of the
others. A rename is one change: it never leaves both names or none.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fault_shim import Call


@dataclass
class File:
    """Content as processes see it, and as the disk has it (None: the file was never synced)."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass
class Folder:
    """Entries as processes see them, as the disk has them, and the changes in between."""

    entries: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


@dataclass
class Change:
    """One change of a folder: `removed` is gone, `name` is `node` (None: nothing is made)."""

    kind: str  # "make", "remove" or "rename"
    name: str | None
    node: File | Folder | None
    removed: str | None

    def apply(self, entries: dict[str, File | Folder]) -> None:
        if self.removed is not None:
            entries.pop(self.removed, None)
        if self.name is not None and self.node is not None:
            entries[self.name] = self.node


# Which of the changes that were not synced the disk has, and which part of unsynced content.
Survival = Callable[[Change], bool]
MODELS: dict[str, tuple[Survival, float]] = {
    "nothing unsynced": (lambda change: False, 0.0),
    "entries without content": (lambda change: True, 0.0),
    "entries with half of the content": (lambda change: True, 0.5),
    "all but removals": (lambda change: change.kind != "remove", 1.0),
    "removals alone": (lambda change: change.kind == "remove", 0.0),
    "all but renames": (lambda change: change.kind != "rename", 1.0),
}


def random_model(seed: int) -> tuple[Survival, float]:
    """Each change survives or not by the toss of a coin."""
    coin = random.Random(seed)
    return lambda change: coin.random() < 0.5, coin.choice([0.0, 0.5, 1.0])


class Disk:
    """A folder under replay."""

    def __init__(self, root: Path, state: Path) -> None:
        """The folder that processes see at `root`; it begins as `state`, all of it synced."""
        self.root = root
        self.top = _load(state)
        self._open: dict[int, File | Folder] = {}

    def replay(self, calls: Iterable[Call]) -> None:
        """Follow the calls of a process."""
        for call in calls:
            self._follow(call)

    def crash(self) -> None:
        """The process that was followed is gone."""
        self._open.clear()

    def write(self, target: Path, model: tuple[Survival, float]) -> None:
        """Write what is left after a power loss now into `target`."""
        _write(self.top, target, *model)

    def _follow(self, call: Call) -> None:
        node: File | Folder | None
        if call.op in ("open", "create", "truncate"):
            parent, name = self._parent(call.path)
            node = self.top if call.path == str(self.root) else parent.entries.get(name)
            if node is None:
                node = File()
                self._change(parent, Change("make", name, node, None))
            elif call.op == "truncate" and isinstance(node, File):
                node.content.clear()
            self._open[call.fd] = node
        elif call.op == "write":
            node = self._open[call.fd]
            assert isinstance(node, File)
            at = len(node.content) if call.at < 0 else call.at
            node.content[at : at + len(call.data)] = call.data
        elif call.op == "cut":
            node = self._open[call.fd]
            assert isinstance(node, File)
            del node.content[call.at :]
        elif call.op == "fsync":
            self._sync(self._open[call.fd])
        elif call.op == "close":
            self._open.pop(call.fd, None)
        elif call.op == "mkdir":
            parent, name = self._parent(call.path)
            self._change(parent, Change("make", name, Folder(), None))
        elif call.op in ("unlink", "rmdir"):
            parent, name = self._parent(call.path)
            self._change(parent, Change("remove", None, None, name))
        elif call.op == "rename":
            parent, name = self._parent(call.path)
            other, new = self._parent(call.to)
            assert parent is other, "renames across folders are not replayed"
            self._change(parent, Change("rename", new, parent.entries[name], name))
        else:
            raise AssertionError(f"{call.op} is not replayed")

    def _parent(self, path: str) -> tuple[Folder, str]:
        node: File | Folder = self.top
        *folders, name = Path(path).relative_to(self.root).parts or ("",)
        for part in folders:
            assert isinstance(node, Folder)
            node = node.entries[part]
        assert isinstance(node, Folder)
        return node, name

    @staticmethod
    def _change(folder: Folder, change: Change) -> None:
        change.apply(folder.entries)
        folder.changes.append(change)

    @staticmethod
    def _sync(node: File | Folder) -> None:
        if isinstance(node, File):
            node.synced = bytes(node.content)
        else:
            node.synced = dict(node.entries)
            node.changes.clear()


def _load(path: Path) -> Folder:
    entries: dict[str, File | Folder] = {}
    for child in path.iterdir():
        if child.is_dir():
            entries[child.name] = _load(child)
        else:
            content = child.read_bytes()
            entries[child.name] = File(bytearray(content), content)
    return Folder(entries, dict(entries))


def _write(folder: Folder, target: Path, survives: Survival, share: float) -> None:
    target.mkdir()
    entries = dict(folder.synced)
    for change in folder.changes:
        if survives(change):
            change.apply(entries)
    seen: set[int] = set()
    for name, node in entries.items():
        if isinstance(node, Folder):
            _write(node, target / name, survives, share)
        elif id(node) not in seen:  # a rename that is lost in part leaves one name
            seen.add(id(node))
            (target / name).write_bytes(_content(node, share))


def _content(file: File, share: float) -> bytes:
    if file.synced == file.content:
        return file.synced
    if not share:
        return file.synced
    pairs = zip(file.synced, file.content, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return bytes(file.content[: max(same, int(len(file.content) * share))])
