"""Folders of shards: all or none, one writer, nothing left behind."""

from __future__ import annotations

import pytest

from pipeline.data.shards import ShardFolder
from pipeline.errors import ConfigError, ResumableError


def test_shards_appear_together(tmp_path):
    with ShardFolder(tmp_path / "out") as folder:
        folder.path(0).write_bytes(b"0")
        folder.path(1).write_bytes(b"1")
        assert not list((tmp_path / "out").glob("*.parquet"))
    names = [path.name for path in sorted((tmp_path / "out").iterdir())]
    assert names == ["shard-00000.parquet", "shard-00001.parquet"]


@pytest.mark.parametrize("there", [True, False])
def test_a_fault_leaves_the_output_as_it_was(tmp_path, there):
    if there:
        (tmp_path / "out").mkdir()
    with pytest.raises(ResumableError, match="nothing was written"), ShardFolder(tmp_path / "out"):
        raise OSError("disk full")
    assert (tmp_path / "out").exists() == there
    assert not there or not list((tmp_path / "out").iterdir())


def test_the_hidden_folder_of_a_killed_run_is_removed(tmp_path):
    (tmp_path / "out" / ".staging-0123456789ab").mkdir(parents=True)
    with ShardFolder(tmp_path / "out") as folder:
        folder.path(0).write_bytes(b"0")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["shard-00000.parquet"]


def test_a_second_writer_is_refused(tmp_path):
    with ShardFolder(tmp_path / "out") as folder:
        folder.path(0).write_bytes(b"0")
        with (
            pytest.raises(ConfigError, match="another run is writing"),
            ShardFolder(tmp_path / "out"),
        ):
            pass
    assert (tmp_path / "out" / "shard-00000.parquet").exists()
