"""The image's HEALTHCHECK → it asks its own daemon, whatever proxy the environment names."""

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Final

DOCKERFILE: Final = Path(__file__).parents[3] / "deploy/containers/Dockerfile"


def test_the_health_check_asks_the_daemons_port_and_no_proxy() -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if len(asked) == 1 else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    text = DOCKERFILE.read_text("utf-8").replace("\\\n", "")
    (check,) = re.findall(r"^HEALTHCHECK .*? CMD (\[.*\])$", text, re.MULTILINE)
    _, *words = json.loads(check)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        listen = f"0.0.0.0:{server.server_port}"
        environment = {"http_proxy": "http://127.0.0.1:1", "MILLRACE_HEALTH__LISTEN": listen}
        codes = [
            subprocess.run(
                [sys.executable, *words], env=environment, check=False, stderr=subprocess.DEVNULL
            ).returncode
            for _ in range(2)
        ]
        server.shutdown()
    assert (codes, asked) == ([0, 1], ["/health/live"] * 2)
