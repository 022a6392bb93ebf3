"""The class that scripts use."""

from .engine.llm_engine import LLMEngine


class LLM(LLMEngine):
    """A language model that answers prompts; the name that scripts for vLLM know."""
