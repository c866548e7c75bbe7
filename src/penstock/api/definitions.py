"""Names of workflows and parameter sets in requests."""

from typing import Annotated

from pydantic import AfterValidator, Field

from penstock.yaml_file import SUFFIXES


def is_definition_id(name: str) -> bool:
    """False: the name is the path of a file on the server, which only the operator may name."""
    return "/" not in name and "\\" not in name and not name.endswith(SUFFIXES)


def _checked(name: str) -> str:
    if not is_definition_id(name):
        raise ValueError("name a workflow or a parameter set by its id")
    return name


DefinitionId = Annotated[str, Field(max_length=200), AfterValidator(_checked)]
