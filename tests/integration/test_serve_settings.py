"""Settings of the server: TLS files, hosts, CORS and proxies; and a stop with open streams and uploads."""

import asyncio
import datetime
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.conftest import StartApp
from tests.kit.service import client_of, serving


@pytest.fixture
def tls_files(tmp_path: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


async def test_it_speaks_tls_and_stops_soon_with_open_streams_and_uploads(
    tmp_path: Path, tls_files: tuple[Path, Path]
) -> None:
    settings = {
        "PENSTOCK_SERVE__TLS_CERTIFICATE": str(tls_files[0]),
        "PENSTOCK_SERVE__TLS_KEY": str(tls_files[1]),
    }
    trust = ssl.create_default_context(cafile=str(tls_files[0]))
    with serving(tmp_path / "home", **settings) as served:
        assert served.url.startswith("https://")
        api = served.api.replace("127.0.0.1", "localhost")
        ended: list[str] = []
        async with httpx2.AsyncClient(verify=trust, timeout=60) as client:
            assert (await client.put(f"{api}documents?source=a.txt", content=b"words")).status_code == 201
            with pytest.raises(httpx2.TransportError):
                await client.get(api.replace("https:", "http:") + "documents")

            async def follow() -> None:
                async with client.stream("GET", f"{api}events") as stream:
                    async for _ in stream.aiter_raw():
                        pass
                ended.append("stream")

            async def upload() -> None:
                async def body() -> AsyncIterator[bytes]:
                    while True:
                        yield b"x" * 1000
                        await asyncio.sleep(0.05)

                try:
                    await client.put(f"{api}documents?source=b.txt", content=body())
                finally:
                    ended.append("upload")

            tasks = [asyncio.create_task(one) for one in (follow(), follow(), upload(), upload())]
            await asyncio.sleep(1)
            began = time.monotonic()
            code = await asyncio.to_thread(served.stop, 30)
            # Three seconds on a machine that does nothing else.
            assert time.monotonic() - began < 15
            assert code == 0
            await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(ended) == ["stream", "stream", "upload", "upload"]
        assert not [line for line in served.told if "Traceback" in line]


async def test_requests_for_other_hosts_are_refused(start_app: StartApp) -> None:
    app = await start_app(serve={"hosts": ["docs.example.com", "*.example.org", "127.0.0.1"]})
    async with client_of(app) as client:
        for host, status in (
            ("127.0.0.1", 200), ("127.0.0.1:8440", 200), ("evil.example", 400), ("docs.example.com.evil.example", 400),
            ("example.org", 400), ("[", 400),
        ):  # fmt: skip
            answer = await client.get("documents", headers={"Host": host})
            assert answer.status_code == status, host
            assert status == 200 or answer.headers["content-type"] == "application/problem+json"
        key = (await app.create_key(scopes=["read"])).secret
        for host in ("DOCS.example.com", "a.b.example.org:443"):
            answer = await client.get("documents", headers={"Host": host, "Authorization": f"Bearer {key}"})
            assert answer.status_code == 200, host
        assert (await client.get("http://127.0.0.1/healthz", headers={"Host": "10.0.0.7"})).status_code == 200


async def test_other_origins_may_call_only_if_they_are_named(start_app: StartApp) -> None:
    asked = {"Origin": "https://app.example.com", "Access-Control-Request-Method": "GET"}
    closed = await start_app()
    await closed.create_key()
    async with client_of(closed) as client:
        answer = await client.request("OPTIONS", "documents", headers=asked)
        assert "access-control-allow-origin" not in answer.headers
    app = await start_app(serve={"origins": ["https://app.example.com"]})
    await app.create_key()
    async with client_of(app) as client:
        answer = await client.request("OPTIONS", "documents", headers=asked)
        assert answer.headers["access-control-allow-origin"] == "https://app.example.com"
        assert "access-control-allow-credentials" not in answer.headers
        other = await client.request("OPTIONS", "documents", headers={**asked, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(("trusted", "status"), [("[]", 200), ('["127.0.0.1"]', 401), ('["10.9.9.9"]', 200)])
async def test_only_listed_proxies_say_who_calls(tmp_path: Path, trusted: str, status: int) -> None:
    """Without a key, only callers of this machine are answered: what a proxy says decides, if it is believed."""
    with serving(tmp_path / "home", "--no-worker", PENSTOCK_SERVE__TRUSTED_PROXIES=trusted) as served:
        async with httpx2.AsyncClient() as client:
            answer = await client.get(f"{served.api}documents", headers={"X-Forwarded-For": "203.0.113.7"})
            assert answer.status_code == status
