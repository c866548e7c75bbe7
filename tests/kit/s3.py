"""A real S3 server for tests: seaweedfs, in a folder of its own. It can be killed, and started again with the same
objects."""

import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

KEY_ID = "tester"
SECRET = "the-secret-of-the-tester"
REGION = "us-east-1"
BUCKET = "shelves"
LONGEST_START_S = 120.0


class S3Address:
    """Where a server is, and what opens it."""

    def __init__(self, endpoint: str, *, anonymous: bool = False) -> None:
        """`anonymous`: it asks for no credentials. Then it answers the requests of GCS too, with its one bucket."""
        self.endpoint = endpoint
        self._anonymous = anonymous

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a user of this server sets."""
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def store(self, bucket: str) -> Any:
        """Access to a bucket, which exists when the first object is put into it."""
        from obstore.store import S3Store

        return S3Store(bucket, **self._options())

    def _options(self) -> Mapping[str, Any]:
        return {
            "endpoint": self.endpoint,
            **({"skip_signature": True} if self._anonymous else {"access_key_id": KEY_ID, "secret_access_key": SECRET}),
            "region": REGION,
            "virtual_hosted_style_request": False,
            "client_options": {"allow_http": True},
            "retry_config": {"max_retries": 0},
        }


class S3Server(S3Address):
    """`kill` and `start` may be called again and again. The address stays the same."""

    def __init__(self, folder: Path, *, anonymous: bool = False) -> None:
        self._ports = _free_ports(8)
        super().__init__(f"http://127.0.0.1:{self._ports[0]}", anonymous=anonymous)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        identity = {
            "name": KEY_ID,
            "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir()

    def start(self) -> None:
        names = [f"{part}.port{kind}" for part in ("s3", "filer", "master", "volume") for kind in ("", ".grpc")]
        ports = [f"-{name}={port}" for name, port in zip(names, self._ports, strict=True)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("weed")),
                    "server",
                    f"-dir={self._folder / 'data'}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    "-s3",
                    *([] if self._anonymous else [f"-s3.config={self._folder / 's3.json'}"]),
                    "-s3.iam=false",
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    "-master.volumeSizeLimitMB=64",
                    "-master.telemetry=false",
                    "-master.electionTimeout=1s",
                    "-volume.max=200",
                    *ports,
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "TMPDIR": str(self._folder)},
            )
        self._await_answers()

    def _await_answers(self) -> None:
        """Wait until the server stores and returns an object."""
        store, deadline = self.store(BUCKET if self._anonymous else "probe"), time.monotonic() + LONGEST_START_S
        while True:
            try:
                if self._anonymous:
                    self._make_bucket()
                store.put("probe", b"1")
                if bytes(store.get("probe").bytes()) == b"1":
                    return
            except Exception as error:
                ended = self._process is None or self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    raise RuntimeError((self._folder / "log").read_text(errors="replace")[-3000:]) from error
            time.sleep(0.1)

    def _make_bucket(self) -> None:
        """Nobody may make one without credentials, except by the server's own interface to folders."""
        address = f"http://127.0.0.1:{self._ports[2]}/buckets/{BUCKET}/"
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(urllib.request.Request(address, method="POST")):
            pass

    def kill(self) -> None:
        # It takes long to end by SIGTERM.
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class Prefix:
    """A place of its own in the bucket of a server."""

    def __init__(self, server: S3Address) -> None:
        self.server = server
        self.name = f"t{uuid.uuid4().hex}"
        self._store = server.store(BUCKET)

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.name}"

    def put(self, key: str, data: bytes) -> str:
        """The URL of the object."""
        self._store.put(f"{self.name}/{key}", data)
        return f"{self.url}/{key}"

    def remove(self, key: str) -> None:
        self._store.delete(f"{self.name}/{key}")

    def put_odd(self, key: str, data: bytes) -> None:
        """Put an object whose key the library cannot use, such as one that ends with a slash."""
        path = quote(f"/{BUCKET}/{self.name}/{key}")
        host = self.server.endpoint.removeprefix("http://")
        day, stamp = time.strftime("%Y%m%d", time.gmtime()), time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        digest, names = hashlib.sha256(data).hexdigest(), "host;x-amz-content-sha256;x-amz-date"
        asked = f"PUT\n{path}\n\nhost:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{stamp}\n\n{names}\n{digest}"
        scope = f"{day}/{REGION}/s3/aws4_request"
        signed = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(asked.encode()).hexdigest()}"
        sealing = f"AWS4{SECRET}".encode()
        for part in (*scope.split("/"), signed):
            sealing = hmac.digest(sealing, part.encode(), "sha256")
        headers = {
            "x-amz-date": stamp,
            "x-amz-content-sha256": digest,
            "Authorization": f"AWS4-HMAC-SHA256 Credential={KEY_ID}/{scope}, SignedHeaders={names}, "
            f"Signature={sealing.hex()}",
        }
        request = urllib.request.Request(self.server.endpoint + path, data=data, method="PUT", headers=headers)
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


@contextmanager
def serving(*, anonymous: bool = False) -> Iterator[S3Server]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-s3-"))
    server = S3Server(folder, anonymous=anonymous)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
