"""Decides which pages are rendered, by their job's rules or by a look at their HTML, and has them rendered.

`streams/rendering.py` has the rules. A look needs a parse, so suspicious HTML is tried in a child process first.
A page in the browser keeps its share of the memory budget; its requests have a budget of their own.
"""

from typing import TYPE_CHECKING

import msgspec
import structlog

from crawlog.agents.client import FREE_BYTES, Client, LeaseLost
from crawlog.agents.sandbox import TOO_COMPLEX, Trial
from crawlog.streams.errors import TrialError
from crawlog.streams.rendering import Reach, Rendering, Verdict, emptiness, is_shown

from .render import Renderer
from .resources import JobPage, Resources

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crawlog.agents.client import Transport
    from crawlog.agents.frontier import Hosts
    from crawlog.schemas.urls import RenderRules
    from crawlog.streams.frontier import Host, Task
    from crawlog.streams.http import Answer
    from crawlog.streams.requests import RequestPolicy
    from crawlog.streams.settings import Settings

log = structlog.get_logger()


class Browsing:
    """One worker's browser, and the decision which pages go there.

    Args:
        ask_rules: Gives a host its robots.txt; see `Resources`.
        transport: Answers the requests of pages; None for the client itself.
    """

    def __init__(
        self,
        settings: "Settings",
        client: Client,
        hosts: "Hosts",
        ask_rules: "Callable[[Host, RequestPolicy], Awaitable[None]]",
        transport: "Transport | None" = None,
    ) -> None:
        self._settings = settings
        self._client = client
        self._transport = transport
        self._hosts = hosts
        self._ask_rules = ask_rules
        self._trial = Trial(settings.parse)
        self._renderer: Renderer | None = None
        self._rules: dict[str, tuple[RenderRules, Rendering]] = {}

    def verdict(self, task: "Task") -> Verdict:
        """Whether a task's page is rendered, by its request or by its job's rules."""
        request = task.request
        wanted = None if request is None else True if request.actions else request.render
        if wanted is not None:
            return "request" if wanted else ""
        rules, job = task.job.spec.render, task.job.name
        known = self._rules.get(job)
        if known is None or known[0] != rules:
            known = self._rules[job] = rules, Rendering(rules)
        return known[1].verdict(task.row.url)

    async def why(self, task: "Task", answer: "Answer", verdict: Verdict) -> str:
        """Why a page that may be rendered is rendered; empty if it is not."""
        is_page = not task.row.sitemap and is_shown(answer)
        if verdict != "auto":
            return verdict if is_page else ""
        if is_page and await self.refusal(task, answer, answer.body):
            return ""
        try:
            why = emptiness(answer.body, answer.content_type) if is_page else ""
        except Exception:  # its URL would be fetched again and again
            log.exception("look_broken", url=task.row.url, then="kept as it was sent")
            return ""
        if not why and answer.validators is not None:
            answer.validators = msgspec.structs.replace(answer.validators, is_whole=True)
        return why

    async def refusal(self, task: "Task", answer: "Answer", body: bytes) -> str:
        """Why an answer's HTML must not be parsed: it might block the loop. A cancellation gives the memory back."""
        try:
            return await self._trial.refusal(body, answer.content_type, task.host.domain)
        except TrialError as error:
            log.warning("page_untried", url=task.row.url, error=str(error), then="not looked at")
            return f"{TOO_COMPLEX}: nobody knows"
        except BaseException:
            answer.held.give()
            raise

    async def render(self, task: "Task", answer: "Answer", why: str) -> None:
        """Replace the body by the rendered page.

        Raises: LeaseLost: the worker may no longer send the page's requests, or report a failure.
        """
        sent = answer.body
        try:
            reach = Reach(task.job.spec, self._hosts.place(task.row.url))
            page = JobPage(task.job.name, task.epoch, reach, task.policy, task.request)
            await self._browser().render(task.row.url, answer, why, page)
            if answer.render_error and not self._client.may_ask():
                raise LeaseLost  # as in `Client.get`: its time ran out while this process was stopped
        except BaseException:  # also on cancellation: only this frame can give the memory back
            answer.held.give()
            raise
        if answer.body is not sent:
            answer.held.give()
            answer.held = self._client.bodies.count(len(answer.body) if len(answer.body) > FREE_BYTES else 0)

    def _browser(self) -> Renderer:
        if self._renderer is None:
            resources = Resources(self._settings, self._client, self._hosts, self._ask_rules, self._transport)
            self._renderer = Renderer(self._settings, resources)
        return self._renderer

    async def close(self) -> None:
        """End the browser, and the child that tries pages."""
        self._trial.close()
        if self._renderer is not None:
            await self._renderer.close()
