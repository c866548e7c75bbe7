"""Options for the password of documents: an argument, a file, standard input or a variable."""

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.cli import completion

F = TypeVar("F", bound=Callable[..., Any])

VARIABLE = "PENSTOCK_PASSWORD"


def passwords(more: str = "") -> Callable[[F], F]:
    """`--password` and `--password-file`."""

    def add(command: F) -> F:
        for option in (
            click.option(
                "--password-file",
                metavar="FILE",
                shell_complete=completion.files,
                help=f"Read the password from the first line of FILE, or of standard input (-). Or set {VARIABLE}.",
            ),
            click.option(
                "--password",
                metavar="WORD",
                help=f"Password of the documents{more}. Other users may see it in the process list.",
            ),
        ):
            command = option(command)
        return command

    return add


def chosen(password: str | None, file: str | None, *, standard_input: bool = False) -> str | None:
    """The password from option, file or variable. `standard_input`: it is already used for the document."""
    from penstock.errors import UsageError

    if password is not None and file is not None:
        raise UsageError("use --password or --password-file, not both")
    if file is not None:
        if file == "-" and standard_input:
            raise UsageError("standard input contains the document: pass the password in a file")
        password = _first_line(file)
    elif password is None:
        password = os.environ.get(VARIABLE)
    if password == "":
        raise UsageError("the password is empty")
    return password


def _first_line(file: str) -> str:
    from penstock.errors import UsageError

    try:
        if file == "-":
            line = sys.stdin.buffer.readline()
        else:
            with open(file, "rb") as opened:
                line = opened.readline()
        return line.decode().rstrip("\r\n")
    except OSError as error:
        raise UsageError(f"--password-file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--password-file {file}: it is not UTF-8 text") from error
