from cdc.errors import MillraceError as MillraceError
from cdc.reader.changes import changes as changes
from cdc.reader.events import ChangeEvent as ChangeEvent
from cdc.reader.events import ChangeSource as ChangeSource
from cdc.reader.stream import ChangeStream as ChangeStream
from cdc.reader.transactions import SourceTransaction as SourceTransaction
from cdc.reader.transactions import TransactionStream as TransactionStream
from cdc.records.dead_letters import DeadLetter as DeadLetter
from cdc.records.position import Lsn as Lsn
from cdc.records.position import Position as Position

__all__ = [
    "ChangeEvent",
    "ChangeSource",
    "ChangeStream",
    "DeadLetter",
    "Lsn",
    "MillraceError",
    "Position",
    "SourceTransaction",
    "TransactionStream",
    "changes",
    "main",
]
__version__: str

def main() -> None: ...
