"""The adapters of a port by name: the built-in ones, and those that installed packages add by entry points."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.config import Config, local_path
from penstock.errors import ConfigError, PenstockError
from penstock.redaction import masked
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """The argument of a factory: one setting, as written and in parts."""

    setting: str
    """The name of the setting, for error messages."""
    value: str
    """The setting as written: `NAME`, `NAME:ARGUMENT` or `NAME://REST`."""
    name: str
    argument: str
    """The text after the name, or after `//` in a URL. It is empty if there is none."""
    config: Config
    runtime: Runtime
    include: tuple[str, ...] = ()
    """For sources of many documents: patterns of those to use."""
    exclude: tuple[str, ...] = ()
    """For sources of many documents: patterns of those to skip."""

    def no_argument(self) -> None:
        if self.argument:
            raise ConfigError(f"{self.setting} {self.value!r}: {self.name} takes no argument")

    def folder(self) -> Path:
        """The argument as a folder on this machine."""
        if "://" not in self.value or not self.argument:
            raise ConfigError(f"{self.setting} {self.value!r}: use a folder, as in {self.name}:///PATH")
        return local_path(self.argument)


Factory = Callable[[Choice], T]


class Registry(Generic[T]):
    """The adapters of one port, by name."""

    def __init__(self, setting: str, group: str, built_in: Mapping[str, Factory[T]]) -> None:
        self.setting = setting
        self.group = group
        """The group of its entry points."""
        self._built_in = built_in

    def names(self) -> list[str]:
        return sorted({*self._built_in, *(entry.name for entry in self._installed())})

    def factory(self, name: str) -> Factory[T] | None:
        """Return the factory with this name; None if there is none."""
        if name in self._built_in:
            return self._built_in[name]
        found = [entry for entry in self._installed() if entry.name == name]
        if not found:
            return None
        if len({entry.value for entry in found}) > 1:
            packages = ", ".join(sorted(_package(entry) for entry in found))
            raise ConfigError(
                f"{self.setting} {name!r}: several installed packages have it ({packages}): remove all but one"
            )
        return self._load(found[0])

    def make(
        self,
        value: str,
        config: Config,
        runtime: Runtime,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> T:
        name, argument = split(value)
        factory = self.factory(name)
        if factory is None:
            raise ConfigError(
                f"{self.setting} {masked(value)!r}: unknown name {name!r}; use one of {', '.join(self.names())}"
            )
        try:
            return factory(Choice(self.setting, value, name, argument, config, runtime, tuple(include), tuple(exclude)))
        except PenstockError:
            raise
        except Exception as error:
            raise ConfigError(f"{self.setting} {masked(value)!r}: {type(error).__name__}: {error}") from error

    def _installed(self) -> "list[EntryPoint]":
        from importlib.metadata import entry_points

        return list(entry_points(group=self.group))

    def _load(self, entry: "EntryPoint") -> Factory[T]:
        try:
            loaded: Any = entry.load()
        except Exception as error:
            raise ConfigError(
                f"{self.setting} {entry.name!r}: the package {_package(entry)} has it as {entry.value}, which cannot "
                f"be loaded: {type(error).__name__}: {error}"
            ) from error
        if not callable(loaded):
            raise ConfigError(f"{self.setting} {entry.name!r}: {entry.value} of {_package(entry)} cannot be called")
        factory: Factory[T] = loaded
        return factory


def split(value: str) -> tuple[str, str]:
    """Split `NAME`, `NAME:ARGUMENT` or `NAME://REST` into name and argument."""
    name, _, rest = value.partition(":")
    return name, rest.removeprefix("//")


def _package(entry: "EntryPoint") -> str:
    return entry.dist.name if entry.dist is not None else entry.module
