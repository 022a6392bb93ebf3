"""The progress bar of `LLM.generate`."""

import threading
import time

from tqdm.auto import tqdm

from .outputs import TextRequest


class ProgressBar(tqdm):
    """Finished requests, and the tokens of all of them: how many, and how many a second so far."""

    disable = True  # until it has been made: an interrupted one is closed, too
    # tqdm's own lock is two, taken one after the other: Ctrl-C in between left the first to nobody.
    _lock = threading.RLock()

    def __init__(self, requests: list[TextRequest], disable: bool) -> None:
        self.requests, self.start = requests, time.perf_counter()
        # A refresh depends on the time only, not on how many requests have ended.
        options = {"disable": disable, "dynamic_ncols": True, "miniters": 0}
        super().__init__(total=len(requests), desc="Generating", **options)

    def show(self) -> None:
        """Look at the requests and draw the bar anew, at most ten times a second."""
        if not self.disable and time.time() - self.last_print_t >= self.mininterval:
            self.look()
            self.update(0)

    def close(self) -> None:
        """Draw it a last time."""
        if not self.disable:
            self.look()
        super().close()

    def look(self) -> None:
        """Count what the requests have."""
        seconds = time.perf_counter() - self.start
        num_tokens = sum(request.num_final for request in self.requests)
        num_read = sum(r.seq.num_prompt_tokens for r in self.requests if r.num_final)
        rates = f"{num_read / seconds:.0f} read and {num_tokens / seconds:.0f} written a second"
        self.n = sum(request.is_finished for request in self.requests)
        self.set_postfix_str(f"{num_tokens} tokens, {rates}", refresh=False)
