"""No secret in a text, a record, an argument that others see, or any output of a job."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import psutil
import pyarrow.parquet as pq
import pytest
import ray
from job_cases import with_value
from running_job import Case

from pipeline.config.job import JobConfig, resolved_yaml
from pipeline.redaction import redacted, redacted_data, without_credentials
from pipeline.tracking.mlflow_store.sender_process import store_environment

ROOT = Path(__file__).resolve().parents[2]
SECRET, TOKEN = "pw-Zq81kX/tT", "tok-9f8e7d6c5b4a"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://bob:secret@host:80/x", "http://host:80/x"),
        ("at 'http://bob:p@ss@host/x', twice", "at 'http://host/x', twice"),
        ("mysql://bob:a/b@host/db fails", "mysql://host/db fails"),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("https://host/api?access_token=abc&n=1", "https://host/api?access_token=***&n=1"),
        ("override 'mlflow_password=abc' is", "override 'mlflow_password=***' is"),
        ('{"api_key": "abc", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("sqlite:////data/m@x/mlflow.db", "sqlite:////data/m@x/mlflow.db"),
        ("key_columns: [row_id] of part-u000001.parquet", None),
    ],
)
def test_texts_are_shown_without_secrets(text: str, shown: str | None) -> None:
    assert redacted(text) == (text if shown is None else shown)


def test_a_password_is_hidden_wherever_it_occurs_once_it_was_seen() -> None:
    assert without_credentials("http://bob:hidden%40word@host") == "http://host"
    assert redacted("auth ('bob', 'hidden@word') failed") == "auth ('bob', '***') failed"


def test_values_of_secret_variables_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abcdefgh12")
    monkeypatch.setenv("MY_TOKEN_FILE", "/data/token-file")
    data = {"a": ["x abcdefgh12", 7, None], "token": "a column", "path": "/data/token-file"}
    assert redacted_data(data) == data | {"a": ["x ***", 7, None]}


def test_a_configuration_without_secrets_is_shown_as_it_is() -> None:
    config = JobConfig(bundle="b", input="i", output="o", mlflow_uri="http://host:5000")
    assert config.public() == config.model_dump(mode="json")
    secret = config.model_copy(update={"mlflow_uri": "http://bob:secret@host:5000"})
    assert resolved_yaml(secret) == resolved_yaml(config)


def test_mlflow_gets_user_and_password_apart_from_its_address() -> None:
    assert store_environment("https://bob:a%40b@host/x", {}) == {
        "MLFLOW_TRACKING_URI": "https://host/x",
        "MLFLOW_TRACKING_USERNAME": "bob",
        "MLFLOW_TRACKING_PASSWORD": "a@b",
    }
    given = {"MLFLOW_TRACKING_USERNAME": "eve"}
    assert store_environment("https://bob:x@host", given) == {"MLFLOW_TRACKING_URI": "https://host"}
    for uri in ("sqlite:////x/mlflow.db", "mysql://bob:x@host/db"):
        assert store_environment(uri, {}) == {"MLFLOW_TRACKING_URI": uri}


def test_others_do_not_see_the_secrets_of_a_command_line() -> None:
    code = "from pipeline.redaction import redact_process; redact_process(); input()"
    command = [sys.executable, "-c", code, "mlflow_uri=http://bob:secret@host", "x=1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*command, "last"], cwd=ROOT, **pipes) as process:
        try:
            line = ""  # as it is while the program is being started
            while not line or "secret" in line:
                assert process.poll() is None
                line = " ".join(psutil.Process(process.pid).cmdline()).rstrip()
            assert line.endswith("mlflow_uri=http://host x=1 last")
        finally:
            process.communicate(b"\n")


class Answer(http.server.BaseHTTPRequestHandler):
    """A server that has no MLflow, and names in its answer what it was told."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization", ""))
        self.send_response(500)
        self.end_headers()
        self.wfile.write(f"no {self.headers.get('Authorization')} {SECRET} {TOKEN}".encode())

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    """Address of such a server, with user and password."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as answering:
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        password = SECRET.replace("/", "%2F")
        yield f"http://bob:{password}@127.0.0.1:{answering.server_port}"
        answering.shutdown()


def outputs(case: Case) -> dict[str, bytes]:
    """All files that the job and Ray wrote, and what they printed; not the job's own input."""
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    paths = [p for folder in (case.folder, session) for p in folder.rglob("*") if p.is_file()]
    paths = [path for path in paths if path.name != "job.yaml"]
    return {str(path): path.read_bytes() for path in paths}


def told(content: bytes) -> bool:
    words = [SECRET, SECRET.replace("/", "%2F"), TOKEN]
    return any(word.encode() in content for word in words)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["server", "sqlite", "failing"])
def test_no_output_of_a_job_holds_a_secret(
    tmp_path: Path, ray_session: str, server: str, kind: str
) -> None:
    database = tmp_path / "mlflow.db"
    keys = {"tracking": True, "mlflow_uri": server, "run_name": f"nightly {TOKEN}"}
    if kind == "sqlite":
        keys["mlflow_uri"] = f"sqlite:///{database}"
    case = Case(tmp_path, ray_session, shards=1, rows=100, **keys)
    if kind == "failing":
        spoiled = with_value(case.table, "C2", 25, 99)  # no footer tells
        shard = tmp_path / "input/shard-000.parquet"
        pq.write_table(spoiled, shard, row_group_size=2, write_statistics=False)
    environment = {"SERVICE_TOKEN": TOKEN, "NO_PROXY": "*", "HOME": str(tmp_path)}
    seen: set[str] = set()
    argument = f"baseline_run={server}"
    with case.start(argument, environment=environment) as job:
        began = psutil.Process(job.process.pid)
        while not job.ended():
            for process in [began, *began.children(recursive=True)] if began.is_running() else []:
                try:
                    line = " ".join(process.cmdline())
                except psutil.Error:
                    continue
                if "jobs.cli" not in line or "http://127" in line:  # its first moment is its own
                    seen.add(line)
            threading.Event().wait(0.02)
        code = job.wait()

    assert code == (3 if kind == "failing" else 0), job.text()
    found = outputs(case)
    assert [path for path, content in found.items() if told(content)] == []
    assert [line for line in seen if told(line.encode())] == []
    assert any("mlflow_store.sender" in line for line in seen)
    assert database.exists() == (kind == "sqlite")
    if kind == "server":
        assert b"sender.log" in os.fsencode(" ".join(found))
        assert any(text.startswith("Basic ") for text in Answer.seen)
