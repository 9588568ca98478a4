# What jaxmesh asks of a device; jaxlib has no stubs of this module.

from typing import Any

class Device:
    id: int
    process_index: int
    platform: str
    device_kind: str
    def memory_stats(self) -> dict[str, int] | None: ...
    def __getattr__(self, name: str) -> Any: ...

def __getattr__(name: str) -> Any: ...
