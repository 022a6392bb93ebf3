"""A scheduler without a model: numbered sequences, and steps with scripted tokens."""

import copy
from functools import cache

from nanovllm.config import Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.sampling_params import SamplingParams

EOS = 0
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


@cache
def base_config():
    """Read once; a scheduler needs no weights."""
    config = Config("qwen3-tiny", num_kvcache_blocks=8, device="cpu", attention_backend="sdpa")
    config.eos = (EOS,)
    return config


def make_scheduler(scheduler_class=Scheduler, **options):
    config = copy.copy(base_config())
    defaults = {"kvcache_block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64}
    for name, value in (defaults | options).items():
        setattr(config, name, value)
    return scheduler_class(config)


class Requests:
    """Numbers sequences as an engine does, and runs steps with scripted tokens."""

    def __init__(self, scheduler_class=Scheduler, **options):
        self.scheduler = make_scheduler(scheduler_class, **options)
        self.block_size = self.scheduler.block_manager.block_size
        self.all = []

    def add(self, prompt, params=GREEDY):
        if isinstance(prompt, int):  # a number of tokens that nobody shares
            prompt = [100 * (len(self.all) + 1) + i for i in range(prompt)]
        seq = Sequence(prompt, params, self.block_size, len(self.all))
        self.scheduler.add(seq)
        self.all.append(seq)
        return seq

    def step(self, token_id=5):
        seqs, is_prefill = self.scheduler.schedule()
        plan = [(seq.seq_id, seq.num_scheduled_tokens) for seq in seqs]
        self.scheduler.postprocess(seqs, [None if seq.is_cut else token_id for seq in seqs])
        return plan, is_prefill

    def ids(self):
        return [s.seq_id for s in self.scheduler.waiting], [s.seq_id for s in self.scheduler.running]
