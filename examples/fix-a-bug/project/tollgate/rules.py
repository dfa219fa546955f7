"""What clients may do."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """At most `limit` requests in any `seconds` seconds."""

    limit: int
    seconds: float

    def __post_init__(self):
        if self.limit < 1:
            raise ValueError(f"limit must be at least 1, not {self.limit}")
        if not self.seconds > 0:
            raise ValueError(f"seconds must be positive, not {self.seconds}")
