"""The parser pool, with real children that crash, hang, eat and chatter."""

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.parsers import ODD, PATHS, ROOT, Bench, Listener, alive, gone

from penstock.errors import ParserBreach, Permanent, Transient
from penstock.worker.parsers import pool as pools
from penstock.worker.parsers import process
from penstock.worker.parsers.messages import Answer, packed
from penstock.worker.parsers.pool import ParserPool

Start = Callable[..., Bench]


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Start]:
    monkeypatch.setattr(process, "CHILD", ODD)
    monkeypatch.setenv("PYTHONPATH", PATHS)
    opened: list[Bench] = []

    def make(children: int = 1, memory_mb: int = 256, timeout_s: float = 30.0) -> Bench:
        opened.append(Bench(ParserPool(children=children, memory_mb=memory_mb, timeout_s=timeout_s)))
        return opened[-1]

    async with AsyncExitStack() as stack:
        yield make
        for bench in opened:
            stack.push_async_callback(bench.pool.close)
    gc.collect()
    complaints = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    complaints = [message for message in complaints if not message.startswith("Executing ")]  # A slow machine.
    assert complaints == [], "asyncio lost sight of a child"
    assert logging.getLogger("asyncio").isEnabledFor(logging.WARNING)


async def test_a_call_is_answered_and_a_reader_s_own_errors_come_through(start: Start) -> None:
    bench = await start().warm()
    pids = bench.pids
    assert await bench("echo", value={"a": [1, "ü", None]}) == {"a": [1, "ü", None]}
    assert len(await bench("echo", size=5_000_000)) == 5_000_000
    with pytest.raises(Permanent, match="no such page") as refused:
        await bench("refuse")
    assert (refused.value.reason, refused.value.page) == ("damaged", 7)
    with pytest.raises(Transient, match="not now") as postponed:
        await bench("postpone")
    assert postponed.value.reason == "busy"
    with pytest.raises(Transient, match=r"LookupError: nothing there\n(.*\n)*.*stumble") as stumbled:
        await bench("stumble")
    assert stumbled.value.reason == "parser_error"
    assert bench.pids == pids, "none of this harms the child"


BREACHES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "crash": ("crash", {}, "parser_crash", r"the parser crashed \(SIGSEGV\)"),
    "exit": ("leave", {"code": 3}, "parser_crash", r"the parser crashed \(exit code 3\) last words"),
    "hang": ("hang", {}, "parser_timeout", r"longer than 1 s \(parsers\.timeout_s\)"),
    "memory": ("eat", {"megabytes": 900}, "parser_memory", r"more memory than 256 MB \(parsers\.memory_mb\)"),
    "nonsense": ("garble", {"data": b"\x05\0\0\0wrong"}, "parser_crash", "the parser crashed"),
    "too long": ("garble", {"data": b"\xff\xff\xff\xff"}, "parser_crash", "the parser crashed"),
}


@pytest.mark.parametrize("breach", BREACHES)
async def test_a_breach_costs_one_child_and_blames_only_the_call_that_ran(start: Start, breach: str) -> None:
    reader, arguments, reason, sentence = BREACHES[breach]
    bench = await start(children=2, timeout_s=1.0).warm()
    before = bench.pids
    bad = bench.begin(reader, **arguments)
    beside = bench.begin("echo", value="beside", seconds=0.3)
    await asyncio.sleep(0)
    behind = [bench.begin("echo", value=i) for i in range(2)]
    await asyncio.sleep(0)
    assert {len(child.calls) for child in bench.pool._children} == {2}, "one waits in the pipe of the bad one"
    with pytest.raises(ParserBreach, match=sentence) as blamed:
        await bad
    assert blamed.value.reason == reason
    assert await asyncio.gather(beside, *behind) == ["beside", 0, 1]
    after = await bench.warm()
    assert len(set(before) & set(after.pids)) == 1, "the other child goes on, a new one takes the place"
    await gone(*set(before) - set(after.pids))


