"""A parser process that was taken over by the file that it reads gets nothing, and harms nobody."""

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit import ole, parts
from tests.kit.office import make, par
from tests.kit.parsers import PATHS, Listener
from tests.kit.pdfs import numbered, pdf
from tests.kit.scans import tiff

from penstock.app import open_app
from penstock.config import Config
from penstock.errors import ParserBreach, Permanent, Transient
from penstock.extractors import ocr
from penstock.extractors.base import FileContent, PdfPart
from penstock.extractors.formats import DOC, DOCX, EML, EPUB, FORMATS, HTML, MSG, ODT, PPTX, RTF, XLSX, XML, of
from penstock.worker.parsers import filters, isolation, process
from penstock.worker.parsers.pool import ParserPool

isolated = pytest.mark.skipif(isolation.gap() is not None, reason="needs Landlock and seccomp")

CONDITIONAL = {"x86_64": {"tgkill": 234}, "aarch64": {"tgkill": 131}}


class Place:
    """What a hostile parser would like to get at."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        (home / "ledger.db").write_bytes(b"everything")
        self.document = home / "document"
        self.document.write_bytes(b"just this")
        self.listeners = ExitStack()
        tcp = self.listeners.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port: int = tcp.getsockname()[1]
        udp = self.listeners.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", self.port))
        for name in (str(home / "listening"), f"\0penstock-{self.port}"):
            listener = self.listeners.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(name)
            listener.listen()

    def contents(self) -> dict[str, tuple[int, int, bytes | None]]:
        return {
            path.name: (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
            for path in self.home.iterdir()
        }

    async def attack(self, program: process.Program | None = None) -> dict[str, Any]:
        machine = os.uname().machine
        where = {
            "home": str(self.home),
            "port": self.port,
            "numbers": filters.refused(machine) | CONDITIONAL[machine],
        }
        pool = ParserPool(children=1, memory_mb=256, timeout_s=30, program=program)
        try:
            answer = await pool.call("hostile", where, source=Listener(), document=self.document)
        finally:
            await pool.close()
        outcome: dict[str, Any] = msgspec.msgpack.decode(answer)
        return outcome


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(process, "CHILD", "tests.integration.hostile_child")
    monkeypatch.setenv("PYTHONPATH", PATHS)
    made = Place(tmp_path / "home")
    with made.listeners:
        yield made


@isolated
async def test_a_hostile_parser_gets_its_document_and_nothing_else(place: Place) -> None:
    before = place.contents()
    outcome = await place.attack()
    assert outcome.pop("document") == b"just this"
    descriptors = outcome.pop("descriptors")
    kinds = [re.sub(r":\[.*|.*/", "", name) for name in descriptors]
    assert set(kinds) == {"document", "null", "pipe", "socket", "statm"}
    assert len(outcome) > 40
    assert {name: got for name, got in outcome.items() if got is not None} == {}
    assert place.contents() == before


@isolated
async def test_a_process_that_executes_tesseract_can_execute_nothing_else(place: Place) -> None:
    before = place.contents()
    found = ocr.find()
    assert found is not None
    outcome = await place.attack(process.Program(found.program, found.data))
    got = {name for name, value in outcome.items() if value is not None}
    assert got == {"document", "descriptors", "fork", "start a thread"}
    assert place.contents() == before


@isolated
async def test_each_of_the_two_walls_holds_what_is_its_part(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_WITHOUT", "landlock")
    got = {name for name, value in (await place.attack()).items() if value is not None}
    assert {name for name in got if not name.startswith(("read ", "list ", "see "))} == {"document", "descriptors"}
    assert {"read the ledger", "list the home"} <= got
    monkeypatch.setenv("PYTHON_WITHOUT", "seccomp")
    got = {name for name, value in (await place.attack()).items() if value is not None}
    files = ("read the", "read a", "list ", "see ", "write ", "remove ", "move ", "truncate ", "make ")
    assert not {name for name in got if name.startswith(files)}
    assert "send by UDP" in got, "this is what the other wall is for"


@pytest.mark.parametrize("without", ["", "code"])
async def test_readers_need_nothing_that_was_taken_from_them(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    """Their modules are loaded when a document needs them; where no folder holds just code, before."""
    monkeypatch.setenv("PYTHON_WITHOUT", without)
    russian = "Съешь же ещё этих мягких французских булок, да выпей чаю. "
    wide = "".join(f"<text:p>{word}</text:p>" for word in ("wordword", "more"))
    samples = {
        HTML: f"<p>{russian * 20}wordword</p>".encode("koi8_r"),
        DOCX: make(tmp_path / "a.docx", par("wordword")).read_bytes(),
        PPTX: parts.pptx([parts.shape(parts.paragraph("wordword"))]),
        XLSX: parts.xlsx({"a": [["wordword"]]}),
        ODT: parts.opendocument("text", wide),
        EPUB: parts.epub({"a": f"<p>{russian * 20}wordword</p>".encode("koi8_r").decode("latin-1")}),
        EML: parts.message("a", "wordword").as_bytes(),
        MSG: ole.outlook("a", "wordword"),
        DOC: ole.word("wordword"),
        RTF: rb"{\rtf1 wordword}",
        XML: f"<?xml version='1.0' encoding='koi8-r'?><p>{russian * 20}wordword</p>".encode("koi8_r"),
    }
    assert {row.reader.name for row in FORMATS if row.reader} == {
        reader.name for name in samples if (reader := of(name).reader)
    } | {"pdf", "audio", "image"}, "every reader"
    pool = ParserPool(children=1, memory_mb=256, timeout_s=30)
    try:
        for media_type, data in samples.items():
            path = tmp_path / "sample"
            path.write_bytes(data)
            reader = of(media_type).reader
            assert reader is not None
            answer = await pool.call(reader.name, {"media_type": media_type}, source=Listener(), document=path)
            text = msgspec.msgpack.decode(answer, type=FileContent).pages[0].text
            assert "wordword" in text, media_type
            assert media_type != HTML or "мягких" in text
        path.write_bytes(tiff(["wordword"]))
        answer = await pool.call("image", {"index": 0, "megapixels": 1}, source=Listener(), document=path)
        assert msgspec.msgpack.decode(answer)[0] == 1
    finally:
        await pool.close()


async def test_a_document_may_be_larger_than_the_memory_of_a_parser(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    head, body = pdf(*numbered(3), table=False).split(b"\n", 1)
    path.write_bytes(head + b"\n" + (b"%" + b" " * 998 + b"\n") * 48_000 + body)
    pool = ParserPool(children=1, memory_mb=24, timeout_s=30)
    try:
        for first in range(3):
            arguments = {"password": None, "first": first, "count": 1}
            part = msgspec.msgpack.decode(
                await pool.call("pdf", arguments, source=Listener(), document=path), type=PdfPart
            )
            assert (part.total, [page.number for page in part.pages]) == (3, [first + 1])
    finally:
        await pool.close()


async def test_the_kernel_ends_a_parser_whose_worker_does_not_look_at_its_clock(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SPARE_S", 1)
    pool = ParserPool(children=1, memory_mb=256, timeout_s=0.1)
    monkeypatch.setattr(process.Child, "_kill", lambda self: None)
    with pytest.raises(ParserBreach) as breach:
        await asyncio.wait_for(pool.call("busy", {}, source=Listener()), 60)
    assert breach.value.reason == "parser_timeout"
    await pool.close()


async def test_a_document_that_cannot_be_opened_may_come_back(tmp_path: Path) -> None:
    pool = ParserPool(children=1, memory_mb=256, timeout_s=30)
    with pytest.raises(Transient, match="cannot be opened"):
        await pool.call("pdf", {}, source=Listener(), document=tmp_path / "none")
    await pool.close()


async def test_a_document_that_cannot_be_handed_over_is_no_fault_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(b"%PDF")

    def refuse(*arguments: object) -> int:
        raise OSError(109, "too many references")

    pool = ParserPool(children=1, memory_mb=256, timeout_s=30)
    arguments = {"password": None, "first": 0, "count": 1}
    send = socket.send_fds
    monkeypatch.setattr(socket, "send_fds", refuse)
    with pytest.raises(Transient, match="could not be passed"):
        await asyncio.wait_for(pool.call("pdf", arguments, source=Listener(), document=path), 20)
    monkeypatch.setattr(socket, "send_fds", send)
    with pytest.raises(Permanent, match="damaged beyond reading"):
        await asyncio.wait_for(pool.call("pdf", arguments, source=Listener(), document=path), 20)
    await pool.close()


async def test_calls_that_are_given_up_while_a_child_starts_harm_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(b"%PDF")
    pool = ParserPool(children=1, memory_mb=256, timeout_s=30)
    arguments = {"password": None, "first": 0, "count": 1}
    calls = [asyncio.create_task(pool.call("pdf", arguments, source=Listener(), document=path)) for _ in range(2)]
    await asyncio.sleep(0)
    calls[0].cancel()
    with pytest.raises(Permanent, match="damaged beyond reading"):
        await asyncio.wait_for(calls[1], 20)
    await pool.close()


async def test_a_system_without_walls_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(isolation, "_landlock_version", lambda: 0)
    monkeypatch.setattr(isolation, "_filter", lambda: None)
    sentence = isolation.gap()
    assert sentence is not None
    assert "no Landlock" in sentence
    assert "no seccomp" in sentence
    isolation.warn_of_gap.cache_clear()
    for name in ("a", "b"):
        async with open_app(Config(home=str(tmp_path / name), embedder="fake")) as app:
            assert app.resources.parsers.width
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [sentence]
    isolation.warn_of_gap.cache_clear()


# The program of the filter, run here for machines that this one is not


def decide(program: bytes, machine: int, number: int, *arguments: int) -> int:
    """What the kernel would do."""
    told = {0: number, 4: machine} | {16 + 8 * i: value & 0xFFFFFFFF for i, value in enumerate(arguments)}
    code = list(filters.INSTRUCTION.iter_unpack(program))
    at = accumulator = 0
    tests: dict[int, Callable[[int, int], bool]] = {
        0x15: lambda a, k: a == k, 0x35: lambda a, k: a >= k, 0x45: lambda a, k: bool(a & k),
    }  # fmt: skip
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == 0x06:
            return int(value)
        if operation == 0x20:
            accumulator = told.get(value, 0)
        else:
            at += yes if tests[operation](accumulator, value) else no


@pytest.mark.parametrize("machine", filters.MACHINES)
def test_the_filter_refuses_what_is_listed_and_allows_the_rest(machine: str) -> None:
    this, pid = filters.MACHINES[machine], 4711
    program = filters.program(machine, pid)
    assert len(program) // filters.INSTRUCTION.size <= 4096, "the kernel takes no more"
    refused, unknown = filters.REFUSE | 1, filters.REFUSE | 38
    listed = set(filters.refused(machine).values())
    assert {decide(program, this.code, number) for number in listed} == {refused}
    column = 0 if machine == "x86_64" else 1
    kill, tgkill, prlimit, fcntl, ioctl, openat, read = (
        pair[column] for pair in ((62, 129), (234, 131), (302, 261), (72, 25), (16, 29), (257, 56), (0, 63))
    )
    cases = {
        (kill, pid, 9): True, (kill, pid + 1, 9): False, (kill, 0, 9): False, (kill, -1, 9): False,
        (tgkill, pid, pid, 6): True, (tgkill, 1, 1, 6): False, (prlimit, 0, 9): True, (prlimit, pid, 9): False,
        (fcntl, 3, 1): True, (fcntl, 3, 8): False, (ioctl, 3, 0x5401): True, (ioctl, 3, 0x5412): False,
        (openat, 3, 0, 0x80000): True, (openat, 3, 0, 0x80001): False, (openat, 3, 0, 0o100): False,
        (read, 3): True, (436, 3): True,
    }  # fmt: skip
    for call, allowed in cases.items():
        assert decide(program, this.code, *call) == (filters.ALLOW if allowed else refused), call
    assert decide(program, this.code, 425) == decide(program, this.code, 999) == unknown
    assert decide(program, 0x40000003, read) == refused, "the calls of another machine have other numbers"
    others = set(range(filters.FIRST_NEW)) - listed
    rules = {kill, tgkill, prlimit, fcntl, ioctl}
    assert {decide(program, this.code, number) for number in others - rules} == {filters.ALLOW}


@pytest.mark.parametrize("machine", filters.MACHINES)
def test_a_process_that_executes_a_program_makes_no_namespaces(machine: str) -> None:
    this = filters.MACHINES[machine]
    program = filters.program(machine, 4711, executes=True)
    clone, prctl, unshare = (56, 157, 272) if machine == "x86_64" else (220, 167, 97)
    refused = filters.REFUSE | 1
    assert decide(program, this.code, clone, 0x01200011) == filters.ALLOW, "as fork does it"
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(program, this.code, clone, flag | 17) == refused
    assert decide(program, this.code, prctl, 1, 9) == filters.ALLOW
    assert decide(program, this.code, prctl, 1, 0) == decide(program, this.code, prctl, 22, 2) == refused
    assert decide(program, this.code, unshare, 0x10000000) == refused


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", filters.MACHINES)
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip("needs the headers of the kernel")
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    listed = filters.refused(machine)
    assert {name: int(known[name]) for name in listed if name in known} == {
        name: number for name, number in listed.items() if name in known
    }
    assert len([name for name in listed if name in known]) > 90
