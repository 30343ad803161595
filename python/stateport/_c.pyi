# The declarations of the C interface (c/python/stateport_c.py of the repository) make their types as they run.
from typing import Any

def __getattr__(name: str) -> Any: ...
