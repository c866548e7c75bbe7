"""`OwnerScope`: the methods for one owner."""

from penstock.verbs import (
    actions,
    collections,
    dead_letters,
    documents,
    estimate,
    evaluation,
    following,
    groups,
    ingest,
    intake_pauses,
    keys,
    maintenance,
    presigned,
    quotas,
    search,
    uploads,
    usage,
    watch,
    webhooks,
)
from penstock.verbs import reindex as reindexing
from penstock.verbs import scope as scopes
from penstock.verbs.scope import Scope


class OwnerScope(Scope):
    """The methods for one owner: `app.for_owner("acme")`. Each method is a function of a module in `penstock.verbs`
    that takes the scope as its first argument."""

    submit = ingest.submit
    plan_ingest = ingest.plan_ingest
    ingest = ingest.ingest
    estimate = estimate.estimate
    watch = watch.watch
    changes = following.changes

    count_action = actions.count_action
    start_action = actions.start_action
    action = actions.action
    list_actions = actions.list_actions
    cancel_action = actions.cancel_action

    create_upload = uploads.create_upload
    upload = uploads.upload
    append_upload = uploads.append_upload
    delete_upload = uploads.delete_upload
    presign_upload = presigned.presign_upload
    presign_again = presigned.presign_again
    complete_upload = presigned.complete_upload

    search = search.search
    evaluate = evaluation.evaluate
    usage = usage.usage
    status = documents.status
    list_documents = documents.list_documents
    count_documents = documents.count_documents
    list_steps = documents.list_steps
    show = documents.show
    workflow = documents.workflow

    set_metadata = documents.set_metadata
    cancel = documents.cancel
    delete = documents.delete
    delete_matching = documents.delete_matching
    retry = documents.retry

    list_collections = collections.list_collections
    collection = collections.collection
    drop_collection = collections.drop_collection
    reindex = reindexing.reindex
    reindex_status = reindexing.reindex_status
    estimate_reindex = reindexing.estimate_reindex
    pause_reindex = reindexing.pause_reindex
    cancel_reindex = reindexing.cancel_reindex
    undo_reindex = reindexing.undo_reindex

    list_dead_letters = dead_letters.list_dead_letters
    dead_letter = dead_letters.dead_letter
    replay = dead_letters.replay
    discard = dead_letters.discard

    list_groups = groups.list_groups
    group = groups.group
    retry_group = groups.retry_group
    cancel_group = groups.cancel_group
    list_batches = groups.list_batches
    start_batch = groups.start_batch
    start_document = groups.start_document

    create_key = keys.create_key
    list_keys = keys.list_keys
    revoke_key = keys.revoke_key
    create_token = keys.create_token
    list_audit = keys.list_audit
    record = scopes.record

    pause_intake = intake_pauses.pause_intake
    resume_intake = intake_pauses.resume_intake
    intake = intake_pauses.intake

    quota = quotas.quota
    set_quota = quotas.set_quota

    create_webhook = webhooks.create_webhook
    list_webhooks = webhooks.list_webhooks
    webhook = webhooks.webhook
    change_webhook = webhooks.change_webhook
    delete_webhook = webhooks.delete_webhook
    test_webhook = webhooks.test_webhook
    list_webhook_deliveries = webhooks.list_webhook_deliveries
    redeliver_webhook = webhooks.redeliver_webhook

    check = maintenance.check
    vacuum = maintenance.vacuum
    hold_index = maintenance.hold_index
    list_locks = maintenance.list_locks
    release_lock = maintenance.release_lock