async def test_an_answer_that_comes_as_the_time_is_over_does_not_blame_the_next_call(start: Start) -> None:
    """The timer of the first call rings, and only then its answer is read: the second is not to blame for the kill."""
    bench = await start(timeout_s=5.0).warm()
    before = bench.pids
    first, second = bench.begin("echo", value=1), bench.begin("echo", value=2, seconds=0.8)
    await asyncio.sleep(0)
    # The loop is away: the answer stands in the pipe when the timer rings.
    time.sleep(0.3)  # noqa: ASYNC251
    [child] = bench.pool._children
    assert len(child.calls) == 2
    child._kill()
    assert await asyncio.wait_for(first, 5) == 1
    assert await asyncio.wait_for(second, 5) == 2
    assert bench.pids != before


async def test_a_child_that_answers_unasked_is_replaced(start: Start) -> None:
    bench = await start().warm()
    before = bench.pids
    assert await bench("garble", data=2 * packed(Answer(msgspec.msgpack.encode("answer")))) == "answer"
    await gone(*before)
    assert await bench("echo", value="from another") == "from another"


async def test_a_child_that_cannot_start_says_why(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = start(children=2)
    monkeypatch.setattr(process, "CHILD", "tests.no_such_module")
    calls = [bench.begin("echo", value=i) for i in range(5)]
    for call in calls:
        with pytest.raises(Transient, match=r"could not be started: .*No module named") as failed:
            await asyncio.wait_for(call, 20)
        assert failed.value.reason == "parser_start"
        assert not isinstance(failed.value, ParserBreach), "no page is to blame"
    monkeypatch.setattr(process, "CHILD", ODD)
    for _ in range(5):
        try:
            assert await bench("echo", value="again") == "again"
            return
        except Transient:
            # Of a child that was started before.
            continue
    raise AssertionError("no child starts any more")


async def test_a_child_that_never_gets_ready_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = start()
    monkeypatch.setattr(process, "START_S", 0.3)
    monkeypatch.setattr(process, "CHILD", "tests.integration.mute_child")
    with pytest.raises(Transient, match="could not be started") as failed:
        await asyncio.wait_for(bench("echo"), 10)
    assert failed.value.reason == "parser_start"


async def test_time_in_the_pipe_does_not_count(start: Start) -> None:
    bench = await start(timeout_s=1.0).warm()
    calls = [bench.begin("echo", value=i, seconds=0.5) for i in range(3)]
    assert await asyncio.gather(*calls) == [0, 1, 2]
    await asyncio.sleep(1.1)
    assert await bench("echo", value="idle time does not count either") is not None


async def test_what_comes_behind_gives_the_call_that_runs_no_more_time(start: Start) -> None:
    bench = await start(timeout_s=0.8).warm()
    began = time.monotonic()
    hanging = bench.begin("hang")
    await asyncio.sleep(0.6)
    behind = bench.begin("echo", value="behind")
    with pytest.raises(ParserBreach):
        await hanging
    assert time.monotonic() - began < 1.3
    assert await behind == "behind"


async def test_a_cancelled_call_kills_a_busy_child_and_the_pool_goes_on(start: Start) -> None:
    bench = await start(children=2).warm()
    before = bench.pids
    hanging = [bench.begin("hang") for _ in range(2)]
    await asyncio.sleep(0)
    behind = bench.begin("echo", value="behind")
    await asyncio.sleep(0.1)
    for call in hanging:
        call.cancel()
    assert await gone(*before, within=0.5) > 0.1, "one that ends by itself gets the chance to"
    assert await asyncio.wait_for(behind, 5) == "behind"
    assert not set((await bench.warm()).pids) & set(before)


async def test_a_cancelled_call_that_ends_at_once_costs_no_child(start: Start) -> None:
    bench = await start().warm()
    before = bench.pids
    running, behind = bench.begin("echo", seconds=0.04), bench.begin("echo", value="behind")
    waiting = [bench.begin("echo", value="never") for _ in range(3)]
    await asyncio.sleep(0.02)
    for call in (running, *waiting):
        call.cancel()
    assert await behind == "behind"
    assert (await bench("echo", value="after"), bench.pids) == ("after", before)


async def test_the_time_that_children_work_is_counted_and_the_time_in_a_pipe_is_not(start: Start) -> None:
    bench = await start(children=1, timeout_s=0.6).warm()
    first, second, hanging = Listener(), Listener(), Listener()
    await asyncio.gather(
        bench("echo", source=first, seconds=0.3),
        bench("echo", source=second, seconds=0.1),
    )
    assert 0.29 <= first.parser_s < 0.55
    assert 0.09 <= second.parser_s < 0.35, "without the time behind the other"
    with pytest.raises(ParserBreach):
        await bench("hang", source=hanging)
    assert hanging.parser_s >= 0.6, "what came to nothing counts"


async def test_closing_kills_all_at_once(start: Start) -> None:
    bench = await start(children=3).warm()
    before = bench.pids
    calls = [bench.begin("hang") for _ in range(8)]
    await asyncio.sleep(0.1)
    began = time.monotonic()
    await bench.pool.close()
    assert time.monotonic() - began < 0.5
    assert not any(alive(pid) for pid in before)
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in ended} == {asyncio.CancelledError}
    await bench.pool.close()


