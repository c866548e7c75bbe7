"""Several worker processes call one provider, which counts and refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.limited_server import LimitedProvider, serving

from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.runtime import Runtime

PROCESSES, MOST, WINDOW_S = 4, 80, 4.0
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
    outputs = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0] * PROCESSES, outputs
    return sum(map(int, outputs))


# The times are a fifteenth of those of a real provider, and the machine may be busy: with a window of a minute, 98 % of
# the limit were used (docs/how-to/outages.md).
@pytest.mark.parametrize(("known", "used", "refused"), [(True, 0.3, 0.01), (False, 0.2, 0.05)])
def test_a_limit_is_kept_and_used_by_four_processes(
    database_url: str, known: bool, used: float, refused: float
) -> None:
    with serving(LimitedProvider(MOST, WINDOW_S)) as provider:
        commits = call_for(database_url, provider, 3 * WINDOW_S, MOST * 60 / WINDOW_S if known else 0)
    assert provider.most_in_flight <= 8
    seconds = provider.accepted[-1] - provider.accepted[0]
    allowed = MOST * seconds / WINDOW_S
    calls = len(provider.accepted) + len(provider.throttled)
    assert len(provider.accepted) >= used * allowed, f"{len(provider.accepted)} of {allowed:.0f}"
    # The first refusal teaches an unknown limit: all calls that are in flight then are refused too.
    assert len(provider.throttled) <= max(refused * calls, 1 if known else 16), f"{len(provider.throttled)} of {calls}"
    assert commits < 2.5 * calls
