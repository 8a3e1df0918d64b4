"""Owns a process that launches one server as an agent does, prints the record, and waits to be
killed: FOLDER TOKEN ARGV…
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from fleet_agent.core.engine import LaunchCommand
from fleet_agent.server.supervisor import Supervisor


async def main() -> None:
    """Launch, print, wait for the server."""
    folder, token, *argv = sys.argv[1:]
    server = await Supervisor().launch(
        LaunchCommand(tuple(argv), {"BENCHFLEET_LAUNCH": token}, folder),
        Path(folder) / "server.log",
    )
    sys.stdout.write(json.dumps(asdict(server.session)) + "\n")
    sys.stdout.flush()
    await server.wait()


if __name__ == "__main__":
    asyncio.run(main())
