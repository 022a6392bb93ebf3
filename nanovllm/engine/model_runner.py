"""Turns scheduled sequences into tensors, runs the model on them, and samples.

Compare vllm/v1/worker/gpu_model_runner.py.
"""

import gc
import threading
from typing import Any

import torch
import xxhash
from torch import Tensor

from ..config import Config
from ..layers.attention import Attention
from ..layers.backends import get_attention_class
from ..layers.sampler import Sampler, SamplingMetadata
from ..models import get_model_class
from ..utils.context import reset_context, set_context
from ..utils.loader import init_dummy_weights, load_model
from ..utils.parallel_state import TensorParallelGroup, tensor_parallel_group
from ..utils.swap import swap
from .kv_cache import choose_num_blocks, largest_prefill, out_of_memory_explained
from .sequence import Sequence
from .step_output import StepOutput, StepResult, top_logprobs

# To make an engine is to set torch's default dtype and to measure the memory of a GPU, and these
# concern the whole process: one engine at a time. Reentrant, because a garbage collection may end
# an abandoned engine in the middle.
ONE_AT_A_TIME = threading.RLock()


class ModelRunner:
    """One rank's model and its KV cache.

    Args:
        config: of the engine; `num_kvcache_blocks` is filled in if it is -1.
        group: this rank's place in the tensor-parallel group.

    Raises:
        ValueError: the model or its weights do not fit.
        MemoryError: weights or KV cache do not fit into memory; says which option to change.
    """

    output_class = StepOutput

    def __init__(self, config: Config, group: TensorParallelGroup = TensorParallelGroup()) -> None:
        self.config = config
        self.group = group
        self.block_size = config.kvcache_block_size
        device = f"cuda:{group.rank}" if config.device == "cuda" else config.device
        self.device = torch.device(device)
        self.sampler = Sampler()
        with ONE_AT_A_TIME, out_of_memory_explained():
            self.start()

    def start(self) -> None:
        """Load the model, see what a step takes, and give what memory is left to the KV cache."""
        self.model = self.build_model()
        self.layers = [layer for layer in self.model.modules() if isinstance(layer, Attention)]
        num_blocks = choose_num_blocks(self.config, self.layers, self.group, self.warmup_model())
        self.config.num_kvcache_blocks = num_blocks
        self.kv_cache = self.allocate_kv_cache(num_blocks)

    def build_model(self) -> torch.nn.Module:
        """The model on its device, with its weights."""
        default_dtype = torch.get_default_dtype()
        torch.set_default_dtype(self.config.dtype)
        try:
            with self.device, tensor_parallel_group(self.group):
                model = get_model_class(self.config.hf_config)(self.config.hf_config)
        finally:
            torch.set_default_dtype(default_dtype)
        if self.config.load_format == "dummy":
            init_dummy_weights(model, self.config.seed)
        else:
            load_model(model, self.config.model_path)
        swap(model, Attention, get_attention_class(self.config.attention_backend))
        return model.eval()

    def warmup_model(self) -> int:
        """Run the largest prefill once on a GPU.

        Returns:
            bytes of memory that it took and gave back; 0 on a CPU, where nobody counts.
        """
        if self.config.device != "cuda":
            return 0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        self.run(largest_prefill(self.config), is_prefill=True)
        peak = torch.cuda.max_memory_allocated(self.device)
        now = torch.cuda.memory_allocated(self.device)
        torch.cuda.empty_cache()
        return peak - now

    def allocate_kv_cache(self, num_blocks: int) -> Tensor:
        """Allocate the pool and hand every attention layer its part.

        Returns:
            [2 (keys, values), num_layers, num_blocks, block_size, num_kv_heads, head_dim].
        """
        num_kv_heads, head_dim = self.layers[0].num_kv_heads, self.layers[0].head_dim
        shape = (2, len(self.layers), num_blocks, self.block_size, num_kv_heads, head_dim)
        kv_cache = torch.zeros(shape, dtype=self.config.dtype, device=self.device)
        for i, layer in enumerate(self.layers):
            layer.k_cache, layer.v_cache = kv_cache[0, i], kv_cache[1, i]
        return kv_cache

    # One step.

    def run(self, seqs: list[Sequence], is_prefill: bool) -> StepResult:
        """Compute one step.

        Returns:
            a token and, where asked for, log-probabilities (on rank 0) for each sequence; None for
            a prompt that was cut.
        """
        return self.launch(seqs, is_prefill).wait()

    @torch.inference_mode()
    def launch(self, seqs: list[Sequence], is_prefill: bool) -> StepOutput:
        """Prepare the inputs, run the model, sample; a GPU may still be busy with it afterwards."""
        sampled = [seq for seq in seqs if not seq.is_cut]
        try:
            prepare = self.prepare_prefill if is_prefill else self.prepare_decode
            input_ids, positions = prepare(seqs)
            metadata = self.prepare_sample(sampled)
            logits = self.run_model(input_ids, positions)
            if logits is not None:
                logits = logits[: len(sampled)]  # a prompt that is cut comes last
            token_ids = self.sample(logits, metadata, len(sampled))
        finally:
            reset_context()
        return self.output_class(seqs, token_ids, top_logprobs(logits, token_ids, sampled))

    def prepare_prefill(self, seqs: list[Sequence]) -> tuple[Tensor, Tensor]:
        """Put the scheduled tokens of all sequences behind each other, without padding.

        Token by token: its id, its position in its own sequence, and its slot
        (`slots(seq, start, end)`). Where sequences begin and end in the flat batch, two lists of
        sums say, from 0 on: `cu_seqlens_q` sums up the tokens that are computed now,
        `cu_seqlens_k` all tokens whose keys and values a sequence has when the step has run. Lists
        become the step's context with `set_prefill_context`, and tensors with `to_device`.

        Args:
            seqs: at least one; of each, `scheduled_token_ids` are computed, which come after
                `num_cached_tokens` others. Copies in worker processes may have no `token_ids`.

        Returns:
            input_ids, positions: [num_tokens] int64.
        """
        input_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        cu_seqlens_q, cu_seqlens_k = [0], [0]
        for seq in seqs:
            start, end = seq.num_cached_tokens, seq.num_computed_after_step
            input_ids += seq.scheduled_token_ids
            positions += range(start, end)
            slots += self.slots(seq, start, end)
            cu_seqlens_q.append(len(input_ids))
            cu_seqlens_k.append(cu_seqlens_k[-1] + end)
        self.set_prefill_context(seqs, cu_seqlens_q, cu_seqlens_k, slots)
        return self.to_device(input_ids, torch.int64), self.to_device(positions, torch.int64)

    def set_prefill_context(
        self, seqs: list[Sequence], cu_q: list[int], cu_k: list[int], slots: list[int]
    ) -> None:
        """Describe a prefill to the attention layers; see `Context`."""
        # Without cached tokens, all keys and values are in this batch: no need to read the pages.
        tables = self.prepare_block_tables(seqs) if cu_k[-1] > cu_q[-1] else None
        longest_q = max(seq.num_scheduled_tokens for seq in seqs)
        longest_k = max(seq.num_computed_after_step for seq in seqs)
        starts = [self.to_device(cu_seqlens, torch.int32) for cu_seqlens in (cu_q, cu_k)]
        slot_mapping = self.to_device(slots, torch.int64)
        set_context(True, *starts, longest_q, longest_k, slot_mapping, block_tables=tables)

    def prepare_decode(self, seqs: list[Sequence]) -> tuple[Tensor, Tensor]:
        """One token of every sequence: its last, the only one without keys and values.

        The context (`set_context`) says that this is no prefill (`is_prefill`), and has the slot
        of each token (`slot_mapping`, int64), the number of tokens that each sequence attends to,
        the new one included (`context_lens`, int32), and the block tables (`block_tables`, which
        `prepare_block_tables` makes).

        Args:
            seqs: at least one; the last block of each has room for its last token. Copies in
                worker processes have no `token_ids`, only `last_token` and `num_tokens`.

        Returns:
            input_ids, positions: [num_seqs] int64.
        """
        positions = [seq.num_tokens - 1 for seq in seqs]
        rest = [position % self.block_size for position in positions]
        slots = [s.block_table[-1] * self.block_size + r for s, r in zip(seqs, rest, strict=True)]
        set_context(
            is_prefill=False,
            slot_mapping=self.to_device(slots, torch.int64),
            context_lens=self.to_device([seq.num_tokens for seq in seqs], torch.int32),
            block_tables=self.prepare_block_tables(seqs),
        )
        input_ids = [seq.last_token for seq in seqs]
        return self.to_device(input_ids, torch.int64), self.to_device(positions, torch.int64)

    def slots(self, seq: Sequence, start: int, end: int) -> list[int]:
        """Where the keys and values of the tokens `start` to `end - 1` are stored.

        Block b of the pool has the slots `b * block_size` to `(b + 1) * block_size - 1`, and
        `seq.block_table` names the blocks of a sequence in the order of its tokens. The runner and
        its sequences have the same `block_size`.

        Args:
            seq: its table has a block for each of these tokens, or is empty, as in the warm-up,
                when there is no pool yet.
            start, end: positions in the sequence, `start <= end`.

        Returns:
            a slot for each token, in order, ints; an empty list if the table is empty.
        """
        slots: list[int] = []
        if not seq.block_table:
            return slots
        for i in range(start // self.block_size, -(-end // self.block_size)):
            first, last = max(start, i * self.block_size), min(end, (i + 1) * self.block_size)
            shift = (seq.block_table[i] - i) * self.block_size  # from position to slot
            slots += range(first + shift, last + shift)
        return slots

    def prepare_block_tables(self, seqs: list[Sequence]) -> Tensor:
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
        top_p, min_p = [p.top_p for p in params], [p.min_p for p in params]
        temperatures = [0.0 if p.is_greedy else p.temperature for p in params]
        return SamplingMetadata(
            temperatures=self.to_device(temperatures, torch.float32),
            seeds=self.to_device([self.seed_of(seq) for seq in seqs], torch.int64),
            positions=self.to_device([seq.num_tokens for seq in seqs], torch.int64),
            min_p=self.to_device(min_p, torch.float32) if any(min_p) else None,
            top_k=self.to_device(top_k, torch.int64) if min(top_k) < vocab_size else None,
            top_p=self.to_device(top_p, torch.float32) if min(top_p) < 1 else None,
        )

    def seed_of(self, seq: Sequence) -> int:
        """The request's own seed, or one of the engine's seed and the request's number; 63 bits."""
        if seq.sampling_params.seed is not None:
            return seq.sampling_params.seed & (2**63 - 1)
        return xxhash.xxh64_intdigest(f"{self.config.seed}/{seq.seq_id}".encode()) & (2**63 - 1)

    def run_model(self, input_ids: Tensor, positions: Tensor) -> Tensor | None:
        """Logits [num_seqs, vocab_size] on rank 0, None elsewhere."""
        return self.model.compute_logits(self.model(input_ids, positions))  # type: ignore[operator]

    def sample(
        self, logits: Tensor | None, metadata: SamplingMetadata | None, num_seqs: int
    ) -> Tensor:
        """[num_seqs] int64 tokens: rank 0, which has the logits, lets the others know."""
        if logits is None:
            token_ids = torch.empty(num_seqs, dtype=torch.int64, device=self.device)
        else:
            token_ids = self.sampler(logits, metadata)
        return self.group.broadcast(token_ids)

    def to_device(self, data: list[Any], dtype: torch.dtype) -> Tensor:
        """A tensor on the device; to a GPU through pinned memory, without waiting for the copy."""
        tensor = torch.tensor(data, dtype=dtype, pin_memory=self.config.device == "cuda")
        return tensor.to(self.device, non_blocking=True)

    def exit(self) -> None:
        """Free the model and the cache."""
        self.kv_cache = torch.empty(0)
        self.model, self.layers = torch.nn.Module(), []
        gc.collect()
        if self.config.device == "cuda":
            torch.cuda.empty_cache()
