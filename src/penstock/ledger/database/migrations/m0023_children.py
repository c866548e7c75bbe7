"""Documents found inside other documents. `root_id` is the outermost document, and `depth` the number of documents
around a child. `parent_generation` is the newest generation of the parent that contains the child. `unpacked_members`
and `unpacked_bytes` count what was found inside an outermost document since its newest run began."""


def statements(dialect: str) -> list[str]:
    columns = (
        "parent_id TEXT",
        "root_id TEXT",
        "depth INTEGER NOT NULL DEFAULT 0",
        "parent_generation BIGINT",
        "unpacked_members BIGINT NOT NULL DEFAULT 0",
        "unpacked_bytes BIGINT NOT NULL DEFAULT 0",
    )
    return [
        *(f"ALTER TABLE documents ADD COLUMN {column}" for column in columns),
        "CREATE INDEX documents_parent ON documents (parent_id, id) WHERE parent_id IS NOT NULL AND deleted_at IS NULL",
    ]
