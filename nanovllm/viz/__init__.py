"""Pictures of what the engine does, drawn from its own runs. The engine never imports this package.

The widgets need the extra `notebooks`; traces and their checks need nothing beyond the engine.
"""

from importlib import import_module
from typing import Any

# Not on first use like the widgets: whoever imports the module of this name first would get it instead of the function.
from .record import record, record_scheduler
from .trace import check_trace, load_trace, save_trace

_LAZY = {
    "Bars": "hands",
    "BlockSizeExplorer": "widgets",
    "BlockTable": "widgets",
    "Boxes": "hands",
    "DataFlow": "data_flow",
    "FirstLook": "first_look",
    "GraphSpeedup": "graph_speedup",
    "MemoryBudget": "memory",
    "ModelShapes": "model_shapes",
    "NormView": "norm_view",
    "PagedGather": "paged_gather",
    "PrefixExplorer": "widgets",
    "PrefixSimulation": "widgets",
    "Race": "race",
    "Roofline": "roofline",
    "RopeView": "rope",
    "SamplerView": "sampler_view",
    "SequenceView": "widgets",
    "SlotMapping": "slot_mapping",
    "TensorParallelView": "tensor_parallel",
    "Timeline": "widgets",
    "VocabularyShards": "vocabulary_shards",
    "WeightMap": "weight_map",
}

__all__ = ["check_trace", "load_trace", "record", "record_scheduler", "save_trace", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
