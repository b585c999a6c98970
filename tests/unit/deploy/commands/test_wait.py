"""A source that connects but doesn't answer → a wait that ends in time."""

import socket
import time

import pytest

from cdc.errors import SourceUnreachableError
from cdc.settings import Settings
from deploy.commands.wait import _source_end


def test_a_silent_source_is_asked_no_longer_than_there_is_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        settings = Settings.model_validate(
            {
                "source": {"host": host, "port": str(port), "user": "u", "dbname": "d"},
                "capture": {"topic.prefix": "p"},
                "kafka": {"bootstrap.servers": "nowhere:9092"},
            }
        )
        began = time.monotonic()
        with pytest.raises(SourceUnreachableError, match="no answer within 1 s"):
            _source_end(settings, began)  # the time is over: it has a second all the same
        assert time.monotonic() - began < 1.8
