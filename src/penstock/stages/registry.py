"""The built-in stages by kind."""

from penstock.stages.base import GroupedStage, Stage
from penstock.stages.chunk import CHUNK
from penstock.stages.clean import CLEAN
from penstock.stages.embed import EMBED
from penstock.stages.extract import EXTRACT
from penstock.stages.index import INDEX
from penstock.stages.validate import VALIDATE

STAGES: dict[str, Stage] = {stage.kind: stage for stage in (VALIDATE, EXTRACT, CLEAN, CHUNK, EMBED)}
GROUPED: dict[str, GroupedStage] = {INDEX.kind: INDEX}
KINDS = (*STAGES, *GROUPED)
