"""The command line: `penstock COMMAND`. Each command imports heavy modules only when it needs them."""

import gc
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from penstock import __version__
from penstock.cli import (
    bench,
    collections,
    consume,
    demo,
    dlq,
    documents,
    evaluation,
    groups,
    intake,
    keys,
    mcp,
    metadata,
    models,
    quotas,
    reading,
    reindex,
    search,
    serve,
    settings,
    system,
    upkeep,
    usage,
    webhooks,
    work,
    worker,
    workflow,
)
from penstock.cli.call import Call, InOrder, Notes, shared
from penstock.cli.output import repair_streams
from penstock.cli.signals import Interrupted


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="penstock %(version)s")
@shared
@click.pass_obj
def penstock(call: Call, /, **values: Any) -> int:
    """Durable document ingestion: accepted is safe, done is kept, half-done is never seen."""
    call.take(values)
    return 0


for _command in (
    *(
        work.ingest,
        work.run,
        worker.worker,
        consume.consume,
        serve.serve,
        documents.status,
        documents.list_documents,
        search.search,
        reading.show,
    ),
    *(evaluation.evaluate, usage.usage),
    *(
        documents.retry,
        documents.cancel,
        documents.delete,
        collections.collection,
        reindex.reindex,
        metadata.meta,
        upkeep.check,
        upkeep.prune,
        upkeep.vacuum,
    ),
    *(upkeep.backup, upkeep.restore),
    *(dlq.dlq, groups.batch, groups.start, groups.group, system.steps, system.workers, system.lock),
    *(workflow.workflow, models.model, settings.config, settings.db),
    *(keys.key, keys.audit, webhooks.webhook, intake.intake, quotas.quota),
    *(mcp.mcp, bench.bench, demo.demo),
):
    penstock.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    call = Call(json="--json" in options)
    call.signals.install()
    try:
        code: int | None = penstock.main(list(arguments or ["--help"]), "penstock", standalone_mode=False, obj=call)
        return code or 0
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "penstock"
        return call.fail(f"{error.format_message().rstrip('.')} (see `{where} --help`)", 2)
    except (Interrupted, click.Abort):
        return call.fail("interrupted", call.signals.code)


def main() -> None:
    repair_streams()
    logging.lastResort = Notes(logging.WARNING)
    # Our matrix products are small: more threads make them slower. numpy reads this when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Pages and chunks form no cycles. With the default thresholds, garbage collection takes a tenth of the time.
    gc.set_threshold(20_000, 50, 100)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
