"""Turns scheduled sequences into tensors, runs the model on them, and samples.

Compare vllm/v1/worker/gpu_model_runner.py.
"""

import gc
import threading
from typing import Any

import torch
import xxhash

from ..config import Config
from ..layers.attention import Attention, get_attention_backend
from ..layers.linear import LinearBase
from ..layers.sampler import Sampler, SamplingMetadata, compute_logprobs
from ..models import get_model_class
from ..utils.context import get_context, reset_context, set_context, set_overlapped_launches
from ..utils.loader import init_dummy_weights, load_model
from ..utils.memory import available_memory, kv_block_bytes, num_blocks_that_fit
from ..utils.parallel_state import TensorParallelGroup, tensor_parallel_group
from .sequence import PENDING_TOKEN, Sequence

# On a CPU the pool is sized for this many sequences at most.
CPU_POOL_SEQS = 64
# And it takes at most this share of the free memory.
CPU_POOL_SHARE = 0.25
# To make an engine is to set torch's default dtype, to measure the memory of a GPU and to record graphs, and these
# concern the whole process. So its engines are made and ended one at a time. Reentrant, because a garbage collection
# may end an abandoned engine in the middle.
ONE_AT_A_TIME = threading.RLock()

# A token and the log-probabilities for each sequence of a step, None where there are none.
StepResult = tuple[list[int | None], list[dict[int, float] | None]]


