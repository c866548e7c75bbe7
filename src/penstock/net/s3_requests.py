"""Signed requests to a bucket of S3, for what its library does not offer: uploads in parts by someone else.

The signature is in the query (AWS Signature Version 4), so that a URL alone is enough to send a part."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

import msgspec

ALGORITHM = "AWS4-HMAC-SHA256"
_TRUE = re.compile(r"true|1|yes|on", re.IGNORECASE)


class Place(msgspec.Struct, frozen=True):
    """A bucket, and who may write to it."""

    url: str
    """Where its keys begin."""
    region: str
    key_id: str
    secret: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Place({self.url!r})"


def place_of(bucket: str, environment: Mapping[str, str]) -> Place | None:
    """The bucket as the variables of the environment name it. None: they have no key, for example because the machine
    has a role."""
    key_id, secret = environment.get("AWS_ACCESS_KEY_ID", ""), environment.get("AWS_SECRET_ACCESS_KEY", "")
    if not key_id or not secret:
        return None
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = next((environment[name].strip() for name in names if environment.get(name, "").strip()), None)
    has_own_host = _TRUE.fullmatch(environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").strip()) is not None
    if endpoint is None:
        own = f"https://{bucket}.s3.{region}.amazonaws.com"
        url = own if has_own_host else f"https://s3.{region}.amazonaws.com/{bucket}"
    else:
        # An endpoint for requests with the bucket in the host contains it.
        url = endpoint.rstrip("/") if has_own_host else f"{endpoint.rstrip('/')}/{bucket}"
    return Place(url, region, key_id, secret, environment.get("AWS_SESSION_TOKEN") or None)


def signed(place: Place, method: str, path: str, query: Mapping[str, str], now: float, expires_s: int) -> str:
    """The URL of a request for an object, or for the bucket if the path is empty. It may have any body."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{place.region}/s3/aws4_request"
    url = urlsplit(f"{place.url}/{quote(path, safe='/-_.~')}" if path else place.url)
    given = {
        **query,
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{place.key_id}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(expires_s),
        "X-Amz-SignedHeaders": "host",
    }
    if place.token is not None:
        given["X-Amz-Security-Token"] = place.token
    encoded = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in given.items())
    asked = "&".join(f"{name}={value}" for name, value in encoded)
    request = f"{method}\n{url.path or '/'}\n{asked}\nhost:{url.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    text = f"{ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{place.secret}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    return f"{url.scheme}://{url.netloc}{url.path or '/'}?{asked}&X-Amz-Signature={key.hex()}"
