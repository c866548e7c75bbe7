"""Several worker processes call one provider, which counts and refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.limited_server import LimitedProvider, serving

from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.runtime import Runtime

LONG = os.environ.get("PENSTOCK_LONG") == "1"
PROCESSES = 4
MOST, WINDOW_S = (300, 60.0) if LONG else (80, 4.0)
WINDOWS = 3 if LONG else 2
CALIBRATION_S = 1.0
ROOT = Path(__file__).parents[2]


def call_for(database_url: str, provider: LimitedProvider, seconds: float, per_minute: float) -> int:
    """Run the processes; return how many transactions they made."""
    runtime = Runtime()
    if database_url.startswith("sqlite"):
        Ledger(Database(database_url, runtime)).open_here()
    runtime.close()
    command = [sys.executable, "-m", "tests.kit.limited_client", database_url, provider.url]
    numbers = [str(seconds), str(per_minute), "0", "8"]
    started = [
        subprocess.Popen([*command, *numbers], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in started]
    assert [process.returncode for process in started] == [0] * PROCESSES, outputs
    return sum(map(int, outputs))


# With PENSTOCK_LONG=1, the times are those of a real provider. Otherwise they are a fifteenth: then one late request
# matters, and learning takes much of the time. The machine may be busy: what it can do without a limit is measured in
# the same run, and only as much can be asked for.
@pytest.mark.parametrize(
    ("known", "used", "refused"), [(True, 0.95 if LONG else 0.3, 0.01), (False, 0.8 if LONG else 0.2, 0.05)]
)
def test_a_limit_is_kept_and_used_by_four_processes(
    database_url: str, known: bool, used: float, refused: float
) -> None:
    with serving(LimitedProvider(10**9, WINDOW_S)) as unlimited:
        call_for(database_url, unlimited, CALIBRATION_S, 0)
    could = len(unlimited.accepted) / (unlimited.accepted[-1] - unlimited.accepted[0])
    with serving(LimitedProvider(MOST, WINDOW_S)) as provider:
        commits = call_for(database_url, provider, WINDOWS * WINDOW_S, MOST * 60 / WINDOW_S if known else 0)
    assert provider.most_in_flight <= 8
    seconds = provider.accepted[-1] - provider.accepted[0]
    if provider.throttled and not LONG:
        # `Retry-After` asks for a pause of up to a window, which is much of this time.
        seconds -= WINDOW_S + 1
    allowed = min(MOST / WINDOW_S, could / 3) * seconds
    calls = len(provider.accepted) + len(provider.throttled)
    share = f"{len(provider.accepted)} of {allowed:.0f} accepted, {len(provider.throttled)} refused, {could:.0f}/s"
    print(share)
    assert len(provider.accepted) >= used * allowed, share
    # The first refusal teaches an unknown limit: all calls that are in flight then are refused too.
    assert len(provider.throttled) <= max(refused * calls, 1 if known else 16), share
    assert commits < 2.5 * calls
