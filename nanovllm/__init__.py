"""nanovllm: an LLM inference engine to read, take apart and build again.

>>> from nanovllm import LLM, SamplingParams
>>> with LLM("qwen3-tiny") as llm:
...     print(llm.generate("Once upon a time", SamplingParams(temperature=0))[0]["text"])
"""

import os

# PyTorch's threads wait for each other by spinning, and libgomp reads for how long when torch is
# loaded. By itself it spins so long that a second program stalls the engine; not at all
# (OMP_WAIT_POLICY=PASSIVE) nearly halves its speed on an idle machine. This is in between.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from .engine.beam_search import BeamSearchParams
from .llm import LLM
from .outputs import RequestOutput
from .sampling_params import SamplingParams

__all__ = ["LLM", "BeamSearchParams", "RequestOutput", "SamplingParams"]
__version__ = "1.0.0"
