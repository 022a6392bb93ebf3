"""nanovllm: an LLM inference engine to read, take apart and build again.

>>> from nanovllm import LLM, SamplingParams
>>> with LLM("qwen3-tiny") as llm:
...     print(llm.generate("Once upon a time", SamplingParams(temperature=0))[0]["text"])
"""

from .engine.outputs import RequestOutput
from .llm import LLM
from .sampling_params import BeamSearchParams, SamplingParams

__all__ = ["LLM", "BeamSearchParams", "RequestOutput", "SamplingParams"]
__version__ = "0.1.0"
