"""The demo, ended by SIGTERM: it leaves nothing."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.jars import REPOSITORY
from deploy.local.processes import environment_with
from deploy.local.stack import STATE_FILE, KeptProcess, KeptStack

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.opensearch]


@pytest.mark.proof
@pytest.mark.parametrize("keep", ["", "1"])
def test_a_demo_that_is_told_to_end_stops_its_servers(keep: str) -> None:
    kept = KeptStack.read(STATE_FILE)
    if keep and kept is not None and kept.running:
        pytest.skip("there is one stack that is kept, and it runs")
    demo = subprocess.Popen(
        [sys.executable, "-m", "deploy.demo"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=environment_with({"KEEP": keep}),
    )
    assert demo.stdout is not None
    while "Loading" not in (line := demo.stdout.readline()):
        assert line, "the servers don't start"
    listed = subprocess.run(["pgrep", "-P", str(demo.pid)], capture_output=True, check=True)
    children = [KeptProcess.of("child", int(pid)) for pid in listed.stdout.split()]
    folders = {Path(f"/proc/{child.pid}/cwd").resolve().parent for child in children}
    assert len(children) >= 3
    demo.send_signal(signal.SIGTERM)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert "interrupted: stopping everything" in output
    assert not any(child.running for child in children)
    made = [folder for folder in folders if folder.name.startswith("millrace-")]
    assert not any(folder.exists() for folder in made)
