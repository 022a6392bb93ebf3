"""How much of the computer's memory may still be used."""

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that a new allocation may take: what the machine has left, or the container, if that has a limit.

    A container (cgroup v2) that goes beyond its limit is killed without a word, however much the machine has.
    """
    available = psutil.virtual_memory().available
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        reclaimable = int(stat["file"])  # cached files count as used, but make room
    except (OSError, ValueError, KeyError):  # not a container, or one without a limit ("max")
        return available
    return max(0, min(available, limit - used + reclaimable))
