#!/usr/bin/env python3
"""The npm iii-sdk against echo_worker on the embedded engine."""
import asyncio
import os
import sys

import harness

harness.enter()


async def run():
    folder = harness.node_folder()
    async with harness.Worker("--engine") as w:
        node = await asyncio.create_subprocess_exec(
            "node", os.path.join(harness.HERE, "node_client.mjs"), folder, w.url, str(w.child.pid),
            str(harness.GROWTH_KIB))
        return await node.wait()


sys.exit(asyncio.run(asyncio.wait_for(run(), 580)))
