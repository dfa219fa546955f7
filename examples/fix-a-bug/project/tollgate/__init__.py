"""Rate limits for an HTTP service."""

from .gate import Decision, Gate
from .rules import Rule

__all__ = ["Decision", "Gate", "Rule"]