async def test_closing_while_children_start_leaves_none(start: Start) -> None:
    for pause in (0.0, 0.001, 0.005, 0.02, 0.05):
        bench = start(children=2)
        call = bench.begin("hang")
        await asyncio.sleep(pause)
        await bench.pool.close()
        await asyncio.gather(call, return_exceptions=True)
        assert children_of(os.getpid()) == [], f"closed {pause} s after the start"


async def test_an_answer_that_is_not_read_to_its_end_leaves_nothing_open(start: Start) -> None:
    bench = await start().warm()
    files = len(os.listdir("/proc/self/fd"))
    call = bench.begin("echo", size=40_000_000)
    [child] = bench.pool._children
    process = child._process
    assert process is not None
    assert process.stdout is not None
    async with asyncio.timeout(10):
        while not process.stdout._buffer:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0)
    await bench.pool.close()
    await asyncio.gather(call, return_exceptions=True)
    await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) == files - 4, "the three pipes of the child, and the socket"


async def test_calls_beyond_the_children_wait_in_turn_and_say_so(start: Start) -> None:
    bench = await start(children=1).warm()
    first, second, third = Listener(), Listener(), Listener()
    slow = [bench.begin("echo", source=first, value=i, seconds=0.15) for i in range(2)]
    await asyncio.sleep(0.02)
    more = [bench.begin("echo", source=first, value=2), bench.begin("echo", source=second, value=3)]
    given_up = bench.begin("echo", source=third)
    await asyncio.sleep(0.02)
    assert not first.waits, "a child works for it"
    assert second.waits
    assert third.waits
    given_up.cancel()
    assert await asyncio.gather(*slow, *more) == [0, 1, 2, 3]
    assert second.heard == ["parser", None]
    assert not first.waits
    assert list(bench.pool._busy) == [], "nothing is remembered of those that have ended"


async def test_who_works_no_more_but_waits_says_so_again(start: Start) -> None:
    bench = await start(children=1).warm()
    mine, older = Listener(), Listener()
    calls = [bench.begin("echo", source=older, seconds=0.1)]
    await asyncio.sleep(0)
    began = bench.begin("echo", source=mine, seconds=0.1)
    await asyncio.sleep(0)
    calls += [bench.begin("echo", source=older, seconds=0.3) for _ in range(2)]
    await asyncio.sleep(0)
    late = bench.begin("echo", source=mine, value="late")
    await began
    await asyncio.sleep(0.05)
    assert mine.waits
    await asyncio.gather(*calls)
    assert await late == "late"
    assert mine.heard[-1] is None


