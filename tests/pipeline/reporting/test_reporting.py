"""JSON summaries, events, notifications: what schedulers and alerts read."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from job_cases import tiny_bundle, write_config, write_shards

import pipeline
from pipeline.config.job import load_config, resolved_yaml
from pipeline.errors import ConfigError
from pipeline.planning.plan import make_plan
from pipeline.redaction import redacted
from pipeline.scoring.job import JobResult

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/operations.md").read_text()
SECRET = "T0SECRET/B0/notify"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 1, 111, 19)
    write_config(tmp_path, runner="local")
    return tmp_path


def dpiframe(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.argv[1:] = {list(arguments)!r}; from jobs.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100
    )


def documented(command: str) -> set[str]:
    """The keys of a command's JSON in the table."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {command} |")]
    return {part.split("`")[1] for part in row.split("|")[2].split(",") if "`" in part}


@pytest.mark.slow
def test_json_summaries_and_events(folder: Path) -> None:
    job, output = str(folder / "job.yaml"), str(folder / "output")
    done = dpiframe("score", job, "--dry-run", "--json")
    planned = json.loads(done.stdout)
    assert set(planned) == documented("`score --dry-run --json`")
    assert (planned["rows"], planned["done_units"], planned["sizes"]["scorers"]) == (111, 0, 1)

    done = dpiframe("score", job, "price_per_hour=3.6", "--json", "--log-format", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["exit_code"], found["rows"]) == (0, 0, 111), done.stderr
    assert set(found) == documented("`score --json`")
    assert found["cost"] == pytest.approx(found["seconds"] / 1000)
    assert found["cost_per_million_rows"] > found["cost_per_million_rows_without_startup"] > 0
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [event["event"] for event in events] == [
        *("start", "plan", "sizes", "progress", "finish")
    ]
    assert all({"time", "level", "event", "message"} <= set(event) for event in events)
    assert events[1]["identity"] == planned["identity"] and events[3]["rows"] == 111

    found = json.loads(dpiframe("verify", output, "--json").stdout)
    assert set(found) == documented("`verify --json`")
    assert (found["status"], found["exit_code"], found["problems"]) == ("whole", 0, [])
    next(Path(output).glob("part-*")).unlink()
    done = dpiframe("verify", output, "--json")
    assert (done.returncode, json.loads(done.stdout)["status"]) == (3, "damaged")


@pytest.mark.slow
def test_errors_are_json_too(folder: Path) -> None:
    done = dpiframe("score", str(folder / "job.yaml"), "unit_row=7", "--json")
    found = json.loads(done.stdout)
    assert set(found) == documented("any that fails")
    assert (done.returncode, found["exit_code"], found["status"]) == (2, 2, "failed")
    assert "did you mean 'unit_rows'" in found["message"] and "error: " in done.stderr
    done = dpiframe("score", str(folder / "none.yaml"), "--log-format", "json")
    assert (done.returncode, done.stdout) == (2, "")
    event = json.loads(done.stderr)
    assert (event["event"], event["level"], event["exit_code"]) == ("error", "error", 2)
    done = dpiframe("verify", str(folder / "none"), "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]) == (2, "ConfigError")


class Hook(BaseHTTPRequestHandler):
    """Keeps what is posted; answers slowly, or with an error, as its server says."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server: Any = self.server
        server.posted.append((self.path, json.loads(body)))
        time.sleep(server.slow)
        self.send_response(server.answer)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing is to be printed."""


@pytest.fixture
def hook() -> Any:
    server: Any = HTTPServer(("127.0.0.1", 0), Hook)
    server.posted, server.slow, server.answer = [], 0.0, 200
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def address_of(hook: Any) -> str:
    return f"http://127.0.0.1:{hook.server_port}/services/{SECRET}"


def test_command_and_webhook_get_the_summary(folder: Path, hook: Any) -> None:
    keep = f"sh -c 'cat > {folder}/told; echo $DPIFRAME_STATUS $DPIFRAME_EXIT_CODE >> {folder}/how'"
    keys = [f"notify_webhook={address_of(hook)}", f'notify_command="{keep}"']
    result = pipeline.score(folder / "job.yaml", keys)
    ((path, posted),) = hook.posted
    assert path.endswith(SECRET)
    assert posted == json.loads((folder / "told").read_text()) == result.summary()
    with pytest.raises(ConfigError):
        pipeline.score(folder / "job.yaml", [*keys, "unit_rows=40"])
    told = json.loads((folder / "told").read_text())
    assert (told["exit_code"], told["status"], told["error"]) == (2, "failed", "ConfigError")
    assert (folder / "how").read_text() == "scored 0\nfailed 2\n"


def test_failing_notifications_change_nothing(
    folder: Path, hook: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.scoring.job.NOTIFY_SECONDS", 0.5)
    hook.slow, hook.answer = 0.0, 500
    keys = [f"notify_webhook={address_of(hook)}", "notify_command=sleep 60"]
    before = time.monotonic()
    assert pipeline.score(folder / "job.yaml", keys).rows == 111
    assert time.monotonic() - before < 10
    assert "notify_webhook answered 500" in caplog.text
    assert "notify_command took more than 0.5 s" in caplog.text
    caplog.clear()
    hook.slow = 3.0
    keys = [f"notify_webhook={address_of(hook)}", "notify_command=/none/such"]
    assert pipeline.score(folder / "job.yaml", keys).status == "complete before"
    assert "notify_command did not start" in caplog.text
    assert "notify_webhook cannot be reached" in caplog.text or "is left" in caplog.text
    assert SECRET not in caplog.text


def test_the_address_of_a_webhook_is_a_secret(folder: Path) -> None:
    address = f"https://hooks.example.com/{SECRET}"
    config = load_config(folder / "job.yaml", [f"notify_webhook={address}"])
    assert config.notify_webhook == address
    assert SECRET not in resolved_yaml(config) + json.dumps(config.public())
    assert yaml.safe_load(resolved_yaml(config))["notify_webhook"] == "***"
    assert make_plan(config).for_workers.config.notify_webhook is None
    assert SECRET not in redacted(f"cannot reach {address}: refused")
    with pytest.raises(ConfigError, match="must be an http or https address") as error:
        load_config(folder / "job.yaml", [f"notify_webhook=ftp://{SECRET}"])
    assert SECRET not in str(error.value)


def test_the_page_names_the_fields_of_the_result() -> None:
    assert set(JobResult.model_fields) | {"exit_code"} == documented("`score --json`")
