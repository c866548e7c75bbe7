"""The calls of Soliplex's clients: the curl lines of the seed run literally, and the calls beside them."""

import hashlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.kit.service import Served, serving

SEED = next((Path(__file__).parents[2] / ".." / "shared" / "seeds").resolve().glob("002*.txt"), None)
LINES = re.compile(r"^curl (?:.*\\\n)*.*$", re.M)
CONTENT = b"The weir was painted in spring. 4556533"
"""Its SHA-256 begins with abc123, as that of the seed's document does."""
SEED_LINES = 7
RUNS, GROUPS = 42, 5


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("soliplex") / "home") as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=served.api, timeout=60) as client:
        yield client


def ingest(client: httpx2.Client, batch: int, uri: str, content: bytes, **more: Any) -> dict[str, Any]:
    fields = {"source": "files", "source_uri": uri, "batch_id": str(batch), "mime_type": "text/plain", **more}
    done = client.post("document/ingest-document", data=fields, files={"file": (uri, content)})
    assert done.status_code == 201, done.text
    made: dict[str, Any] = done.json()
    return made


@pytest.fixture(scope="module")
def batch(client: httpx2.Client) -> int:
    """Batch 1, with a document, that was started until there are five groups and 42 runs."""
    assert hashlib.sha256(CONTENT).hexdigest().startswith("abc123")
    made = client.post("batch/", data={"source": "files", "name": "Spring"})
    assert (made.status_code, made.json()) == (201, {"batch_id": 1})
    for place in range(9):
        ingest(client, 1, f"/docs/{place}.txt", b"page %d" % place)
    ingest(client, 1, "/docs/weir.txt", CONTENT, doc_meta='{"author": "ann"}')
    client.get("workflow/", params={"batch_id": 1})
    assert client.post("documents?collection=my_database", json={"text": "x", "name": "a.txt"}).status_code < 300
    return 1


def test_the_curl_lines_of_the_seed_run_literally(client: httpx2.Client, served: Served, batch: int) -> None:
    if SEED is None:
        pytest.skip("the seeds are not here")
    lines = LINES.findall(SEED.read_text(encoding="utf-8"))
    assert len(lines) == SEED_LINES
    port = served.url.rpartition(":")[2]
    answers: dict[str, Any] = {}
    # Those that begin something come first; then there are five groups and 42 runs for those that look.
    for line in sorted(lines, key=lambda line: ("-X POST" not in line, "retry" in line)):
        if "retry" in line or "run-groups/5" in line:
            while len(client.get("workflow/run-groups").json()) < GROUPS:
                client.post("batch/start-workflows", data={"batch_id": 1})
        if "runs/42" in line:
            while max(row["id"] for row in client.get("workflow/").json()) < RUNS:
                client.post("batch/start-workflows", data={"batch_id": 1})
        arguments = shlex.split(line.replace("\\\n", " "))
        arguments += ["--silent", "--connect-to", f"localhost:8000:127.0.0.1:{port}", "--write-out", "\n%{http_code}"]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
        body, _, status = done.stdout.rpartition("\n")
        assert status in ("200", "201"), (line, done.stdout)
        answers[line.split('"')[1].rpartition("/api/v1/")[2]] = json.loads(body)
    assert answers["batch/start-workflows"]["workflows"] == 10
    assert answers["workflow/"]["doc_id"] == f"sha256-{hashlib.sha256(CONTENT).hexdigest()}"
    assert answers["workflow/"]["workflow_definition_id"] == "batch"
    assert answers["lancedb/vacuum?db=my_database"] == {"status": "ok"}
    stats = answers["workflow/run-groups/5/stats"]
    wanted = {"total_runs", "completed", "running", "pending", "failed", "average_duration", "group_status"}
    assert wanted <= stats.keys()
    assert answers["workflow/runs/42"]["id"] == RUNS
    assert [step["workflow_step_name"] for step in answers["workflow/runs/42"]["steps"]][:1] == ["validate"]
    assert isinstance(answers["workflow/steps?status=FAILED"], list)


@pytest.mark.parametrize(
    "path", ["workflow/run-groups", "workflow/run_groups", "workflow/run-groups/", "batch", "batch/"]
)
def test_hyphens_underscores_and_slashes_are_never_redirected(client: httpx2.Client, batch: int, path: str) -> None:
    assert client.get(path).status_code == 200


def test_parameters_come_from_the_query_a_form_or_json(client: httpx2.Client, batch: int) -> None:
    calls: list[dict[str, Any]] = [
        {"params": {"batch-id": "1", "only-unparsed": "true"}},
        {"data": {"batch-id": "1", "only_unparsed": "1"}},
        {"json": {"batch_id": 1, "only_unparsed": True}},
        {"files": {"batch_id": (None, "1"), "only_unparsed": (None, "yes")}},
    ]
    for given in calls:
        done = client.post("batch/start-workflows", **given)
        assert (done.status_code, done.json()["message"]) == (201, "Workflows started"), given


