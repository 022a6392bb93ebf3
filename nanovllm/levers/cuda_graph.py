"""CUDA graphs: a decode step is recorded once for each batch size, and then launched by one call.

Sampling is part of it. Compare vllm/v1/worker/gpu_model_runner.py (`capture_model`) and
mini-sglang's engine/graph.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.model_runner import ModelRunner
from ..engine.sequence import Sequence
from ..engine.step_output import StepOutput
from ..layers.embed_head import ParallelLMHead
from ..layers.sampler import SamplingMetadata
from ..utils.context import get_context, reset_context, set_context
from ..utils.swap import swap


class ModelRunnerLever(ModelRunner):
    """Decode steps are copied into fixed buffers and replayed; prefills are launched as ever."""

    def start(self) -> None:
        """Record the graphs when there is a KV cache."""
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.buffers: dict[str, Tensor] = {}
        self.num_graph_replays = 0
        self.num_filled_rows = 0  # of the buffers; the rest is padding
        self.stays_on_host = False
        super().start()
        self.capture_cudagraph(self.batch_sizes)

    def warmup_model(self) -> int:
        """What the graphs take, too: two of them are recorded for a try, with a cache of one block.

        All graphs share the memory that their steps take, so that the largest one, which comes
        first, takes the most, and all others about the same.
        """
        step_bytes = super().warmup_model()
        asked, self.config.num_kvcache_blocks = self.config.num_kvcache_blocks, 1
        self.kv_cache = self.allocate_kv_cache(1)
        self.buffers = self.allocate_buffers()
        self.batch_sizes = graph_batch_sizes(len(self.buffers["input_ids"]))
        free = []
        for batch_sizes in ([], self.batch_sizes[-1:], self.batch_sizes[-2:]):
            self.capture_cudagraph(batch_sizes)
            torch.cuda.empty_cache()
            free.append(torch.cuda.mem_get_info(self.device)[0])
        self.graphs.clear()
        self.config.num_kvcache_blocks = asked
        self.kv_cache = torch.empty(0)
        for layer in self.layers:
            layer.k_cache = layer.v_cache = self.kv_cache
        torch.cuda.empty_cache()
        first, further = max(free[0] - free[1], 0), max(free[1] - free[2], 0)
        # What other processes take meanwhile must not be counted many times.
        return step_bytes + first + (len(self.batch_sizes) - 1) * min(further, first // 4)

    def allocate_kv_cache(self, num_blocks: int) -> Tensor:
        """One block more than the scheduler knows of, into which padded rows write."""
        return super().allocate_kv_cache(num_blocks + 1)

    def allocate_buffers(self) -> dict[str, Tensor]:
        """The fixed inputs and outputs of the graphs, for the largest batch."""
        size = min(self.config.max_num_seqs, self.config.max_num_batched_tokens)
        max_blocks = -(-self.config.max_model_len // self.block_size)
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "input_ids": ((size,), torch.int64),
            "positions": ((size,), torch.int64),
            "slot_mapping": ((size,), torch.int64),
            "context_lens": ((size,), torch.int32),
            "block_tables": ((size, max_blocks), torch.int32),
            "temperatures": ((size,), torch.float32),
            "seeds": ((size,), torch.int64),
            "token_ids": ((size,), torch.int64),
        }
        if self.group.rank == 0:
            shapes["logits"] = ((size, self.config.hf_config.vocab_size), self.config.dtype)
        buffers = {
            name: torch.zeros(shape, dtype=dtype, device=self.device)
            for name, (shape, dtype) in shapes.items()
        }
        self.model.lm_head.logits = buffers.get("logits")  # type: ignore[union-attr]
        return buffers

    @torch.inference_mode()
    def capture_cudagraph(self, batch_sizes: list[int]) -> None:
        """Record the decode step once for every size, largest first."""
        self.fill_padding(0, len(self.buffers["input_ids"]))
        pool = None
        try:
            for batch_size in reversed(batch_sizes):
                graph = torch.cuda.CUDAGraph()
                self.run_in_buffers(batch_size)  # compiles and allocates what a recording must not
                torch.cuda.synchronize(self.device)
                # Other threads may use the GPU for their engines meanwhile.
                with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
                    self.run_in_buffers(batch_size)
                pool = pool or graph.pool()
                self.graphs[batch_size] = graph
        finally:
            reset_context()

    def run_in_buffers(self, batch_size: int) -> None:
        """The decode step on the first rows of the fixed buffers."""
        rows = {name: buffer[:batch_size] for name, buffer in self.buffers.items()}
        names = ("slot_mapping", "context_lens", "block_tables")
        set_context(is_prefill=False, **{name: rows[name] for name in names})
        logits = super().run_model(rows["input_ids"], rows["positions"])
        metadata = SamplingMetadata(rows["temperatures"], rows["seeds"], rows["positions"] + 1)
        rows["token_ids"].copy_(super().sample(logits, metadata, batch_size))

    # A step.

    def launch(self, *args: Any) -> StepOutput:
        """See `ModelRunner`."""
        self.stays_on_host = False  # whatever an interrupt has left
        return super().launch(*args)

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """Leave tensors in pinned memory: from there they are copied straight into the buffers."""
        self.stays_on_host = True
        try:
            yield
        finally:
            self.stays_on_host = False

    def to_device(self, data: list[Any], dtype: torch.dtype) -> Tensor:
        """See `on_host`."""
        if self.stays_on_host:
            return torch.tensor(data, dtype=dtype, pin_memory=True)
        return super().to_device(data, dtype)

    def prepare_decode(self, seqs: list[Sequence]) -> tuple[Tensor, Tensor]:
        """Into the buffers."""
        with self.on_host():
            input_ids, positions = super().prepare_decode(seqs)
        context = get_context()
        # Raised first and lowered last: an interrupt in between must not leave rows that count as
        # padding.
        self.num_filled_rows = max(self.num_filled_rows, len(seqs))
        inputs = {"input_ids": input_ids, "positions": positions}
        inputs |= {name: getattr(context, name) for name in ("slot_mapping", "context_lens")}
        for name, tensor in inputs.items():
            self.buffers[name][: len(seqs)].copy_(tensor, non_blocking=True)
        tables = context.block_tables
        assert tables is not None
        rows = self.buffers["block_tables"][: len(seqs), : tables.shape[1]]
        rows.copy_(tables, non_blocking=True)
        return self.buffers["input_ids"][: len(seqs)], positions

    def prepare_sample(self, seqs: list[Sequence]) -> SamplingMetadata | None:
        """Into the buffers, but for filters, which are no part of the graphs."""
        if get_context().is_prefill:
            return super().prepare_sample(seqs)
        with self.on_host():
            metadata = super().prepare_sample(seqs)
        if metadata is None:
            self.buffers["temperatures"][: len(seqs)] = 0.0
            return None
        self.buffers["temperatures"][: len(seqs)].copy_(metadata.temperatures, non_blocking=True)
        self.buffers["seeds"][: len(seqs)].copy_(metadata.seeds, non_blocking=True)
        return metadata

    def run_model(self, input_ids: Tensor, positions: Tensor) -> Tensor | None:
        """Replay the smallest graph that is large enough."""
        if get_context().is_prefill:
            return super().run_model(input_ids, positions)
        num_seqs = len(input_ids)
        self.fill_padding(num_seqs, self.num_filled_rows)
        self.num_filled_rows = num_seqs
        self.graphs[min(size for size in self.graphs if size >= num_seqs)].replay()
        self.num_graph_replays += 1
        return self.buffers["logits"][:num_seqs] if self.group.rank == 0 else None

    def sample(
        self, logits: Tensor | None, metadata: SamplingMetadata | None, num_seqs: int
    ) -> Tensor:
        """The graph has done it, unless there are filters; the next one overwrites the tokens."""
        if get_context().is_prefill:
            return super().sample(logits, metadata, num_seqs)
        if metadata is not None and metadata.has_filters:
            tensors = {field.name: getattr(metadata, field.name) for field in fields(metadata)}
            on_device = {
                name: tensor.to(self.device, non_blocking=True)
                for name, tensor in tensors.items()
                if tensor is not None
            }
            token_ids = super().sample(logits, replace(metadata, **on_device), num_seqs)
            self.buffers["token_ids"][:num_seqs].copy_(token_ids)
        return self.buffers["token_ids"][:num_seqs]

    def fill_padding(self, start: int, end: int) -> None:
        """Let rows `start` to `end - 1` hold token 0 and use the block beyond the pool."""
        if start < end:
            padding = {"input_ids": 0, "temperatures": 0.0, "context_lens": 1}
            padding["block_tables"] = self.config.num_kvcache_blocks
            padding["slot_mapping"] = self.config.num_kvcache_blocks * self.block_size
            for name, value in padding.items():
                self.buffers[name][start:end] = value

    def exit(self) -> None:
        """Free the graphs, too."""
        self.graphs.clear()
        self.buffers.clear()
        super().exit()


class HeadIntoBuffer(ParallelLMHead):
    """Writes the logits of a decode step where the sampler of the graph reads them."""

    logits: Tensor | None = None

    def forward(self, hidden_states: Tensor) -> Tensor | None:  # type: ignore[override]
        """See `ParallelLMHead`."""
        if self.logits is None or get_context().is_prefill:
            return super().forward(hidden_states)
        out = self.logits[: len(hidden_states)]
        if self.group.size == 1:
            return torch.mm(hidden_states, self.weight.t(), out=out)
        logits = super().forward(hidden_states)
        return None if logits is None else out.copy_(logits)


def install(model: nn.Module, sampler: nn.Module) -> None:
    """Change the head."""
    swap(model, ParallelLMHead, HeadIntoBuffer)


def graph_batch_sizes(max_batch_size: int) -> list[int]:
    """1, 2, 4, multiples of 8 (above 256: of 32), and `max_batch_size`: one for any batch."""
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, max_batch_size + 1, 32)}
    return sorted({size for size in sizes if size <= max_batch_size} | {max_batch_size})
