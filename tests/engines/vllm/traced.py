"""Our scheduler, with a line for each engine step in the file that VLLM_STEP_TRACE names."""

from __future__ import annotations

import json
import os
from typing import Any

from router.engines.vllm.scheduler import ReadIsolationScheduler


class TracedScheduler(ReadIsolationScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trace = open(os.environ["VLLM_STEP_TRACE"], "w", buffering=1)  # noqa: SIM115 as long as the engine

    def schedule(self, throttle_prefills: bool = False) -> Any:
        output = super().schedule(throttle_prefills)
        if scheduled := output.num_scheduled_tokens:
            reads = [count for name, count in scheduled.items() if name in self._reads]
            chats = [count for name, count in scheduled.items() if name not in self._reads]
            self._trace.write(json.dumps({"reads": reads, "chats": chats}) + "\n")
        return output
