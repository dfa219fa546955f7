"""The gate: all rules, all clients."""

import time
from dataclasses import dataclass

from .keys import client_key
from .window import Window

SWEEP_EVERY = 1000  # requests


@dataclass(frozen=True)
class Decision:
    allowed: bool
    retry_after: float = 0


class Gate:
    """Decides about requests. Not safe for several threads: give each worker its own, or a lock."""

    def __init__(self, rules, clock=time.monotonic):
        self.rules = list(rules)
        if not self.rules:
            raise ValueError("a gate without rules lets everything through")
        self._clock = clock
        self._windows = {}
        self._asked = 0

    def ask(self, address, now=None):
        """Decide about a request, and count it if it's let through."""
        if now is None:
            now = self._clock()
        self._sweep(now)
        key = client_key(address)
        windows = self._windows.get(key)
        if windows is None:
            windows = self._windows[key] = [Window(rule) for rule in self.rules]
        if any(w.full(now) for w in windows):
            return Decision(False, max(w.wait(now) for w in windows))
        for w in windows:
            w.add(now)
        return Decision(True)

    def clients(self):
        """How many clients are remembered."""
        return len(self._windows)

    def _sweep(self, now):
        self._asked += 1
        if self._asked % SWEEP_EVERY:
            return
        for key in [k for k, windows in self._windows.items() if all(w.idle(now) for w in windows)]:
            del self._windows[key]