async def test_documents_are_read_one_after_the_other_but_a_long_one_lets_others_in(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "QUICK_S", 0.1)
    bench = await start(children=1).warm()
    long, short = Listener(), Listener()
    order: list[str] = []

    async def call(name: str, source: Listener) -> None:
        await bench.begin("echo", source=source, seconds=0.01)
        order.append(name)

    calls = [asyncio.create_task(call("long", long)) for _ in range(40)]
    await asyncio.sleep(0)
    calls += [asyncio.create_task(call("short", short)) for _ in range(2)]
    await asyncio.gather(*calls)
    assert order[:2] == ["long"] * 2
    assert order.index("short") < 20, "it waits for its turn, not for the end of the long one"
    assert order[-1] == "long"


async def test_owners_have_equal_shares_of_the_children(start: Start) -> None:
    bench = await start(children=1).warm()
    order: list[str] = []

    async def call(owner: str, source: Listener) -> None:
        await bench.begin("echo", source=source, seconds=0.02)
        order.append(owner)

    calls = [asyncio.create_task(call("anna", Listener("anna"))) for _ in range(30)]
    await asyncio.sleep(0.1)
    bert = Listener("bert")
    calls += [asyncio.create_task(call("bert", bert)) for _ in range(4)]
    await asyncio.gather(*calls)
    last = max(i for i, owner in enumerate(order) if owner == "bert")
    assert last < 20, order


async def slow_calls(bench: Bench, count: int, seconds: float) -> list[asyncio.Task[Any]]:
    """Calls of one owner's documents that keep children busy."""
    calls = [bench.begin("echo", source=Listener("anna"), value=i, seconds=seconds) for i in range(count)]
    await asyncio.sleep(0.1)
    return calls


