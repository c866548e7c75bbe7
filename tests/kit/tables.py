"""Index tables for tests."""

from penstock.indexes.base import Index, IndexTable, Maintained, TableId, maintained
from penstock.indexes.lance import LanceIndex, LanceTable

TABLE = TableId("anna", "default", 1)


async def there(index: Index, table: TableId = TABLE) -> IndexTable:
    """A table that is there."""
    found = await index.open(table)
    assert found is not None
    return found


async def lance_table(index: LanceIndex, dimensions: int, table: TableId = TABLE) -> LanceTable:
    """A table that is there, or is made now."""
    return await index.open(table) or await index.create(table, dimensions)


def upkeep_of(table: IndexTable) -> Maintained:
    found = maintained(table)
    assert found is not None
    return found
