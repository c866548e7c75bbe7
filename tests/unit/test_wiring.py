"""Adapters by name and URL: the built-in ones, those of installed packages, and what is wrong with a name."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kit.distribution import install

from penstock import wiring
from penstock.config import Config
from penstock.embedders.fake import FakeEmbedder
from penstock.errors import ConfigError
from penstock.runtime import Runtime

CODE = """
from penstock.embedders.fake import FakeEmbedder
from penstock.errors import ConfigError

def make(choice):
    made = FakeEmbedder()
    made.choice = choice
    return made

def refuse(choice):
    raise ConfigError("a key is missing")

def broken(choice):
    raise KeyError("MODEL")

number = 7
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    entries = {
        "own": "penstock_own:make",
        "refusing": "penstock_own:refuse",
        "broken": "penstock_own:broken",
        "number": "penstock_own:number",
        "gone": "penstock_own:nothing",
        "missing": "penstock_missing:make",
        "fake": "penstock_own:refuse",
    }
    folder = install(tmp_path / "site", "penstock_own", CODE, {"penstock.embedders": entries})
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "penstock_own", raising=False)
    return folder


def embedder(value: str) -> Any:
    return wiring.make_embedder(Config(embedder=value), Runtime())


@pytest.mark.usefixtures("package")
def test_an_entry_point_of_an_installed_package_adds_an_adapter() -> None:
    choice = embedder("own:small/model:2").choice
    assert (choice.setting, choice.name, choice.argument) == ("embedder", "own", "small/model:2")
    assert embedder("own").choice.argument == ""
    assert embedder("own://host/path?x=1").choice.argument == "host/path?x=1"


@pytest.mark.usefixtures("package")
def test_an_unknown_name_is_refused_with_all_that_are_known() -> None:
    with pytest.raises(
        ConfigError, match=r"embedder 'other:x': unknown name 'other'; use one of .*fake.*own.*wordllama"
    ):
        embedder("other:x")
    with pytest.raises(
        ConfigError, match=r"blobs 'ftp://user:…@host/b': unknown name 'ftp'; use one of az, file, gs, s3"
    ):
        wiring.make_blobs(Config(blobs="ftp://user:secret@host/b"), Runtime())
    with pytest.raises(ConfigError, match=r"index 'nowhere': unknown name 'nowhere'; use one of lancedb"):
        wiring.make_index(Config(index="nowhere"), Runtime())


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("refusing", "a key is missing"),
        ("broken:x", "embedder 'broken:x': KeyError: 'MODEL'"),
        ("number", "penstock_own:number of penstock_own cannot be called"),
        ("gone", "the package penstock_own has it as penstock_own:nothing, which cannot be loaded: AttributeError"),
        ("missing", "cannot be loaded: ModuleNotFoundError: No module named 'penstock_missing'"),
        ("wordllama:large", "embedder 'wordllama:large': wordllama takes no argument"),
    ],
)
def test_an_adapter_that_cannot_be_made_is_a_wrong_setting(value: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        embedder(value)
    assert sentence in str(raised.value)


@pytest.mark.usefixtures("package")
def test_a_built_in_name_wins_and_no_package_is_searched_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(registry: object) -> list[Any]:
        raise AssertionError("the installed packages were searched")

    monkeypatch.setattr(wiring.Registry, "_installed", searched)
    assert isinstance(embedder("fake"), FakeEmbedder)


def test_two_packages_with_one_name_are_refused(package: Path) -> None:
    install(package, "penstock_other", CODE, {"penstock.embedders": {"own": "penstock_other:make"}})
    with pytest.raises(ConfigError, match=r"several installed packages have it \(penstock_other, penstock_own\)"):
        embedder("own")


@pytest.mark.parametrize("url", ["file:", "file://", "file"])
def test_a_url_without_a_folder_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="use a folder, as in file:///PATH"):
        wiring.make_blobs(Config(blobs=url), Runtime())


@pytest.mark.parametrize("host", ["", "localhost"])
async def test_a_file_url_may_name_localhost(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, runtime = Config(blobs=f"file://{host}{tmp_path}/blobs"), Runtime()
    await wiring.make_blobs(config, runtime).put("anna/a", b"bytes", durable=False)
    runtime.close()
    assert [path.name for path in tmp_path.iterdir()] == ["blobs"]
    assert config.blobs_path == tmp_path / "blobs"


def test_every_public_name_can_be_imported() -> None:
    import penstock

    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
