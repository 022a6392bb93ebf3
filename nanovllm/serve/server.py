"""The server: its routes, and its life. Each route reads, asks the engine, and answers."""

import asyncio
import contextlib
import secrets
import signal
import socket
import threading
import time
from importlib.resources import files
from typing import Annotated, Any

import h11
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPBasic, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ..llm import LLM
from .answers import Answer
from .bodies import ApiError, Body, ChatBody
from .engine_loop import EngineLoop
from .metrics import Metrics

SLOW_SECONDS = 30  # after one to two times as long, slow connections are dropped
CHAT = "/v1/chat/completions"
PROBE = Body.model_validate({"prompt": [0], "max_tokens": 1})
PAGE = files(__package__) / "chat.html"
# Where clients show the key; browsers do so as a password.
Bearer = Annotated[Any, Depends(HTTPBearer(auto_error=False))]
Basic = Annotated[Any, Depends(HTTPBasic(auto_error=False))]


class Server:
    """An engine's server; a context manager, which serves in a thread.

    Args:
        llm: the engine. It is not closed at the end.
        host: the address to listen at; only the default keeps other machines out.
        port: 0 takes any that is free; `url` says which.
        api_key: what clients must show; "" if everybody may ask.
        max_waiting: most requests that wait, beside those that run; more get the status 429.
        drain_seconds: how long running answers may go on when the server is stopped.
    """

    def __init__(
        self,
        llm: LLM,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str = "",
        max_waiting: int = 512,
        drain_seconds: int = 30,
    ) -> None:
        llm.processor.require_tokenizer()
        self.llm, self.key, self.drain_seconds = llm, api_key.encode(), drain_seconds
        self.model = str(llm.config.model)
        self.metrics = Metrics(self.model, llm.scheduler)
        self.engine = EngineLoop(llm, self.metrics)
        self.max_requests = llm.config.max_num_seqs + max_waiting
        self.socket = socket.create_server((host, port), backlog=2048)
        self.url = f"http://{host}:{self.socket.getsockname()[1]}"
        how: Any = {"http": "h11", "ws": "none", "callback_notify": self._drop_slow}
        how |= {"timeout_graceful_shutdown": drain_seconds + 5, "timeout_notify": SLOW_SECONDS}
        self.uvicorn = uvicorn.Server(uvicorn.Config(self._make_app(), log_level="warning", **how))
        # Its own handlers would end the process by the signal, and not with 0.
        self.uvicorn.capture_signals = contextlib.nullcontext  # type: ignore
        self.slow: dict[Any, Any] = {}

    def _make_app(self) -> FastAPI:
        app = FastAPI(openapi_url=None, lifespan=self.engine.lifespan)
        for kind in (ApiError, HTTPException, ClientDisconnect, Exception):
            app.exception_handler(kind)(self._on_error)
        app.get("/health")(self.get_health)
        needs_key = [Depends(self._check_key)]
        app.get("/", dependencies=needs_key)(self.get_page)
        app.get("/metrics", dependencies=needs_key)(self.get_metrics)
        app.get("/blocks", dependencies=needs_key)(self.get_blocks)
        app.get("/v1/models", dependencies=needs_key)(self.get_models)
        app.post("/v1/completions", dependencies=needs_key)(self.complete)
        app.post(CHAT, dependencies=needs_key)(self.complete)
        return app

    async def _on_error(self, request: Request, error: Any) -> Response:
        if not isinstance(error, ApiError):  # no such route or method, or a mistake of ours
            why = getattr(error, "detail", "an error inside the server; its log says more")
            error = ApiError(getattr(error, "status_code", 500), why)
        return JSONResponse(error.content, error.status, error.headers)

    async def _check_key(self, bearer: Bearer, basic: Basic) -> None:
        """Raise `ApiError` if a key is needed and not shown."""
        shown = bearer.credentials if bearer else basic.password if basic else ""
        if self.key and not secrets.compare_digest(shown.encode(), self.key):
            raise ApiError(401, "a valid API key is needed", code="invalid_api_key")

    # What can be looked at.

    async def get_health(self) -> Response:
        """200 if the engine makes tokens; one that is idle is asked for one."""
        if self.engine.dead or not self.engine.answers:
            await (await self._ask(PROBE)).whole(self.engine.next_step)
        return JSONResponse({"status": "ok"})

    async def get_page(self) -> Response:
        """The chat page."""
        return HTMLResponse(PAGE.read_bytes())

    async def get_metrics(self) -> Response:
        """For Prometheus."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def get_models(self) -> Response:
        """The one that is served."""
        card = {"id": self.model, "object": "model", "created": int(time.time())}
        card |= {"owned_by": "nanovllm", "max_model_len": self.llm.config.max_model_len}
        return JSONResponse({"object": "list", "data": [card]})

    async def get_blocks(self) -> Response:
        """Who has which block of the cache, for the page; a step may change it meanwhile."""
        manager = self.llm.scheduler.block_manager
        used = {i: manager.blocks[i].ref_count for i in list(manager.used_block_ids)}
        free = [i for i in list(manager.free_block_ids) if manager.blocks[i].hash != -1]
        tables = [table for answer in self.engine.answers for table in answer.block_tables()]
        size = {"block_size": manager.block_size, "num_blocks": manager.num_blocks}
        return JSONResponse(size | {"used": used, "cached": free[-4096:], "tables": tables})

    # What the engine is asked.

    async def complete(self, request: Request) -> Response:
        """Texts that go on after prompts, or the next turn of a conversation."""
        kind = ChatBody if request.url.path == CHAT else Body
        body = kind.read(await self._read(request))
        if body.model not in ("", self.model):
            why = f"there is no model {body.model!r} here, but {self.model!r}"
            raise ApiError(404, why, "model", "model_not_found")
        answer = await self._ask(body)
        self.engine.answers[answer] = asyncio.create_task(self._watch(request, answer))
        if not body.stream:
            return JSONResponse(await answer.whole(self.engine.next_step))
        await self.engine.next_step()  # if there is none, the status can still say so
        stream = answer.stream(self.engine.next_step)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _ask(self, body: Body) -> Answer:
        """Have the engine begin. Raises `ApiError`."""
        answer = Answer(self.llm, body, self.model)
        work = await asyncio.to_thread(body.prepare, self.llm, self.max_requests)
        async with self.engine.between_steps:
            if self.engine.dead:
                raise self.engine.dead
            answer.start(work, self.max_requests)
        return answer

    async def _read(self, request: Request) -> bytes:
        """A JSON text of a bounded size. Raises `ApiError`."""
        # Without this, any page in a browser could ask: it may send texts everywhere.
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise ApiError(400, "the Content-Type must be application/json")
        data, most = b"", 2**16 + 64 * self.llm.config.max_model_len  # no text has longer tokens
        async for chunk in request.stream():
            data += chunk
            if len(data) > most:
                raise ApiError(413, f"the body has more than {most} bytes")
        return data

    async def _watch(self, request: Request, answer: Answer) -> None:
        """Let go of an answer when its client has gone, or has it."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        answer.abort()
        self.metrics.count(answer)
        del self.engine.answers[answer]

    async def _drop_slow(self) -> None:
        """Drop who sent or read too slowly at the last call already, and for the same request."""
        connections: Any = self.uvicorn.server_state.connections
        waits = (h11.IDLE, h11.SEND_BODY)  # for a request, or the rest of one
        slow = {c for c in connections if c.conn.their_state in waits or c.flow.write_paused}
        for connection in slow:
            if connection.cycle is self.slow.get(connection, 0):
                connection.transport.abort()
        self.slow = {connection: connection.cycle for connection in slow}

    # Its life.

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C; the running answers end, unless there is a second one."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        self.uvicorn.run([self.socket])

    def stop(self) -> None:
        """Take no new requests, and end with the running ones; at once if it is called again."""
        again = self.uvicorn.force_exit = self.uvicorn.should_exit
        self.engine.deadline = time.monotonic() + (0 if again else self.drain_seconds)
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
