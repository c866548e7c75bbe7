"""Collections, workflows and parameter sets."""

from typing import Any

from fastapi import APIRouter, Response

from penstock.api.answers import answer, described
from penstock.api.callers import Reads, Writes
from penstock.api.fields import Collection
from penstock.api.problems import not_found
from penstock.api.routes.groups import whole
from penstock.verbs.collections import CollectionView, Dropped

router = APIRouter(tags=["catalog"])


@router.get("/collections", operation_id="list_collections", responses=described({"collections": [CollectionView]}))
async def list_collections(access: Reads) -> Response:
    """List the collections with their counts."""
    found = await access.scope.list_collections()
    return answer({"collections": [one for one in found if access.may_use(one.name)]})


@router.get("/collections/{name}", operation_id="get_collection", responses=described(CollectionView))
async def get_collection(access: Reads, name: Collection) -> Response:
    """Return one collection with its counts."""
    return answer(await access.scope.collection(access.collection(name)))


@router.delete("/collections/{name}", operation_id="drop_collection", responses=described(Dropped))
async def drop_collection(access: Writes, name: Collection) -> Response:
    """Delete all documents of a collection, and the collection."""
    whole(access)
    done = await access.scope.drop_collection(access.collection(name))
    if not done.existed:
        raise not_found("collection", name)
    await access.scope.record("collection.drop", name, {}, {"documents": done.documents})
    return answer(done)


@router.get("/workflows", operation_id="list_workflows", responses=described({"workflows": [dict[str, Any]]}))
async def list_workflows(access: Reads) -> Response:
    """List the workflows with the names of their steps."""
    found = [
        {"id": one.id, "name": one.name, "steps": [step.name for step in one.steps]}
        for one, _ in access.scope.catalog.workflows()
    ]
    return answer({"workflows": found})


@router.get(
    "/parameter-sets", operation_id="list_parameter_sets", responses=described({"parameter_sets": [dict[str, Any]]})
)
async def list_parameter_sets(access: Reads) -> Response:
    """List the parameter sets with their values."""
    found = access.scope.catalog.parameter_sets()
    return answer({"parameter_sets": [{"id": one.id, "name": one.name, "config": one.config} for one in found]})
