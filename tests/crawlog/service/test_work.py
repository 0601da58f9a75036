"""Commands in threads: one that takes long holds up only those of its kind."""

import asyncio
import threading

from aiohttp import web

from crawlog.service import routing
from crawlog.service.routing import THREADS, in_thread
from tests.support.serving import OWN_TOKEN, served, service_settings

TOKEN = {"Authorization": f"Bearer {OWN_TOKEN}"}


async def test_deploys_that_hang_leave_the_other_commands_alone() -> None:
    """A stranger's code runs while its spiders are listed: a liveness probe would not notice."""
    may_end, all_begun, begun = threading.Event(), asyncio.Event(), 0

    async def works(request: web.Request) -> web.Response:
        nonlocal begun
        route = routing.route_of(request)
        assert route is not None
        begun += route.is_upload
        if begun == THREADS:
            all_begun.set()
        await in_thread(request, may_end.wait if route.is_upload else bool)
        return web.Response()

    async with served(service_settings(), works) as client:
        places = [f"/api/v1/projects/p{number}/versions/1" for number in range(THREADS)]
        waiting = [asyncio.ensure_future(client.put(place, headers=TOKEN, data=b"x")) for place in places]
        await all_begun.wait()
        assert (await client.get("/api/v1/jobs", headers=TOKEN)).status == 200
        may_end.set()
        assert [(await one).status for one in waiting] == [200] * THREADS
