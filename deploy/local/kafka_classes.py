"""A broker that is started and stopped → an archive of its classes: kafka_classes.py FILE.

With the archive, a broker starts in about half the time. If Java can't make one, the file is empty,
and isn't used. https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html
"""

import shutil
import sys
from pathlib import Path

from deploy.local.kafka import Kafka
from deploy.local.processes import ServerError, run_folder


def main(file: Path) -> int:
    """Write the archive, which appears once it is whole."""
    made, folder = file.with_suffix(".new").absolute(), run_folder("millrace-classes-")
    made.unlink(missing_ok=True)
    kafka = Kafka(folder)
    kafka.java_options = (f"-XX:ArchiveClassesAtExit={made}",)
    try:
        kafka.start().stop()
    except ServerError as error:
        print(f"setup: no class archive: brokers start more slowly: {error}")
    finally:
        kafka.kill()
        shutil.rmtree(folder, ignore_errors=True)
    made.touch()
    made.replace(file)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
