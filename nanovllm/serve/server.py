"""Sockets and signals: a server in a terminal, or in a thread beside a notebook."""

import contextlib
import signal
import socket
import threading
import time
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..llm import LLM
from .app import Service

REQUEST_SECONDS = 30.0  # until a request must be complete


class Connection(H11Protocol):
    """Ends if no request comes; an answer may end it, and hears of its end."""

    on_lost: Any = dict  # does nothing

    def connection_made(self, transport: Any) -> None:
        """Begin to count the time."""
        super().connection_made(transport)
        self.drop = transport.abort
        self.deadline = self.loop.call_later(REQUEST_SECONDS, self.drop)

    def handle_events(self) -> None:
        """Count until a request is complete; anew for the next one."""
        super().handle_events()
        if self.scope is not None:
            self.scope["extensions"] = {"nanovllm": self}  # type: ignore
        if self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete:
            self.flow.pause_reading()  # the body is too long, and has been refused
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self.deadline.cancel()
        elif self.deadline.cancelled() and self.conn.trailing_data[0]:
            self.deadline = self.loop.call_later(REQUEST_SECONDS, self.drop)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self.deadline.cancel()
        self.on_lost()
        super().connection_lost(exc)


class Server:
    """An engine's server; a context manager, which serves in a thread.

    Args:
        llm: the engine. It is not closed at the end.
        host: the address to listen at; only the default keeps other machines out.
        port: 0 takes any that is free; `url` says which.
        drain_seconds: how long running answers may go on when the server is stopped.
        **options: those of `Service`.
    """

    def __init__(
        self,
        llm: LLM,
        host: str = "127.0.0.1",
        port: int = 0,
        drain_seconds: int = 30,
        **options: Any,
    ) -> None:
        self.service, self.drain_seconds = Service(llm, **options), drain_seconds
        self.socket = socket.create_server((host, port), backlog=2048)
        self.url = f"http://{host}:{self.socket.getsockname()[1]}"
        how: dict[str, Any] = {"http": Connection, "ws": "none", "loop": "asyncio"}
        how |= {"log_level": "warning", "timeout_graceful_shutdown": drain_seconds + 5}
        self.uvicorn = uvicorn.Server(uvicorn.Config(self.service.app, **how))
        # Its own handlers would end the process by the signal, and not with 0.
        self.uvicorn.capture_signals = contextlib.nullcontext  # type: ignore

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C; the running answers end, unless there is a second one."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        self.uvicorn.run([self.socket])

    def stop(self) -> None:
        """Take no new requests, and end with the running ones; at once if it is called again."""
        again = self.uvicorn.force_exit = self.uvicorn.should_exit
        self.service.engine.deadline = time.monotonic() + (0 if again else self.drain_seconds)
        self.uvicorn.should_exit = True

    def __enter__(self) -> "Server":
        self.thread = threading.Thread(target=self.uvicorn.run, args=([self.socket],), daemon=True)
        self.thread.start()
        while not self.uvicorn.started and self.thread.is_alive():
            time.sleep(0.01)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        self.thread.join()
