"""State records of tables, for the tests of what is told and done by them."""

from cdc.records.position import Lsn
from cdc.records.schema import TableName
from cdc.records.state import Phase, TableState


def table_state(name: TableName, **more: object) -> TableState:
    """A whole table with a compacted topic of one partition, but for what is said otherwise."""
    made = TableState(
        namespace=name.namespace,
        table=name.name,
        topic=f"pre.{name}",
        partitions=1,
        cleanup="compact",
        epoch=1,
        phase=Phase.STREAMING,
        snapshot_lsn=Lsn(1),
    )
    return made.model_copy(update=more)
