"""The modules that the reader's import loads: its machine needs no other packages."""

import re
import subprocess
import sys
from pathlib import Path

import millrace
from deploy.local.processes import environment_with


def test_reading_loads_no_more_than_it_needs() -> None:
    program = (
        "import sys; before = set(sys.modules); from millrace import changes;"
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )
    environment = environment_with({"PYTHONPATH": str(Path(__file__).parents[4])})
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    needed = {"cdc", "millrace", "confluent_kafka", "pydantic", "pydantic_core"}
    of_pydantic = {"annotated_types", "typing_extensions", "typing_inspection"}
    loaded = {name for name in ended.stdout.split() if not name.startswith("_sysconfigdata")}
    assert loaded - of_pydantic == needed


def test_editors_know_what_the_module_has() -> None:
    stub = Path(millrace.__file__).parent / "millrace-stubs" / "__init__.pyi"
    typed = set(re.findall(r" as (\w+)$|def (\w+)", stub.read_text(encoding="utf-8"), re.MULTILINE))
    assert {name or function for name, function in typed} == set(millrace.__all__)
    assert all(getattr(millrace, name) is not None for name in millrace.__all__)
