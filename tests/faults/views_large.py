"""`millrace` that treats small views as views of gigabytes: it follows their changes.

It is as correct as `millrace`, which would evaluate views of small tables as a whole. It compacts
any two files.
"""

from compaction import files
from millrace import main
from sinks.delta import version
from sinks.views import store, target

target.WHOLE_BYTES = 0  # type: ignore[misc]
target.TOUCHED_MAX = 1  # type: ignore[misc]
store.SMALL_BYTES = 0  # type: ignore[misc]
version.SMALL_BYTES = 0  # type: ignore[misc]
files.SMALL_FILES_MIN = 1  # type: ignore[misc]

if __name__ == "__main__":
    main()
