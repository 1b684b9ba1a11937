"""Programs that tests run: real clients, in their own languages."""

from __future__ import annotations

import asyncio
import shutil


def tool(name: str) -> str:
    """Where a program is; fails with a clear message where it is not, since a skipped client proves nothing."""
    path = shutil.which(name)
    assert path is not None, f"{name} is not installed; .ci/run installs what the tests need"
    return path


async def output_of(name: str, *arguments: str, timeout: float = 60.0) -> str:
    """Run a program to its end and return what it printed; anything but exit code 0 is an error."""
    process = await asyncio.create_subprocess_exec(
        tool(name), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(timeout):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
    return said.decode()
