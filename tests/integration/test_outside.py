"""Nothing that a file contains makes Penstock read another file, or use the network."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.integration.test_bombs import _ODT, _ODT_END, _WORD, _WORD_END, ODT, packed
from tests.kit import parts
from tests.kit.pdfs import Pages, page

Files = Callable[..., Path]
SECRET = "secretword42"


class Listener:
    """A server that counts who connects."""

    def __init__(self) -> None:
        self.calls = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}/x"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                made, _ = self._server.accept()
            except OSError:
                return
            self.calls += 1
            made.close()

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


def outside(secret: str, url: str) -> dict[str, bytes]:
    entity = f'<?xml version="1.0"?><!DOCTYPE r [<!ENTITY x SYSTEM "file://{secret}"><!ENTITY y SYSTEM "{url}">'
    parameter = f'<!ENTITY % z SYSTEM "{url}"> %z;'
    xml = f"{entity}{parameter}]>".encode()
    web = f"""<html><head><base href="{url}"><link rel="stylesheet" href="{url}"><script src="{url}"></script>
<meta http-equiv="refresh" content="0;url={url}"></head><body>words <img src="{url}"><img src="file://{secret}">
<iframe src="file://{secret}"></iframe><object data="{url}"></object></body></html>"""
    action = f"/OpenAction <</S /URI /URI ({url})>> /AA <</O <</S /GoToR /F (file://{secret})>>>>".encode()
    relations = (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
        f'<Relationship Id="r1" Type="http://x/attachedTemplate" Target="{url}" TargetMode="External"/>'
        f'<Relationship Id="r2" Type="http://x/styles" Target="file://{secret}"/>'
        f'<Relationship Id="r3" Type="http://x/numbering" Target="../../../../../../../..{secret}"/></Relationships>'
    ).encode()
    word = {"word/document.xml": [_WORD, b"words", _WORD_END], "word/_rels/document.xml.rels": [relations]}
    return {
        "a.xml": xml + b"<r>words &x; &y;</r>",
        "a.html": web.encode(),
        "entity.docx": packed({"word/document.xml": [xml, _WORD, b"words &x; &y;", _WORD_END]}),
        "relation.docx": packed(dict(word)),
        "a.odt": packed({"content.xml": [xml, _ODT, b"<text:p>words &x;&y;</text:p>", _ODT_END]}, ODT),
        "a.epub": parts.epub({"a": web, "b": f'<img src="../../../../../..{secret}"/> words'}),
        "a.eml": f"From: a\nSubject: words\nContent-Type: text/html\n\n{web}".encode(),
        "a.rtf": f'{{\\rtf1 words {{\\field{{\\*\\fldinst INCLUDETEXT "{secret}"}}}}}}'.encode(),
        "a.pdf": Pages(contents=[page("words")], catalog=action).write(),
        "a.md": f"words ![x]({url}) ![y](file://{secret})".encode(),
        "a.rst": f".. include:: {secret}\n\n.. raw:: html\n   :url: {url}\n\nwords".encode(),
    }


async def test_no_format_reads_other_files_or_the_network(
    start_app: StartApp, files: Files, tmp_path: Path, listener: Listener
) -> None:
    secret = tmp_path / "secret.xml"
    secret.write_text(f"<r>{SECRET}</r>")
    app = await start_app()
    made = outside(str(secret), listener.url)
    summary = await app.ingest([files(**made)])
    assert summary.pending == 0
    assert summary.completed >= 8, "most of them are read: only what they refer to is not"
    assert listener.calls == 0
    for document in await app.list_documents():
        assert SECRET not in "".join([page.text async for page in app.show(document.id, "pages")]), document.name
