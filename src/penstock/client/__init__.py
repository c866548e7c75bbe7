"""A client of `penstock serve`:

    from penstock.client import Client

    with Client("http://127.0.0.1:8440", key="pk_…") as client:
        receipt = client.upload("report.pdf", metadata={"year": 2024})
        client.wait(receipt.id)
        for hit in client.search("how fast does the turbine turn?", k=3):
            print(hit.name, hit.page, hit.text)

`AsyncClient` has the same methods to await. Without arguments, the server is that of `PENSTOCK_SERVER`, and the key
that of `PENSTOCK_KEY`. Errors are those of `penstock.errors` and `penstock.client.errors`."""

from penstock.client.asynchronous import AsyncClient as AsyncClient
from penstock.client.errors import Conflict as Conflict
from penstock.client.errors import InvalidRequest as InvalidRequest
from penstock.client.errors import KeyRejected as KeyRejected
from penstock.client.errors import NotAllowed as NotAllowed
from penstock.client.errors import NotThere as NotThere
from penstock.client.errors import ServerDiskFull as ServerDiskFull
from penstock.client.errors import ServerFailed as ServerFailed
from penstock.client.errors import ServiceError as ServiceError
from penstock.client.errors import TooManyRequests as TooManyRequests
from penstock.client.errors import Unavailable as Unavailable
from penstock.client.sync import Client as Client
