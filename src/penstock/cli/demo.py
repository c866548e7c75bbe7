"""`demo`: a demonstration of half a minute with generated documents."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.call import Call, body
from penstock.cli.output import Answer

if TYPE_CHECKING:
    from penstock.demo.dashboard import Dashboard
    from penstock.demo.printer import Printer


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder.")
@click.option("--serve", is_flag=True, help="Show it in the dashboard too, which stays open until Ctrl-C.")
@body
async def demo(call: Call, keep: bool, serve: bool) -> Answer:
    """Run a demo: ingest documents, kill the process, resume, search.

    It uses a temporary folder, which it deletes at the end, or an empty folder given by --home, which it keeps. The
    exit code is 0 only if every claim was verified.
    """
    from penstock.demo.dashboard import Dashboard
    from penstock.demo.printer import Printer
    from penstock.demo.story import DemoRun
    from penstock.errors import UsageError

    if call.owner is not None or call.config is not None:
        raise UsageError("the demo has its own owner and settings: omit --owner and --config")
    keep = keep or call.home is not None
    folder = _empty(Path(call.home)) if call.home is not None else Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    # With --json, standard output contains only the JSON object.
    teller = Printer(sys.stderr if call.json else sys.stdout)
    dashboard = Dashboard(folder) if serve else None
    try:
        teller.say(f"All files are in {folder}" + ("." if keep else ", which will be deleted at the end."))
        if dashboard is not None:
            # The demo kills the process that does the work, so the dashboard does none yet.
            await dashboard.start(worker=False)
            teller.say(f"Watch it in a browser: {dashboard.url}")
            _open(dashboard.url, is_wanted=teller.terminal and not call.json)
        story = DemoRun(folder, teller, {"ingest": _ingest, "search": _search, "check": _check})
        result = await story.run()
        teller.chapter("Accepted is safe. Done is kept. Half-done is never seen.")
        teller.say(_end(result))
        teller.say(
            f"To continue: cd {folder} and run `{_command(absolute=True)} list`."
            if keep
            else f"Try it with your own files: `{_command()} ingest FOLDER`{_activate()}."
        )
        if dashboard is not None:
            await _keep_serving(call, dashboard, teller)
    finally:
        if dashboard is not None:
            await dashboard.stop()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return Answer(result | {"folder": str(folder) if keep else None}, code=0 if story.ok else 1)


def _open(url: str, *, is_wanted: bool) -> None:
    import webbrowser

    if is_wanted:
        webbrowser.open(url)


async def _keep_serving(call: Call, dashboard: "Dashboard", teller: "Printer") -> None:
    """Serve with a worker until a signal arrives, so that more documents can be uploaded."""
    import asyncio

    await dashboard.stop()
    await dashboard.start(worker=True)
    teller.say(f"The dashboard is open at {dashboard.url}, with a worker. Ctrl-C ends it.")
    loop, told, cancel = asyncio.get_running_loop(), asyncio.Event(), call.signals.stop
    call.signals.working = call.signals.is_service = True
    call.signals.stop = lambda: loop.call_soon_threadsafe(told.set)
    waiting = [asyncio.ensure_future(dashboard.ended()), asyncio.ensure_future(told.wait())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        call.signals.stop = cancel
        for one in waiting:
            one.cancel()


def _empty(folder: Path) -> Path:
    from penstock.errors import UsageError

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: the demo needs a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def _command(*, absolute: bool = False) -> str:
    """How the user can call this installation: by name if the shell finds it, else by its path."""
    script = Path(sys.executable).parent / "penstock"
    found = shutil.which("penstock")
    if found is not None and Path(found).parent == script.parent:
        return "penstock"
    if not script.exists():
        return f"{sys.executable} -m penstock.cli.main"
    inside = not absolute and script.is_relative_to(Path.cwd())
    return str(script.relative_to(Path.cwd()) if inside else script)


def _activate() -> str:
    activate = Path(sys.executable).parent / "activate"
    if _command() == "penstock" or not activate.is_relative_to(Path.cwd()) or not activate.exists():
        return ""
    return f" (or `. {activate.relative_to(Path.cwd())}` once, then `penstock ingest FOLDER`)"


def _end(result: dict[str, Any]) -> str:
    claims = result["claims"]
    wrong = sum(not claim["ok"] for claim in claims)
    if wrong:
        return f"{wrong} of {len(claims)} claims were wrong: this is a bug, please report it."
    return f"All {len(claims)} claims were verified in {result['elapsed_s']:.1f} s."


def _ingest(answer: dict[str, Any]) -> str:
    import msgspec

    from penstock.cli.work import summary_line
    from penstock.verbs.jobs import Summary

    return summary_line(msgspec.convert(answer, Summary))


def _search(answer: dict[str, Any]) -> str:
    import msgspec

    from penstock.cli.search import hit_lines
    from penstock.search.results import Hit

    hits = msgspec.convert(answer["hits"], list[Hit])
    return "\n".join(line.plain for line in hit_lines(hits)) or "nothing found"


def _check(answer: dict[str, Any]) -> str:
    return "ok" if answer["ok"] else "\n".join(f"problem: {problem}" for problem in answer["problems"])
