"""A `Config` whose engine works one step ahead on a CPU, too, where this gains nothing but can be tested."""

from nanovllm.config import Config


class AheadConfig(Config):
    """Importable, so that ranks can unpickle it."""

    def is_enabled(self, optimization: str) -> bool:
        return optimization == "step_ahead" or super().is_enabled(optimization)