async def test_a_quick_document_does_not_wait_for_slow_calls(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there are children, each longer than a child may keep a quick document waiting."""
    monkeypatch.setattr(pools, "SLOW_S", 0.3)
    monkeypatch.setattr(pools, "LOOK_S", 0.05)
    monkeypatch.setattr(pools, "QUICK_S", 0.1)
    bench = await start(children=2).warm()
    slow = await slow_calls(bench, 6, 20.0)
    for i in range(2):
        assert await bench("echo", source=Listener("bert"), value=i) == i
        assert await bench("echo", source=Listener("anna"), value=i) == i, "nor if they are of the same owner"
        assert not any(call.done() for call in slow), "all were quicker than the first of them"
        assert len(bench.pool._children) <= bench.pool.most == 3
    for call in slow:
        call.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_there_are_more_children_only_while_quick_documents_wait(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "SLOW_S", 0.2)
    monkeypatch.setattr(pools, "LOOK_S", 0.05)
    monkeypatch.setattr(pools, "QUICK_S", 0.1)
    bench = await start(children=1).warm()
    long = Listener("anna")
    most = 0
    calls = [bench.begin("echo", source=long, value=i, seconds=0.5) for i in range(4)]
    while not all(call.done() for call in calls):
        most = max(most, len(bench.pool._children))
        await asyncio.sleep(0.02)
    assert most == 1, "a long document has what it always had"
    slow = [bench.begin("echo", source=long, value=i, seconds=1.0) for i in range(2)]
    await asyncio.sleep(0.1)
    assert await bench("echo", source=Listener("bert"), value="quick") == "quick"
    assert len(bench.pool._children) == 2
    assert await asyncio.gather(*slow) == [0, 1]
    await asyncio.sleep(0.1)
    assert len(bench.pool._children) == 1
    assert list(bench.pool._busy) == []


async def test_a_call_is_stopped_for_others_once_at_most(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "SLOW_S", 0.2)
    monkeypatch.setattr(pools, "LOOK_S", 0.05)
    monkeypatch.setattr(pools, "QUICK_S", 0.1)
    bench = await start(children=1).warm()
    stops: list[object] = []
    stop = process.Child.stop

    def counted(self: Any) -> None:
        stops.append(self.calls[0])
        stop(self)

    monkeypatch.setattr(process.Child, "stop", counted)
    slow = await slow_calls(bench, 3, 1.0)
    while not all(call.done() for call in slow):
        assert await bench("echo", source=Listener("bert"), value="quick") == "quick"
        await asyncio.sleep(0.05)
    assert await asyncio.gather(*slow) == [0, 1, 2]
    assert stops
    assert len(stops) == len(set(map(id, stops)))


async def test_a_call_that_is_begun_again_has_its_document_from_the_beginning(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pools, "SLOW_S", 0.2)
    monkeypatch.setattr(pools, "LOOK_S", 0.05)
    monkeypatch.setattr(pools, "QUICK_S", 0.1)
    (tmp_path / "document").write_bytes(b"all of it")
    bench = await start(children=1).warm()

    async def call(source: Listener, seconds: float) -> Any:
        answer = await bench.pool.call("slurp", {"seconds": seconds}, source=source, document=tmp_path / "document")
        return msgspec.msgpack.decode(answer)

    slow = [asyncio.create_task(call(Listener("anna"), 1.0)) for _ in range(3)]
    await asyncio.sleep(0.1)
    assert await call(Listener("bert"), 0.0) == b"all of it"
    assert not all(one.done() for one in slow)
    assert await asyncio.gather(*slow) == [b"all of it"] * 3


async def test_a_child_that_has_nothing_to_do_goes_and_another_comes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await start(children=2).warm()
    # Only now: a child that starts slowly would find the other one gone.
    monkeypatch.setattr(process, "IDLE_S", 0.2)
    for _ in range(3):
        both = [bench("echo", value="here", seconds=0.3) for _ in range(2)]
        assert await asyncio.gather(*both) == ["here", "here"], "a child that works does not go"
    await asyncio.sleep(0.6)
    assert not bench.pool._children
    assert not bench.pool._leaving
    assert await bench("echo", value="again") == "again"


async def test_libraries_that_print_or_read_do_not_disturb_the_talk(start: Start) -> None:
    bench = await start().warm()
    assert await bench("chatter") == ""
    assert await bench("echo", value="still there") == "still there"


async def test_no_secret_and_no_open_file_reaches_a_child(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secrets = (
        "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "PENSTOCK_DATABASE", "LANGSMITH_API_KEY", "LANGFUSE_SECRET_KEY",
        "HOMEBREW_GITHUB_API_TOKEN", "PATH_TOKEN", "PGPASSWORD",
    )  # fmt: skip
    for name in secrets:
        monkeypatch.setenv(name, "sesame")
    monkeypatch.setenv("LANG", "C.UTF-8")
    ledger = os.open(tmp_path / "ledger.db", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(ledger, True)
    try:
        seen = await start()("look")
    finally:
        os.close(ledger)
    assert [name for name in secrets if name in seen["environment"]] == []
    assert "sesame" not in "".join(seen["environment"].values())
    assert {"PATH", "LANG", "PYTHONPATH"} <= set(seen["environment"])
    assert [file for file in seen["files"] if not file.startswith(("pipe:", "/dev/", "/proc/", "socket:"))] == []
    assert seen["group"] == os.getpgid(0), "it stays in the worker's process group"


async def test_many_calls_and_deaths_leave_no_zombie_and_no_open_file(start: Start) -> None:
    bench = await start(children=2, timeout_s=10).warm()
    files = len(os.listdir("/proc/self/fd"))
    for i in range(200):
        if i % 20 == 7:
            with pytest.raises(ParserBreach):
                await bench("crash")
        else:
            assert await bench("echo", value=i) == i
    await bench.warm()
    assert len(os.listdir("/proc/self/fd")) == files
    assert sorted(children_of(os.getpid())) == bench.pids
    assert all(alive(pid) for pid in bench.pids)
    assert list(bench.pool._busy) == []


def children_of(parent: int) -> list[int]:
    """Zombies too, but not those of other tests' servers."""
    found = []
    for thread in Path(f"/proc/{parent}/task").iterdir():
        with suppress(FileNotFoundError):  # The thread has ended.
            found += [int(pid) for pid in (thread / "children").read_text().split()]
    return [pid for pid in found if not alive(pid) or ODD.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


PARENT = """
import asyncio, os, resource, signal, sys
{begin}
from tests.kit.parsers import Bench, ODD
from penstock.worker.parsers import process
from penstock.worker.parsers.pool import ParserPool
async def main():
    process.CHILD = ODD
    bench = await Bench(ParserPool(children=2, memory_mb=8192, timeout_s=30)).warm()
    calls = [bench.begin("hang") for _ in range(3)]
    await asyncio.sleep(0.05)
    print(*bench.pids, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    {end}
asyncio.run(main())
"""


class Parent:
    """A process with two children that are busy for ever."""

    def __init__(self, end: str = "", begin: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT.replace("{begin}", begin).replace("{end}", end)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": PATHS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def children(self) -> list[int]:
        assert self.process.stdout is not None
        children = [int(pid) for pid in self.process.stdout.readline().split()]
        assert len(children) == 2, self.process.communicate()[1]
        assert all(alive(pid) for pid in children)
        return children


async def test_no_child_outlives_its_worker_however_that_ends() -> None:
    killed, terminated, closed, cut_off = (
        Parent(end) for end in ("", "", "await bench.pool.close()", "os._exit(0)")
    )  # fmt: skip
    for parent in (killed, terminated, closed, cut_off):
        children = parent.children()
        if parent is killed:
            parent.process.kill()
        elif parent is terminated:
            parent.process.terminate()
        parent.process.communicate("\n", timeout=10)
        await gone(*children, within=5)


async def test_a_child_whose_worker_was_dead_before_it_could_look_ends_at_once() -> None:
    nobody = "1"
    command = [sys.executable, "-m", "penstock.worker.parsers.child", nobody, "64", "60", "0"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert await asyncio.to_thread(child.wait, 10) == 0, "though its pipe is open"
    assert child.communicate()[0] == b""


async def test_signals_leave_the_end_of_the_children_to_the_worker() -> None:
    """A Ctrl-C in a terminal reaches the whole process group."""
    # A shell has what it starts in the background ignore it, and that is inherited.
    parent = Parent("await bench.pool.close()", "signal.signal(signal.SIGINT, signal.SIG_DFL)")
    children = parent.children()
    for pid in children:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    await asyncio.sleep(0.2)
    assert all(alive(pid) for pid in children)
    assert parent.process.communicate("\n", timeout=10)[0] == ""
    assert parent.process.returncode == 0


async def test_a_limit_of_memory_that_holds_for_the_worker_holds_for_its_children_too() -> None:
    """`ulimit -v`, as batch systems set it: no child may lift it, and none has to."""
    parent = Parent("await bench.pool.close()", "resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))")
    parent.children()
    assert parent.process.communicate("\n", timeout=20) == ("", "")
    assert parent.process.returncode == 0


async def test_without_a_limit_of_memory_there_is_none(start: Start) -> None:
    assert await start(memory_mb=0)("eat", megabytes=600) == 600 << 20


async def test_the_limit_counts_from_what_the_libraries_take(start: Start) -> None:
    bench = start(memory_mb=16)
    assert await bench("eat", megabytes=10) == 10 << 20
    with pytest.raises(ParserBreach, match="16 MB"):
        await bench("eat", megabytes=20)