def test_what_is_wrong_is_a_problem_with_an_error(client: httpx2.Client, batch: int) -> None:
    wrong: list[tuple[int, str, str, dict[str, str]]] = [
        (404, "POST", "batch/start-workflows", {"batch_id": "99"}), (422, "POST", "batch/start-workflows", {}),
        (422, "POST", "batch/start-workflows", {"batch_id": "x"}), (404, "GET", "workflow/runs/9999", {}),
        (404, "GET", "workflow/run-groups/x/stats", {}), (404, "POST", "workflow/", {"doc_id": "sha256-0000000"}),
        (422, "GET", "workflow/steps", {"status": "BAD"}), (404, "GET", "lancedb/info", {"db": "none"}),
        (404, "GET", "workflow/definitions/..%2Fx.yaml", {}),
        (422, "POST", "document/ingest-document", {"source": "a"}),
    ]  # fmt: skip
    for status, method, path, given in wrong:
        done = client.post(path, data=given) if method == "POST" else client.get(path, params=given)
        assert done.status_code == status, (path, done.text)
        assert done.json()["error"]
        assert done.headers["content-type"] == "application/problem+json"


def test_the_server_reads_no_file_of_its_own_for_a_client(client: httpx2.Client, batch: int) -> None:
    fields = {"source": "files", "source_uri": "/x", "batch_id": "1", "input_uri": "file:///etc/passwd"}
    for uri in ("file:///etc/passwd", "/etc/passwd", "s3://bucket/key", "http://127.0.0.1:1/x"):
        done = client.post("document/ingest-document", data={**fields, "input_uri": uri})
        assert done.status_code == 422, done.text
    for name in ("/etc/x.yaml", "../x.yml"):
        done = client.post("batch/start-workflows", data={"batch_id": "1", "workflow_definition_id": name})
        assert (done.status_code, "id" in done.json()["error"]) == (422, True), done.text


def test_the_rest_of_the_words(client: httpx2.Client, batch: int) -> None:
    hashed = hashlib.sha256(CONTENT).hexdigest()
    [row] = [
        row for row in client.get("document/", params={"source": "files"}).json() if row["uri"] == "/docs/weir.txt"
    ]
    assert row["doc_hash"] == f"sha256-{hashed}"
    assert len(client.get("document/", params={"batch_id": 1}).json()) == 10
    status = client.post(
        "source-status", data={"source": "files", "hashes": json.dumps({"/docs/weir.txt": hashed, "/new": "1"})}
    ).json()
    assert {uri: one["status"] for uri, one in status.items()} == {"/docs/weir.txt": "match", "/new": "new"}
    [listed] = [row for row in client.get("batch/").json() if row["id"] == 1]
    assert (listed["name"], listed["source"]) == ("Spring", "files")
    shown = client.get("batch/status", params={"batch_id": 1}).json()
    assert shown["document_count"] == 10
    client.post("batch/start-workflows", data={"batch_id": 1})
    assert client.get("batch/1/steps").json()
    page = client.get("workflow/", params={"page": 1, "rows_per_page": 3}).json()
    assert (len(page["items"]), page["rows_per_page"]) == (3, 3)
    run = page["items"][0]
    assert client.get(f"workflow/runs/{run['id']}/lifecycle").status_code == 200
    assert {"id": "batch", "name": "Batch"} in client.get("workflow/definitions").json()
    assert "steps:" in client.get("workflow/definitions/batch").text
    assert client.get("workflow/param-sets").json()[0]["id"] == "default"
    assert client.get("document/validate_storage", params={"batch_id": 1}).json()["missing"] == 0
    assert client.get("lancedb/list").json()["database_count"] == 2
    assert client.get("lancedb/documents", params={"db": "default"}).json()["documents"]
    for path in ("stats/durations", "stats/step-stats"):
        assert client.get(path, params={"run_group_id": 1}).json()
    where = "sync-state/gitea:admin:repo"
    assert client.get(where).json()["last_commit_sha"] is None
    assert client.put(where, data={"commit_sha": "abc", "metadata": '{"n": 1}'}).json()["sync_metadata"] == {"n": 1}
    assert client.get(where).json()["last_commit_sha"] == "abc"
    assert client.delete(where).status_code == 200
    assert client.delete(where).status_code == 404
    gone = ingest(client, 1, "/docs/gone.txt", b"gone")
    assert gone["document_hash"] == f"sha256-{hashlib.sha256(b'gone').hexdigest()}"
    assert client.delete("document/by-uri", params={"uri": "/docs/gone.txt", "source": "files"}).status_code == 200
    assert client.delete("document/by-uri", params={"uri": "/docs/gone.txt", "source": "files"}).status_code == 404
