"""What whoever starts a run asks of it, beyond the configuration."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A run's own wishes.

    ``records_max`` is about how many records it reads at most; what is left is a later run's. The
    tables of ``accepted_gaps`` go on although the log has forgotten changes of theirs.
    """

    records_max: int | None = None
    accepted_gaps: frozenset[str] = frozenset()
