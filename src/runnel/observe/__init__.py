"""Statistics of a broker for monitoring: Prometheus text, OpenTelemetry, and series over time.

Reads `broker.statistics()`; hot paths do not know about it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = ["analytics", "otel", "prometheus"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
