"""The routes. Each reads a request, queues jobs for the engine, and answers in OpenAI's form."""

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from ..llm import LLM
from ..prompts import as_prompt_list
from ..sampling_params import SamplingParams
from .answers import Answer, Job
from .bodies import ApiError, as_turn, check, sampling_params
from .engine_loop import EngineLoop
from .metrics import Metrics

PROBE_SECONDS = 10.0  # until an idle engine must have made a token
PAGE = files(__package__) / "chat.html"
# What the page may load: nothing from elsewhere.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
POLICY += "connect-src 'self'; img-src data:; frame-ancestors 'none'"


class Service:
    """The application, in `app`, and what its routes share.

    Args:
        llm: the engine.
        api_key: what clients must show; "" if everybody may ask.
        served_model_name: what clients call the model; "" for the name that the engine knows.
        max_waiting: most requests that wait, beside those that run; more get the status 429.
    """

    def __init__(
        self, llm: LLM, api_key: str = "", served_model_name: str = "", max_waiting: int = 512
    ) -> None:
        llm.processor.require_tokenizer()
        self.llm, self.key = llm, api_key.encode()
        self.model = served_model_name or str(llm.config.model)
        max_jobs = llm.config.max_num_seqs + max_waiting
        self.engine = EngineLoop(llm, max_jobs, lambda output: self.metrics.count(output))
        running, manager = llm.scheduler.running, llm.scheduler.block_manager
        gauges = {
            "num_requests_running": lambda: len(running),
            "num_requests_waiting": lambda: max(0, len(self.engine.jobs) - len(running)),
            "kv_cache_usage_perc": lambda: len(manager.used_block_ids) / manager.num_blocks,
        }
        self.metrics: Metrics = Metrics(self.model, gauges)
        # One thread reads prompts, so that a long one holds up neither the engine nor connections.
        self.reader = ThreadPoolExecutor(1, "nanovllm-prompts")
        self.max_prompt = min(llm.config.max_model_len, llm.config.num_kvcache_tokens)
        options: dict[str, Any] = {"openapi_url": None, "lifespan": self._lifespan}
        options["max_body_size"] = 2**16 + 64 * self.max_prompt  # no text has longer tokens
        self.app = app = FastAPI(dependencies=[Depends(self._check_key)], **options)
        for path in ("/", "/health", "/metrics", "/blocks", "/models"):
            look = getattr(self, "get_" + (path[1:] or "page"))
            app.get("/v1/models" if look == self.get_models else path)(look)
        app.post("/v1/completions")(self.complete)
        app.post("/v1/chat/completions")(self.chat)
        for kind in (ApiError, HTTPException, RequestValidationError, Exception):
            app.exception_handler(kind)(self._on_error)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(self.engine.run())
        yield
        task.cancel()
        self.engine.close()

    async def _on_error(self, request: Request, error: Any) -> Response:
        if isinstance(error, RequestValidationError):
            error = ApiError(400, "the body must be a JSON object, with its Content-Type")
        elif not isinstance(error, ApiError):  # no such route or method, or a mistake of ours
            why = getattr(error, "detail", "an error inside the server; its log says more")
            error = ApiError(getattr(error, "status_code", 500), why)
        return JSONResponse(error.content, error.status, error.headers)

    async def _check_key(self, request: Request) -> None:
        """Raise `ApiError` if a key is needed and not shown. Browsers show it as a password."""
        kind, _, shown = request.headers.get("authorization", "").partition(" ")
        key = shown.encode("latin-1")
        if kind.lower() == "basic":
            with suppress(ValueError):
                key = base64.b64decode(key).partition(b":")[2]
        if self.key and request.url.path != "/health" and not secrets.compare_digest(key, self.key):
            raise ApiError(401, "a valid API key is needed", code="invalid_api_key")

    # What can be looked at.

    async def get_page(self) -> Response:
        """The chat page."""
        return HTMLResponse(PAGE.read_bytes(), headers={"Content-Security-Policy": POLICY})

    async def get_health(self) -> Response:
        """200 if the engine makes tokens; one that is idle is asked for one."""
        probe = Answer({}, False, "", self.llm.tokenizer, None)
        if self.engine.dead or not self.engine.jobs:
            probe.jobs = [Job(probe, 0, [0], SamplingParams(temperature=0, max_tokens=1))]
            self.engine.submit(probe.jobs)
            try:
                await asyncio.wait_for(probe.news(), PROBE_SECONDS)
            except TimeoutError:
                raise ApiError(503, "the engine does not answer") from None
        return JSONResponse({"status": "ok"})

    async def get_metrics(self) -> Response:
        """For Prometheus."""
        return Response(self.metrics.render(), media_type="text/plain; version=0.0.4")

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
        seqs = [(job.answer.head, job.request.seq) for job in self.engine.jobs if job.request]
        tables = [{"id": head["id"], "blocks": list(seq.block_table)} for head, seq in seqs]
        size = {"block_size": manager.block_size, "num_blocks": manager.num_blocks}
        return JSONResponse(size | {"used": used, "cached": free[-4096:], "tables": tables})

    # What the engine is asked.

    async def complete(self, request: Request, body: dict[str, Any]) -> Response:
        """Texts that go on after one prompt or several."""
        return await self._answer(request, "prompt", body)

    async def chat(self, request: Request, body: dict[str, Any]) -> Response:
        """The next turn of a conversation."""
        return await self._answer(request, "messages", body)

    async def _answer(self, request: Request, field: str, body: dict[str, Any]) -> Response:
        loop, connection = asyncio.get_running_loop(), request.scope["extensions"]["nanovllm"]
        body = check(body)
        work = await loop.run_in_executor(self.reader, self._prepare, field, body)
        answer = Answer(body, field == "messages", self.model, self.llm.tokenizer, connection)
        answer.jobs = [Job(answer, i, *each) for i, each in enumerate(work)]
        self.engine.submit(answer.jobs)
        connection.on_lost = partial(self.engine.abort, answer.jobs)
        if connection.transport.is_closing():  # before this could be said
            connection.on_lost()
        if not answer.streams:
            return JSONResponse(await answer.whole())
        await answer.news()  # if there is none, the status can still say so
        return StreamingResponse(answer.stream(), media_type="text/event-stream")

    def _prepare(self, field: str, body: dict[str, Any]) -> list[Any]:
        """Token ids and parameters of each choice. Raises `ApiError`."""
        is_chat, n, work = field == "messages", body.get("n", 1), []
        if body.get("model", self.model) != self.model:
            why = f"there is no model {body['model']!r} here, but {self.model!r}"
            raise ApiError(404, why, "model", "model_not_found")
        try:
            prompts = [self._chat_prompt(body)] if is_chat else as_prompt_list(body.get(field))
            if not 1 <= len(prompts) * n <= self.engine.max_jobs:
                raise ValueError(f"from 1 to {self.engine.max_jobs} answers at once")
            for token_ids in map(self.llm.processor.encode, prompts):
                room = self.max_prompt - len(token_ids) + 1
                if room < 1:
                    why = f"{field}: {len(token_ids)} tokens; at most {self.max_prompt} fit"
                    raise ApiError(400, why, field, "context_length_exceeded")
                params = sampling_params(body, room if is_chat else 16, room)
                for i in range(n):
                    seed = params.seed if params.seed is None else params.seed + i
                    work.append((token_ids, replace(params, seed=seed)))
        except (TypeError, ValueError) as error:
            raise ApiError(400, f"{field}: {error!s:.1000}", field) from error
        return work

    def _chat_prompt(self, body: dict[str, Any]) -> list[int]:
        kwargs = body.get("chat_template_kwargs", {})  # such as enable_thinking
        if not all(isinstance(value, bool) for value in kwargs.values()):
            raise ApiError(
                400, "chat_template_kwargs must be true or false", "chat_template_kwargs"
            )
        turns = [as_turn(message) for message in body.get("messages", [])]
        return self.llm.apply_chat_template(turns, **kwargs)
