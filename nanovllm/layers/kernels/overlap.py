"""Kernels that start while the one before them still runs (programmatic dependent launch).

Launching a kernel and filling the GPU with its programs takes a few microseconds, as long as a
small kernel runs. From Hopper on, a kernel launched this way is set up during the one before, and
then waits for its results (CUDA C++ Programming Guide, "Programmatic Dependent Launch and
Synchronization").
"""

import threading
from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


class Launches(threading.local):
    """How this thread launches kernels; engines in different threads do not see each other's."""

    overlap = False


launches = Launches()


def overlap_options(device: torch.device) -> dict[str, bool]:
    """Arguments for launching a kernel that calls `wait_for_previous_kernel` on all its paths."""
    overlaps = launches.overlap and can_overlap(device) and not triton.knobs.runtime.interpret
    return {"OVERLAP": overlaps, "launch_pdl": overlaps}


@cache
def can_overlap(device: torch.device) -> bool:
    """Whether a device can set up a kernel while another one runs: NVIDIA's from Hopper on."""
    is_nvidia = device.type == "cuda" and torch.version.cuda is not None
    return is_nvidia and torch.cuda.get_device_capability(device)[0] >= 9


@triton.jit
def start_next_kernel(OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Let the kernel after this one be set up once all programs of this one have come here."""
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous_kernel(OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return when the kernel before has ended and what it has written can be seen.

    Every program of an overlapping kernel must come here: the kernel after it takes its end for the
    end of all before.
    """
    if OVERLAP:
        gdc_wait()
