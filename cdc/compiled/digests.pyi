from collections.abc import Callable, Sequence

SOURCES: str

def hash_of(kind: int, scale: int, text: bytes, seed: int = 42) -> int: ...

class Digests:
    rows: int
    pending_bytes: int

    def __init__(
        self,
        kinds: Sequence[int],
        scales: Sequence[int],
        unfit: Sequence[bool],
        converts: Sequence[Callable[[bytes], bytes | int | None] | None],
        key: Sequence[int],
        group_bits: int = 0,
        keeps_columns: bool = False,
    ) -> None: ...
    def feed(self, data: bytearray, start: int, end: int) -> int: ...
    def take(self) -> list[tuple[int, bytes]]: ...
    def take_columns(self) -> list[tuple[int, list[int | None]]]: ...
    def sums_of_buckets(self) -> dict[int, tuple[int, int, int]]: ...
