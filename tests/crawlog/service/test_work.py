"""Commands in threads: one that takes long holds up only those of its kind."""

import asyncio
import threading

import pytest
from aiohttp import ClientPayloadError, ServerDisconnectedError, web

from crawlog.service import routing
from crawlog.service.routing import FLEET, THREADS, in_thread
from crawlog.streams.errors import EngineError
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


async def test_one_look_at_the_log_serves_all_who_ask_whether_it_answers() -> None:
    """Anybody may ask; each took a thread that commands need."""
    looks = 0

    def stages() -> list[object]:
        nonlocal looks
        looks += 1
        return []

    async with served(service_settings()) as client:
        app = client.server.app  # type: ignore[attr-defined]  # a test server has one
        app[FLEET].stages = stages
        answers = await asyncio.gather(*(client.get("/readyz") for _ in range(20)))
        assert [answer.status for answer in answers] == [200] * 20
    assert looks == 1


@pytest.mark.parametrize("error", [EngineError("the broker is away"), ConnectionResetError()])
async def test_a_stream_that_breaks_has_no_second_answer_in_it(error: Exception) -> None:
    """It would look like rows; a client of HTTP/1.0 had no sign of the error at all."""

    async def breaks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"a":1}\n')
        raise error

    async with served(service_settings(), breaks) as client:
        with pytest.raises((ClientPayloadError, ServerDisconnectedError)):
            await (await client.get("/api/v1/jobs", headers=TOKEN)).read()