class ModelRunner:
    """One rank's model, its KV cache, and its CUDA graphs.

    Args:
        config: of the engine; `num_kvcache_blocks` is filled in if it is -1.
        group: this rank's place in the tensor-parallel group.

    Raises:
        ValueError: the model or its weights do not fit.
        MemoryError: weights or KV cache do not fit into memory; says which option to change.
    """

    def __init__(self, config: Config, group: TensorParallelGroup = TensorParallelGroup()) -> None:
        self.config = config
        self.group = group
        self.block_size = config.kvcache_block_size
        self.device = torch.device(f"cuda:{group.rank}" if config.device == "cuda" else config.device)
        self.sampler = Sampler()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.graph_buffers: dict[str, torch.Tensor] = {}
        self.activation_memory = self.graph_memory = 0
        self.num_graph_replays = 0
        self.num_filled_rows = 0  # of the graphs' buffers; the rest is padding
        self.stays_on_host = False  # whether `to_device` leaves the copying to `replay_cudagraph`
        try:
            with ONE_AT_A_TIME:
                self.model = self.build_model()
                self.warmup_model()
                if self.config.is_enabled("cuda_graph"):
                    self.graph_memory = self.measure_graph_memory()
                self.config.num_kvcache_blocks = self.choose_num_blocks()
                self.kv_cache = self.allocate_kv_cache()
                if self.config.is_enabled("cuda_graph"):
                    self.capture_cudagraph(graph_batch_sizes(len(self.graph_buffers["input_ids"])))
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                "out of GPU memory at start; lower max_num_batched_tokens, max_num_seqs or gpu_memory_utilization "
                f"({config.gpu_memory_utilization}), or use a smaller model: {error}"
            ) from error
        except RuntimeError as error:
            if "can't allocate memory" not in str(error):  # what torch says on a CPU
                raise
            raise MemoryError(f"out of memory at start; use a smaller model or free the memory: {error}") from error

    def build_model(self) -> torch.nn.Module:
        """The model on its device, with its weights."""
        model_class = get_model_class(self.config.hf_config)
        default_dtype = torch.get_default_dtype()
        torch.set_default_dtype(self.config.dtype)
        try:
            with self.device, tensor_parallel_group(self.group):
                model = model_class(self.config.hf_config)
        finally:
            torch.set_default_dtype(default_dtype)
        if self.config.load_format == "dummy":
            init_dummy_weights(model, self.config.seed)
        else:
            load_model(model, self.config.model_path)
        self.backend = get_attention_backend(self.config.attention_backend)
        for layer in self.attention_layers(model):
            layer.backend = self.backend
        packs_weights = self.config.is_enabled("packed_weights")
        folds_norms = self.config.is_enabled("folded_norm")
        for module in [*model.modules(), self.sampler]:
            optimization = getattr(module, "optimization", None)
            if isinstance(optimization, str):
                setattr(module, "is_fused", self.config.is_enabled(optimization))  # noqa: B010 (any of several classes)
            if packs_weights and isinstance(module, LinearBase):
                module.pack_weight()
            if folds_norms and hasattr(module, "fold_norms"):
                module.fold_norms()  # type: ignore[operator]
        return model.eval()

    @staticmethod
    def attention_layers(model: torch.nn.Module) -> list[Attention]:
        """The attention layers in order."""
        return [module for module in model.modules() if isinstance(module, Attention)]

    def warmup_model(self) -> None:
        """Run the largest prefill once on a GPU, so that the memory it needs is known before the pool is sized."""
        if self.config.device != "cuda":
            return
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        max_len = min(self.config.max_num_batched_tokens, self.config.max_model_len)
        num_seqs = max(1, min(self.config.max_num_batched_tokens // max_len, self.config.max_num_seqs))
        seqs = [Sequence([0] * max_len, block_size=self.block_size) for _ in range(num_seqs)]
        for seq in seqs:
            seq.num_scheduled_tokens = len(seq)
        self.run(seqs, is_prefill=True)
        peak, now = torch.cuda.max_memory_allocated(self.device), torch.cuda.memory_allocated(self.device)
        self.activation_memory = peak - now
        torch.cuda.empty_cache()

    def measure_memory(self) -> tuple[int, int, int]:
        """Bytes of memory there are for this rank, those in use, and those that steps and CUDA graphs will take.

        On a CPU only free memory counts, the ranks share it, and what a step takes is not measured.
        """
        if self.config.device != "cuda":
            return available_memory() // self.group.size, 0, 0
        free, total = torch.cuda.mem_get_info(self.device)
        return total, total - free, self.activation_memory + self.graph_memory

    def choose_num_blocks(self) -> int:
        """Size of the pool: what was asked for if it fits; if that was left open, what the memory has room for.

        Raises:
            MemoryError: it does not fit, or not even one block does; says which option to change.
        """
        config, asked, on_gpu = self.config, self.config.num_kvcache_blocks, self.config.device == "cuda"
        share = config.gpu_memory_utilization if on_gpu else CPU_POOL_SHARE
        if asked != -1:
            share = 1.0
        total, in_use, activations = self.measure_memory()
        layers = self.attention_layers(self.model)
        shape = (len(layers), self.block_size, layers[0].num_kv_heads, layers[0].head_dim)
        block_bytes = kv_block_bytes(*shape, config.dtype.itemsize)
        # All ranks use the same block ids, so the rank with the least room decides.
        fits = self.group.minimum(num_blocks_that_fit(total, in_use, activations, share, block_bytes))
        if fits < max(asked, 1):
            what, knobs = f"num_kvcache_blocks={asked}", "lower num_kvcache_blocks"
            room = f"{100 * share:.4g} % of {total / 1e9:.2f} GB may be used"
            if on_gpu:
                room += f", {in_use / 1e9:.2f} GB are in use and steps take {activations / 1e9:.2f} GB"
            if asked == -1:
                what = "even one block"
                knobs = (
                    "raise gpu_memory_utilization, lower max_num_batched_tokens"
                    if on_gpu
                    else "lower kvcache_block_size"
                )
                knobs += ", or free the device"
            raise MemoryError(
                f"no room for a KV cache of {what}: a block takes {block_bytes / 1e6:,.2f} MB, and {room}; {knobs}"
            )
        if asked != -1:
            return asked
        num_tokens = min(config.max_num_seqs, CPU_POOL_SEQS) * config.max_model_len
        return fits if on_gpu else min(fits, -(-num_tokens // self.block_size))

    def measure_graph_memory(self) -> int:
        """Bytes that the CUDA graphs will take: two of them are recorded for a try, with a cache of one block.

        All graphs share the memory that their steps take, so that the largest one, which comes first, takes the most,
        and all others about the same.
        """
        asked, self.config.num_kvcache_blocks = self.config.num_kvcache_blocks, 1
        self.kv_cache = self.allocate_kv_cache()
        self.graph_buffers = self.allocate_graph_buffers()
        sizes = graph_batch_sizes(len(self.graph_buffers["input_ids"]))
        free = []
        for batch_sizes in ([], sizes[-1:], sizes[-2:]):
            self.capture_cudagraph(batch_sizes)
            torch.cuda.empty_cache()
            free.append(torch.cuda.mem_get_info(self.device)[0])
        self.graphs.clear()
        self.config.num_kvcache_blocks = asked
        self.kv_cache = torch.empty(0)
        for layer in self.attention_layers(self.model):
            layer.k_cache = layer.v_cache = self.kv_cache
        torch.cuda.empty_cache()
        first, further = max(free[0] - free[1], 0), max(free[1] - free[2], 0)
        # What other processes take meanwhile must not be counted many times.
        return first + (len(sizes) - 1) * min(further, first // 4)

    def allocate_kv_cache(self) -> torch.Tensor:
        """Allocate the pool and hand every attention layer its part.

        Returns:
            [2 (keys, values), num_layers, num_blocks, block_size, num_kv_heads, head_dim]; with CUDA graphs one
            block more than the scheduler knows of, into which padded rows write.
        """
        layers = self.attention_layers(self.model)
        num_blocks = self.config.num_kvcache_blocks + int(self.config.is_enabled("cuda_graph"))
        shape = (2, len(layers), num_blocks, self.block_size, layers[0].num_kv_heads, layers[0].head_dim)
        kv_cache = torch.zeros(shape, dtype=self.config.dtype, device=self.device)
        for i, layer in enumerate(layers):
            layer.k_cache, layer.v_cache = kv_cache[0, i], kv_cache[1, i]
        return kv_cache

    def run(self, seqs: list[Sequence], is_prefill: bool) -> StepResult:
        """Compute one step.

        Returns:
            a token and, where asked for, log-probabilities (on rank 0) for each sequence; (None, None) for a prompt
            that was cut.
        """
        return self.launch(seqs, is_prefill).wait()

    @torch.inference_mode()
    def launch(self, seqs: list[Sequence], is_prefill: bool, previous: "StepOutput | None" = None) -> "StepOutput":
        """Start one step without waiting for a GPU to finish it.

        Args:
            previous: the step before, whose tokens may still be pending (`seq.has_pending_token`).

        Returns:
            its output, to be waited for. All ranks get the tokens, and only rank 0 log-probabilities.
        """
        prepare = self.prepare_prefill if is_prefill else self.prepare_decode
        complete = [seq for seq in seqs if not seq.is_cut]
        self.stays_on_host = uses_graph = bool(self.graphs) and not is_prefill
        set_overlapped_launches(self.config.is_enabled("overlapped_launch"))
        try:
            input_ids, positions = prepare(seqs)
            metadata = self.prepare_sample(complete)
            self.stays_on_host = False
            if uses_graph:
                token_ids, logits = self.replay_cudagraph(input_ids, positions, metadata, seqs, previous)
            else:
                if previous is not None:
                    input_ids = self.fill_in_pending(input_ids, seqs, previous)
                logits = self.run_model(input_ids, positions, is_prefill)
                if logits is not None:
                    logits = logits[: len(complete)]
                token_ids = torch.empty(len(complete), dtype=torch.int64, device=self.device)
                self.sample(logits, metadata, token_ids)
        finally:
            self.stays_on_host = False
            reset_context()
        num_logprobs = [seq.sampling_params.logprobs for seq in complete]
        logprobs = None
        if logits is not None and any(num is not None for num in num_logprobs):
            logprobs = top_logprobs(logits, token_ids, max(num or 0 for num in num_logprobs))
        return StepOutput(seqs, token_ids, num_logprobs, logprobs)

    def fill_in_pending(self, input_ids: torch.Tensor, seqs: list[Sequence], previous: "StepOutput") -> torch.Tensor:
        """Replace pending tokens, on the device, by what the step before has sampled."""
        if not any(seq.has_pending_token for seq in seqs):
            return input_ids
        row_of = {seq.seq_id: row for row, seq in enumerate(previous.seqs)}
        rows = self.to_device([row_of.get(seq.seq_id, 0) for seq in seqs], torch.int64)
        return torch.where(input_ids == PENDING_TOKEN, previous.token_ids[rows], input_ids)

    def prepare_prefill(self, seqs: list[Sequence]) -> tuple[torch.Tensor, torch.Tensor]:
        """Flatten the scheduled tokens of all sequences into one batch, and set the context.

        Returns:
            input_ids, positions: [num_tokens] int64.
        """
        input_ids: list[int] = []
        positions: list[int] = []
        slot_mapping: list[int] = []
        cu_seqlens_q, cu_seqlens_k = [0], [0]
        for seq in seqs:
            start, end = seq.num_cached_tokens, seq.num_computed_after_step
            input_ids += seq.scheduled_token_ids
            positions += range(start, end)
            slot_mapping += self.slots(seq, start, end)
            cu_seqlens_q.append(cu_seqlens_q[-1] + end - start)
            cu_seqlens_k.append(cu_seqlens_k[-1] + end)
        # Without cached tokens, keys and values are all in this batch and the pages need not be read.
        reads_cache = cu_seqlens_k[-1] > cu_seqlens_q[-1]
        set_context(
            is_prefill=True,
            cu_seqlens_q=self.to_device(cu_seqlens_q, torch.int32),
            cu_seqlens_k=self.to_device(cu_seqlens_k, torch.int32),
            max_seqlen_q=max(seq.num_scheduled_tokens for seq in seqs),
            max_seqlen_k=max(seq.num_computed_after_step for seq in seqs),
            slot_mapping=self.to_device(slot_mapping, torch.int64),
            block_tables=self.prepare_block_tables(seqs) if reads_cache else None,
        )
        return self.to_device(input_ids, torch.int64), self.to_device(positions, torch.int64)

    def prepare_decode(self, seqs: list[Sequence]) -> tuple[torch.Tensor, torch.Tensor]:
        """The last token of every sequence, and the context.

        Returns:
            input_ids, positions: [num_seqs] int64.
        """
        positions = [seq.num_tokens - 1 for seq in seqs]
        slot_mapping = [
            seq.block_table[-1] * self.block_size + position % self.block_size
            for seq, position in zip(seqs, positions, strict=True)
        ]
        set_context(
            is_prefill=False,
            slot_mapping=self.to_device(slot_mapping, torch.int64),
            context_lens=self.to_device([seq.num_tokens for seq in seqs], torch.int32),
            block_tables=self.prepare_block_tables(seqs),
        )
        input_ids = [seq.last_token for seq in seqs]
        return self.to_device(input_ids, torch.int64), self.to_device(positions, torch.int64)

    def slots(self, seq: Sequence, start: int, end: int) -> list[int]:
        """Slots in the KV cache of the tokens `start` to `end - 1`; none before there is a cache."""
        slots: list[int] = []
        if not seq.block_table:
            return slots
        for i in range(start // self.block_size, -(-end // self.block_size)):
            first, last = max(start - i * self.block_size, 0), min(end - i * self.block_size, self.block_size)
            base = seq.block_table[i] * self.block_size
            slots += range(base + first, base + last)
        return slots

    def prepare_block_tables(self, seqs: list[Sequence]) -> torch.Tensor:
        """[num_seqs, longest table] int32, shorter tables padded with -1."""
        width = max(len(seq.block_table) for seq in seqs)
        rows = [seq.block_table + [-1] * (width - len(seq.block_table)) for seq in seqs]
        return self.to_device(rows, torch.int32)

    def prepare_sample(self, seqs: list[Sequence]) -> SamplingMetadata | None:
        """Sampling parameters of the batch as tensors; None if every row is greedy."""
        params = [seq.sampling_params for seq in seqs]
        if all(p.is_greedy for p in params):
            return None
        vocab_size = self.config.hf_config.vocab_size
        top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
        return SamplingMetadata(
            temperatures=self.to_device([0.0 if p.is_greedy else p.temperature for p in params], torch.float32),
            seeds=self.to_device([self.seed_of(seq) for seq in seqs], torch.int64),
            positions=self.to_device([seq.num_tokens for seq in seqs], torch.int64),
            min_p=self.to_device([p.min_p for p in params], torch.float32) if any(p.min_p for p in params) else None,
            top_k=self.to_device(top_k, torch.int64) if min(top_k) < vocab_size else None,
            top_p=self.to_device([p.top_p for p in params], torch.float32)
            if min(p.top_p for p in params) < 1
            else None,
        )

    def seed_of(self, seq: Sequence) -> int:
        """The request's own seed, or one made of the engine's seed and the request's number; 63 bits."""
        if seq.sampling_params.seed is not None:
            return seq.sampling_params.seed & (2**63 - 1)
        return xxhash.xxh64_intdigest(f"{self.config.seed}/{seq.seq_id}".encode()) & (2**63 - 1)

    def run_model(self, input_ids: torch.Tensor, positions: torch.Tensor, is_prefill: bool) -> torch.Tensor | None:
        """Logits [num_seqs, vocab_size] on rank 0, None elsewhere."""
        return self.model.compute_logits(self.model(input_ids, positions))  # type: ignore[operator]

    def sample(self, logits: torch.Tensor | None, metadata: SamplingMetadata | None, token_ids: torch.Tensor) -> None:
        """Sample on rank 0, which has the logits, and let all ranks know: the next step begins with these tokens.

        Args:
            logits: [num_seqs, vocab_size] on rank 0, None elsewhere.
            token_ids: [num_seqs] int64, filled in.
        """
        if logits is not None:
            token_ids.copy_(self.sampler(logits, metadata))
        self.group.broadcast(token_ids)

    @torch.inference_mode()
    def capture_cudagraph(self, batch_sizes: list[int]) -> None:
        """Record the decode step, sampling included, once for every size, largest first.

        A graph replays a recorded sequence of kernels on fixed buffers, so launching a step costs the CPU one call.
        """
        self.fill_graph_padding(0, len(self.graph_buffers["input_ids"]))
        pool = None
        try:
            for batch_size in reversed(batch_sizes):
                graph = torch.cuda.CUDAGraph()
                self.run_in_graph_buffers(batch_size)  # compiles and allocates what a recording must not
                torch.cuda.synchronize(self.device)
                # Other threads may use the GPU for their engines meanwhile.
                with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
                    self.run_in_graph_buffers(batch_size)
                pool = pool or graph.pool()
                self.graphs[batch_size] = graph
        finally:
            reset_context()

    def allocate_graph_buffers(self) -> dict[str, torch.Tensor]:
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
        return {name: torch.zeros(shape, dtype=dtype, device=self.device) for name, (shape, dtype) in shapes.items()}

    def run_in_graph_buffers(self, batch_size: int) -> None:
        """The decode step on the first rows of the fixed buffers."""
        rows = {name: buffer[:batch_size] for name, buffer in self.graph_buffers.items()}
        set_overlapped_launches(self.config.is_enabled("overlapped_launch"))
        set_context(
            is_prefill=False,
            slot_mapping=rows["slot_mapping"],
            context_lens=rows["context_lens"],
            block_tables=rows["block_tables"],
        )
        hidden_states = self.model(rows["input_ids"], rows["positions"])
        logits = self.model.compute_logits(hidden_states, rows.get("logits"))  # type: ignore[operator]
        metadata = SamplingMetadata(rows["temperatures"], rows["seeds"], rows["positions"] + 1)
        self.sample(logits, metadata, rows["token_ids"])

    def replay_cudagraph(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        metadata: SamplingMetadata | None,
        seqs: list[Sequence],
        previous: "StepOutput | None",
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens [num_seqs] and rank 0's logits [num_seqs, vocab_size] from the smallest graph that is large enough.

        The inputs go straight into the graph's buffers. The outputs are buffers, too, which the next replay overwrites.

        Args:
            input_ids, positions: [num_seqs] int64, in pinned memory, as are the tensors of `metadata` and the context.
            seqs, previous: as for `launch`.
        """
        context, num_seqs, buffers = get_context(), len(input_ids), self.graph_buffers
        batch_size = min(size for size in self.graphs if size >= num_seqs)
        inputs = {
            "input_ids": input_ids,
            "positions": positions,
            "slot_mapping": context.slot_mapping,
            "context_lens": context.context_lens,
        }
        if metadata is not None:
            inputs |= {"temperatures": metadata.temperatures, "seeds": metadata.seeds}
        # Raised first and lowered last: an interrupt in between must not leave rows that count as padding.
        self.num_filled_rows = max(self.num_filled_rows, num_seqs)
        for name, tensor in inputs.items():
            assert tensor is not None
            buffers[name][:num_seqs].copy_(tensor, non_blocking=True)
        assert context.block_tables is not None
        width = context.block_tables.shape[1]
        buffers["block_tables"][:num_seqs, :width].copy_(context.block_tables, non_blocking=True)
        if metadata is None:
            buffers["temperatures"][:num_seqs] = 0.0
        if previous is not None:
            ids = buffers["input_ids"][:num_seqs]
            ids.copy_(self.fill_in_pending(ids, seqs, previous))
        self.fill_graph_padding(num_seqs, self.num_filled_rows)
        self.num_filled_rows = num_seqs
        self.graphs[batch_size].replay()
        self.num_graph_replays += 1
        token_ids = buffers["token_ids"][:num_seqs]
        logits = buffers["logits"][:num_seqs] if self.group.rank == 0 else None
        if metadata is not None and metadata.has_filters:
            self.sample(logits, metadata.to(self.device), token_ids)
        return token_ids, logits

    def fill_graph_padding(self, start: int, end: int) -> None:
        """Let the rows `start` to `end - 1` hold token 0, and write to, and attend to, the block beyond the pool."""
        if start >= end:
            return
        self.graph_buffers["input_ids"][start:end] = 0  # an interrupted step may have left a pending token
        self.graph_buffers["slot_mapping"][start:end] = self.config.num_kvcache_blocks * self.block_size
        self.graph_buffers["context_lens"][start:end] = 1
        self.graph_buffers["block_tables"][start:end] = self.config.num_kvcache_blocks
        self.graph_buffers["temperatures"][start:end] = 0.0

    def to_device(self, data: list[Any], dtype: torch.dtype) -> torch.Tensor:
        """A tensor on the device; to a GPU through pinned memory, without waiting for the copy.

        What a CUDA graph is going to read stays in pinned memory: `replay_cudagraph` copies it to its place.
        """
        tensor = torch.tensor(data, dtype=dtype, pin_memory=self.config.device == "cuda")
        return tensor if self.stays_on_host else tensor.to(self.device, non_blocking=True)

    def exit(self) -> None:
        """Free the model, the cache and the graphs."""
        with ONE_AT_A_TIME:
            self.graphs.clear()
            self.graph_buffers.clear()
            self.kv_cache = torch.empty(0)
            self.model = torch.nn.Module()
            gc.collect()
            if self.config.device == "cuda":
                torch.cuda.empty_cache()


def graph_batch_sizes(max_batch_size: int) -> list[int]:
    """1, 2, 4, then multiples of 8, and always `max_batch_size` itself, so that no batch is without a graph."""
    sizes = {1, 2, 4, *range(8, min(max_batch_size, 256) + 1, 8), *range(256, max_batch_size + 1, 32)}
    return sorted({size for size in sizes if size <= max_batch_size} | {max_batch_size})


def top_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `num` most likely tokens of each row of logits, and after them the chosen one.

    Returns:
        log-probabilities and token ids, [num_seqs, num + 1] each.
    """
    table = compute_logprobs(logits)
    values, ids = table.topk(min(num, table.shape[-1]), dim=-1)
    chosen = token_ids.unsqueeze(-1)
    return torch.cat((values, table.gather(-1, chosen)), dim=-1), torch.cat((ids, chosen), dim=-1)


class StepOutput:
    """What a step samples; on a GPU, the numbers may still be on their way.

    Args:
        seqs: the step's sequences; those that were cut stand last and have no token.
        token_ids: [number of sequences with a token] int64, on the device.
        num_logprobs: how many log-probabilities each of these sequences asked for, or None.
        logprobs: see `top_logprobs`, or None if nobody asked.
    """

    def __init__(
        self,
        seqs: list[Sequence],
        token_ids: torch.Tensor,
        num_logprobs: list[int | None],
        logprobs: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:
        self.seqs = seqs
        self.token_ids = token_ids
        self._num_logprobs = num_logprobs
        self._copies = [to_host(tensor) for tensor in (token_ids, *(logprobs or ()))]
        self._event = torch.cuda.Event() if token_ids.is_cuda else None
        if self._event is not None:
            self._event.record()

    def wait(self) -> StepResult:
        """Wait for the step to end; a token and the log-probabilities for each sequence, None where there are none."""
        if self._event is not None:
            self._event.synchronize()
        token_ids, *logprobs = [copy.tolist() for copy in self._copies]
        cut = [None] * (len(self.seqs) - len(token_ids))
        if not logprobs:
            return token_ids + cut, [None] * len(self.seqs)
        tables: list[dict[int, float] | None] = []
        for num, values, ids in zip(self._num_logprobs, *logprobs, strict=True):
            table = dict(zip(ids[:num], values[:num], strict=True)) if num is not None else None
            if table is not None:
                table.setdefault(ids[-1], values[-1])
            tables.append(table)
        return token_ids + cut, tables + cut


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Start copying a tensor to pinned memory of the CPU; the tensor itself if it is there."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
