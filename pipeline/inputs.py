"""The input files of a job: found, their footers read once, in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from pipeline.config import JobConfig
from pipeline.errors import ConfigError, ContractError
from pipeline.footer import CorruptFileError, FooterReader, Limits, StatisticsProblem
from pipeline.problems import ProblemList
from pipeline.records import Quarantined

_CHUNK = 64  # footers a task of the thread pool
_MAGIC_CHARACTERS = frozenset("*?[")


class InputFile(BaseModel):
    """One parquet file as its footer describes it. Times in nanoseconds, sizes in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    size: int
    mtime_ns: int
    footer_sha256: str
    rows: int
    row_group_rows: tuple[int, ...]
    # Arrow schema (any: pyarrow has no types), the same object in all files that have the same
    arrow_schema: Any = Field(exclude=True, repr=False)
    problems: tuple[StatisticsProblem, ...] = Field(default=(), exclude=True, repr=False)

    @property
    def row_groups(self) -> int:
        """Number of row groups."""
        return len(self.row_group_rows)


# One set for all files: pydantic would give each its own.
_ALL_FIELDS = set(InputFile.model_fields)


class InputScan(NamedTuple):
    """Readable files sorted by path, and those that the policy `quarantine` leaves out."""

    files: list[InputFile]
    quarantined: list[Quarantined]


class _Unreadable(NamedTuple):
    path: str
    reason: str
    corrupt: bool  # readable, but not parquet


def scan_inputs(config: JobConfig, limits: Limits | None = None) -> InputScan:
    """Find the input and read every footer once, in threads; `limits`: see `FooterReader`.

    Raises ConfigError when a path or pattern finds nothing; ContractError naming the files that
    cannot be read, or are corrupt under the policy `fail`.
    """
    paths = list_inputs(config)
    reader = FooterReader(limits)
    distinct = list(dict.fromkeys(paths))
    chunks = [distinct[i : i + _CHUNK] for i in range(0, len(distinct), _CHUNK)]
    with ThreadPoolExecutor(min(32, 4 * (os.cpu_count() or 1))) as pool:
        results = pool.map(lambda chunk: [_read(reader, path) for path in chunk], chunks)
        by_path = {result.path: result for chunk in results for result in chunk}
    bad = [result for result in by_path.values() if isinstance(result, _Unreadable)]
    quarantine = config.on_corrupt_file == "quarantine"
    refused = [file for file in bad if not (file.corrupt and quarantine)]
    if refused:
        raise ContractError(_refusal(refused, any(file.corrupt for file in refused)))
    files = [by_path[path] for path in paths]
    return InputScan(
        files=[file for file in files if isinstance(file, InputFile)],
        quarantined=[Quarantined(path=file.path, reason=file.reason) for file in bad],
    )


def list_inputs(config: JobConfig) -> list[str]:
    """Absolute paths, links resolved, sorted.

    One entry of the list finds a file once; a file that two entries find comes twice.
    """
    patterns = config.input if isinstance(config.input, list) else [config.input]
    found: list[str] = []
    for pattern in patterns:
        try:
            found += _expand(pattern)
        except OSError as error:
            raise ContractError(f"cannot look for input {pattern}: {error.strerror}") from None
    for path in found:
        if not path.isascii():
            _check_name(path)
    return sorted(found)


def _read(reader: FooterReader, path: str) -> InputFile | _Unreadable:
    try:
        footer = reader.read(path)
    except CorruptFileError as error:
        return _Unreadable(path, str(error), corrupt=True)
    except OSError as error:
        return _Unreadable(path, error.strerror or str(error), corrupt=False)
    return InputFile.model_construct(
        _ALL_FIELDS,
        path=path,
        size=footer.size,
        mtime_ns=footer.mtime_ns,
        footer_sha256=footer.sha256,
        rows=sum(footer.row_group_rows),
        row_group_rows=footer.row_group_rows,
        arrow_schema=footer.schema,
        problems=footer.problems,
    )


def _refusal(refused: list[_Unreadable], some_corrupt: bool) -> str:
    problems = ProblemList()
    for file in refused:
        problems.add(f"{file.path}: {file.reason}")
    advice = "repair or remove them"
    if some_corrupt:
        advice += ", or set on_corrupt_file to quarantine to leave corrupt files out"
    return f"{len(refused)} input file(s) cannot be read; {advice}:{problems}"


def _expand(pattern: str) -> list[str]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        found = sorted(set(_in_folder(path.resolve())))
        if not found:
            raise ConfigError(f"input folder {pattern} holds no *.parquet file, at any depth")
        return found
    if path.exists():
        if not path.is_file():
            raise ConfigError(f"input {pattern} is neither a file nor a folder")
        return [str(path.resolve())]
    if not _MAGIC_CHARACTERS & set(pattern):
        raise ConfigError(f"input {pattern} does not exist (looked in {Path.cwd()})")
    found = sorted(set(_matches(path.absolute())))
    if not found:
        raise ConfigError(f"input pattern {pattern} matches no file (looked in {Path.cwd()})")
    return found


def _matches(pattern: Path) -> Iterator[str]:
    """Files that match, and parquet files below the folders that match."""
    first = next(i for i, part in enumerate(pattern.parts) if _MAGIC_CHARACTERS & set(part))
    base, rest = Path(*pattern.parts[:first]), Path(*pattern.parts[first:])
    hidden_too = any(_hidden(part) for part in rest.parts)
    for path in base.glob(str(rest)):
        if not hidden_too and any(_hidden(part) for part in path.relative_to(base).parts):
            continue
        if path.is_dir():
            yield from _in_folder(path.resolve())
        else:
            yield str(path.resolve())


def _in_folder(folder: Path) -> Iterator[str]:
    """Parquet files below a folder; links are followed, but no folder is entered twice."""
    entered: set[tuple[int, int]] = set()
    waiting = [str(folder)]
    while waiting:
        name = waiting.pop()
        try:
            stat = Path(name).stat()
            if (stat.st_dev, stat.st_ino) in entered:
                continue
            entered.add((stat.st_dev, stat.st_ino))
            with os.scandir(name) as listing:
                entries = [entry for entry in listing if not _hidden(entry.name)]
        except OSError as error:
            raise ContractError(f"cannot list input folder {name}: {error.strerror}") from None
        for entry in entries:
            if entry.is_dir():
                waiting.append(entry.path)
            elif entry.name.endswith(".parquet"):
                linked = entry.is_symlink()
                yield str(Path(entry.path).resolve()) if linked else entry.path


def _hidden(name: str) -> bool:
    """Names by which tools mark files that are no data: .part.crc, _SUCCESS, _temporary."""
    return name.startswith((".", "_"))


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"input {path!r}: the file's name is not UTF-8; rename it") from None
