"""What is counted, for Prometheus; names as in vLLM (vllm/v1/metrics/loggers.py)."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80)
COUNTERS = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
TIMES = {"queue_time": "request_queue_time", "time_to_first_token": "time_to_first_token"}
TIMES |= {"time_per_output_token": "request_time_per_output_token"}


class Metrics:
    """Counters and histograms of one server.

    Args:
        model: its name, a label of all values.
        gauges: functions that say what holds now, by name.
    """

    def __init__(self, model: str, gauges: dict[str, Any]) -> None:
        self.model, self.registry = model, CollectorRegistry()
        self.counters = [self._make(Counter, name) for name in COUNTERS]
        self.success = self._make(Counter, "request_success", ("finished_reason",))
        self.times = {
            key: self._make(Histogram, f"{TIMES[key]}_seconds", (), SECONDS) for key in TIMES
        }
        for name, function in gauges.items():
            self._make(Gauge, name).set_function(function)

    def _make(self, kind: Any, name: str, more: tuple[str, ...] = (), buckets: Any = None) -> Any:
        labels, options = ("model_name", *more), {"buckets": buckets} if buckets else {}
        metric = kind(
            f"vllm:{name}", name.replace("_", " "), labels, registry=self.registry, **options
        )
        return metric if more else metric.labels(self.model)

    def count(self, output: dict[str, Any]) -> None:
        """Take in an answer."""
        num_prompt, num_new = output["num_prompt_tokens"], len(output["token_ids"])
        numbers = (num_prompt, num_new, num_prompt, output["num_cached_tokens"])
        for counter, number in zip(self.counters, numbers, strict=True):
            counter.inc(number)
        self.success.labels(self.model, output["finish_reason"]).inc()
        for key, histogram in self.times.items():
            if output["metrics"][key] is not None:
                histogram.observe(output["metrics"][key])

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)
