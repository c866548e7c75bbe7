"""A request may name a workflow with custom code only if the operator allows its functions (`serve.methods`)."""

from pathlib import Path

import httpx2
import pytest
from tests.conftest import StartApp
from tests.kit.service import client_of

STEPS = """id: {id}
steps:
  validate:
  extract:
  mark: {{kind: enrich, method: tests.integration.own_steps.{method}}}
  clean:
  chunk:
  embed:
  index:
"""
HANDLER = """id: telling
steps: {validate: , extract: , clean: , chunk: , embed: , index: }
lifecycle_events:
  item_end: [{name: hear, method: tests.crash.told.hear}]
"""


def write_workflows(folder: Path) -> None:
    folder.mkdir()
    (folder / "own.yaml").write_text(STEPS.format(id="own", method="tags"))
    (folder / "telling.yaml").write_text(HANDLER)


async def answers(client: httpx2.AsyncClient, workflow: str) -> list[int]:
    """Of all operations that take a workflow."""
    tus = {
        "Tus-Resumable": "1.0.0",
        "Upload-Length": "5",
        "Upload-Metadata": f"filename YS50eHQ=,workflow {_b64(workflow)}",
    }
    found = [
        await client.put(f"documents?source=a.txt&batch=b&workflow={workflow}", content=b"words"),
        await client.post(f"documents?workflow={workflow}", json={"text": "words", "name": "b.txt"}),
        await client.post("uploads", headers=tus),
    ]
    await client.put("documents?source=c.txt&batch=b&hold=true", content=b"words")
    [held] = (await client.get("documents?name=c.txt")).json()["documents"]
    found.append(await client.post("batches/b/start", json={"workflow": workflow}))
    found.append(await client.post(f"documents/{held['id']}/retry", json={"workflow": workflow}))
    found.append(await client.post("batch/start-workflows", data={"batch_id": 1, "workflow_definition_id": workflow}))
    found.append(await client.post("workflow/", data={"doc_id": "sha256-00", "workflow_definition_id": workflow}))
    return [one.status_code for one in found]


def _b64(text: str) -> str:
    import base64

    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("workflow", ["own", "telling"])
async def test_i10_a_request_names_no_workflow_with_code_that_is_not_allowed(
    start_app: StartApp, tmp_path: Path, workflow: str
) -> None:
    write_workflows(tmp_path / "workflows")
    app = await start_app(workflows=str(tmp_path / "workflows"))
    async with client_of(app) as client:
        assert set(await answers(client, workflow)) == {403}
        said = (await client.put(f"documents?source=a.txt&workflow={workflow}", content=b"words")).json()["detail"]
        assert "serve.methods" in said
    assert [one.name for one in await app.list_documents()] == ["c.txt"]


async def test_what_the_operator_allows_or_names_itself_runs(start_app: StartApp, tmp_path: Path) -> None:
    write_workflows(tmp_path / "workflows")
    app = await start_app(
        workflows=str(tmp_path / "workflows"),
        workflow="telling",
        serve={"methods": ["tests.integration.own_steps.*"]},
    )
    async with client_of(app) as client:
        assert (await client.put("documents?source=a.txt&workflow=own", content=b"words")).status_code == 201
        assert (await client.put("documents?source=b.txt", content=b"words")).status_code == 201, "by the settings"
        assert (await client.put("documents?source=c.txt&workflow=telling", content=b"words")).status_code == 403
        assert (await client.put("documents?source=c.txt&workflow=none", content=b"words")).status_code == 404
