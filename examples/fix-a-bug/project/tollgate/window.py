"""The sliding window of one client under one rule."""

from collections import deque


class Window:
    """Remembers when requests were let through, as long as they count."""

    def __init__(self, rule):
        self.rule = rule
        self._times = deque()

    def _forget(self, now):
        start = now - self.rule.seconds
        while self._times and self._times[0] < start:
            self._times.popleft()

    def wait(self, now):
        """Seconds until a request would be let through; 0 if one would be now."""
        self._forget(now)
        if len(self._times) < self.rule.limit:
            return 0
        oldest = self._times[-self.rule.limit]
        return oldest + self.rule.seconds - now

    def full(self, now):
        self._forget(now)
        return len(self._times) >= self.rule.limit

    def add(self, now):
        self._times.append(now)

    def idle(self, now):
        """Whether nothing of it counts any more."""
        self._forget(now)
        return not self._times
