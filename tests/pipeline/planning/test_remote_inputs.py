"""Input in an object store, planned: listed, footers read, as part of the identity."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plan_jobs import encoded_spec, encoded_table, job, save, write

pytest.importorskip("moto")
from s3_server import BUCKET, s3_server

from pipeline.errors import ConfigError, ContractError
from pipeline.planning.inputs import list_inputs
from pipeline.planning.plan import make_plan
from pipeline.storage.object_store import ObjectStore

KEYS = ["day=1/part-0.parquet", "day=1/x/part-1.parquet", "day=2/part-2.PARQ", "day=2/y.parquet"]
HIDDEN = ["_SUCCESS", "day=1/_tmp/part-9.parquet", "day=2/.part-2.parquet", "day=2/notes.txt"]


@pytest.fixture(scope="module", autouse=True)
def endpoint() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture
def store(request: pytest.FixtureRequest) -> ObjectStore:
    return ObjectStore(f"s3://{BUCKET}/{request.node.name.replace('[', '/')}")


def parquet(table: pa.Table, group: int = 19) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=group)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("", KEYS),
        ("/day=1/", KEYS[:2]),
        ("/day=2/y.parquet", KEYS[3:]),
        ("/day=2/notes.txt", HIDDEN[3:]),
        ("/day=*", KEYS),
        ("/day=*/part-*.parquet", KEYS[:1]),
        ("/**/part-?.*", KEYS[:3]),
        ("/day=[1]/**", KEYS[:2]),
        ("/day=1/_tmp/*", HIDDEN[1:2]),
    ],
)
def test_an_address_gives_what_a_path_gives(tmp_path: Path, pattern: str, found: list[str]):
    store = ObjectStore(f"s3://{BUCKET}/tree")
    for key in [*KEYS, *HIDDEN]:
        store.put(key, b"")
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).touch()
    store.put("day=10/z", b"")  # not below day=1
    remote = list_inputs(job(tmp_path, input=store.address + pattern))
    assert remote == [store.path(key) for key in found]
    local = list_inputs(job(tmp_path, input=str(tmp_path) + pattern))
    assert local == [str(tmp_path / key) for key in found]


def test_a_plan_over_files_and_objects(tmp_path: Path, store: ObjectStore):
    save(tmp_path / "bundle", encoded_spec())
    write(tmp_path / "input" / "a.parquet", encoded_table(57))
    etag = store.put("b.parquet", parquet(encoded_table(38)))
    config = job(tmp_path, input=[str(tmp_path / "input"), f"{store.address}/"], unit_rows=38)
    plan = make_plan(config)
    assert [(f.path, f.etag, f.rows) for f in plan.files] == [
        (str(tmp_path / "input/a.parquet"), "", 57),
        (store.path("b.parquet"), etag, 38),
    ]
    assert [(u.etag, u.rows) for u in plan.units] == [("", 38), ("", 19), (etag, 38)]
    assert make_plan(config).identity == plan.identity
    store.put("b.parquet", parquet(encoded_table(38), group=2))
    assert make_plan(config).identity != plan.identity


def test_a_footer_longer_than_the_first_request(tmp_path: Path, store: ObjectStore):
    save(tmp_path / "bundle", encoded_spec())
    store.put("wide.parquet", parquet(encoded_table(3000), group=1))
    (file,) = make_plan(job(tmp_path, input=store.address)).files
    assert file.row_groups == 3000


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet" * 9999], ids=["0", "4", "long"])
def test_objects_that_are_no_parquet(tmp_path: Path, store: ObjectStore, content: bytes):
    save(tmp_path / "bundle", encoded_spec())
    store.put("x.parquet", content)
    with pytest.raises(ContractError, match=r"x\.parquet: .*(0 bytes|too few|no parquet)"):
        make_plan(job(tmp_path, input=store.address))


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("s3://no-such-bucket/x", "does not exist: no such object or bucket"),
        (f"s3://{BUCKET}/nothing", "is no object, and holds no"),
        (f"s3://{BUCKET}/nothing/*", "pattern .* matches no object"),
    ],
)
def test_addresses_without_input(tmp_path: Path, address: str, problem: str):
    with pytest.raises(ConfigError, match=problem):
        list_inputs(job(tmp_path, input=address))


def test_other_schemes_are_refused_with_advice(tmp_path: Path):
    with pytest.raises(ValueError, match=r"must be a path, or begin with one of .*mount another"):
        job(tmp_path, input=["hdfs://host/x"])
