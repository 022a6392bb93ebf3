"""Ctrl-C at a chosen line of the engine, by way of Python's tracing."""

import os
import sys

import nanovllm

ROOT = os.path.dirname(nanovllm.__file__)
# What a call of `LLM` runs: its own modules (outputs, progress and prompts, too), the engine and its levers.
FOLDERS = {ROOT, os.path.join(ROOT, "engine"), os.path.join(ROOT, "levers")}
# From Python 3.12 on, what a tracer raises where a loop goes back within its line, as a comprehension does, passes by
# all handlers of the frame. What a signal raises there does not, so the tracer must raise elsewhere.
CAN_RAISE_WITHIN_A_LINE = sys.version_info < (3, 12)


class InterruptAtLine:
    """Raises an error, as a signal would, when the n-th line of the engine's code is about to run.

    Afterwards `lines` is how many have run, and `where` says which one was the n-th.

    Args:
        n: counted from 1; with 0 or less, the lines are only counted.
        error: KeyboardInterrupt or a class of its own kind.
        files: names of the modules of these folders whose lines count; None for all.
    """

    def __init__(self, n, error=KeyboardInterrupt, files=None):
        self.n, self.error, self.files = n, error, files
        self.lines, self.where = 0, "not at all"

    def __enter__(self):
        self.tracer_before = sys.gettrace()
        sys.settrace(self.trace_call)
        return self

    def __exit__(self, *exc_info):
        sys.settrace(self.tracer_before)

    def trace_call(self, frame, event, arg):
        folder, file = os.path.split(frame.f_code.co_filename)
        is_counted = folder in FOLDERS and (self.files is None or file in self.files)
        return self.line_tracer() if is_counted else None

    def strike(self):
        raise self.error(self.where)

    def line_tracer(self):
        """A tracer for one frame."""
        line_before = None

        def trace_line(frame, event, arg):
            nonlocal line_before
            if event == "line" and (CAN_RAISE_WITHIN_A_LINE or frame.f_lineno != line_before):
                self.lines += 1
                if self.lines == self.n:
                    self.where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                    self.strike()
            line_before = frame.f_lineno
            return trace_line

        return trace_line


class CallAtLine(InterruptAtLine):
    """Calls a function when the n-th line is about to run, as a garbage collection or a signal handler would.

    At the end of the block, if there are fewer lines.
    """

    def __init__(self, n, function):
        super().__init__(n)
        self.function = function

    def __exit__(self, *exc_info):
        super().__exit__(*exc_info)
        if self.lines < self.n:
            self.function()

    def strike(self):
        sys.settrace(None)
        self.function()
