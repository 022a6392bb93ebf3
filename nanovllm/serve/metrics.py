"""What is counted, for Prometheus; names as in vLLM (vllm/v1/metrics/loggers.py)."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .answers import Answer

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80)
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
COUNTERS = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
# Of requests; the keys are the names in their outputs.
TIMES = {"queue_time": "request_queue_time", "time_to_first_token": "time_to_first_token"}
TIMES |= {"time_per_output_token": "request_time_per_output_token"}


class Metrics:
    """Counters and histograms of one server, in `registry`.

    Args:
        model: its name, a label of all values.
        scheduler: the engine's, which knows what holds now.
    """

    def __init__(self, model: str, scheduler: Any) -> None:
        self.model, self.registry, manager = model, CollectorRegistry(), scheduler.block_manager
        running, waiting, cache_use = (self._make(Gauge, name) for name in GAUGES)
        running.set_function(lambda: len(scheduler.running))
        waiting.set_function(lambda: len(scheduler.waiting))
        cache_use.set_function(lambda: len(manager.used_block_ids) / manager.num_blocks)
        self.counters = [self._make(Counter, name) for name in COUNTERS]
        self.between_tokens = self._make(Histogram, "inter_token_latency_seconds")
        self.times = {key: self._make(Histogram, f"{name}_seconds") for key, name in TIMES.items()}

    def _make(self, kind: Any, name: str) -> Any:
        how: Any = {"labelnames": ["model_name"], "registry": self.registry}
        how |= {"buckets": SECONDS} if kind is Histogram else {}
        return kind(f"vllm:{name}", name.replace("_", " "), **how).labels(self.model)

    def count_tokens(self, answer: Answer) -> None:
        """Take in the times between its tokens, after each step."""
        for choice in answer.choices:
            request: Any = choice.request
            start = choice.last_time or request.first_token_time
            num_new = request.num_final - max(choice.num_counted, 1)
            for _ in range(num_new):  # mostly one
                self.between_tokens.observe((request.last_token_time - start) / num_new)
            choice.num_counted, choice.last_time = request.num_final, request.last_token_time

    def count(self, answer: Answer) -> None:
        """Take in what it has come to, when it has been read."""
        for output in [choice.output for choice in answer.choices if choice.output]:
            num_prompt, num_new = output["num_prompt_tokens"], len(output["token_ids"])
            numbers = (num_prompt, num_new, num_prompt, output["num_cached_tokens"])
            for counter, number in zip(self.counters, numbers, strict=True):
                counter.inc(number)
            for key, histogram in self.times.items():
                if output["metrics"][key] is not None:
                    histogram.observe(output["metrics"][key])
