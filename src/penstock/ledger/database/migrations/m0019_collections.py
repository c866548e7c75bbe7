"""Collections can be dropped, and sources can be forgotten. An index finds the documents of a collection."""


def statements(dialect: str) -> list[str]:
    real = "DOUBLE PRECISION" if dialect == "postgres" else "REAL"
    return [
        # The newest document that a drop has to delete; NULL: no drop is in progress.
        "ALTER TABLE collections ADD COLUMN drop_to TEXT",
        f"ALTER TABLE collections ADD COLUMN dropped_at {real}",
        "CREATE INDEX collections_dropping ON collections (owner, name) WHERE drop_to IS NOT NULL",
        "CREATE INDEX documents_collection ON documents (owner, collection, id) WHERE deleted_at IS NULL",
        "CREATE INDEX documents_deleted ON documents (source, owner, collection) WHERE deleted_at IS NOT NULL",
        f"""CREATE TABLE forgotten (
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  source TEXT NOT NULL,
  forgotten_at {real} NOT NULL,
  PRIMARY KEY (owner, collection, source)
)""",
    ]
