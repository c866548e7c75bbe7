"""The command line as a supervisor starts it: `python -m penstock.cli.supervised ARGUMENTS…`. It stops when the pipe
from the supervisor closes, so that no worker outlives a supervisor that was killed."""

import os
import signal
import threading

from penstock.cli.main import main


def _end_with_pipe() -> None:
    while os.read(0, 1):
        pass
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_pipe, name="penstock-pipe", daemon=True).start()
    main()
