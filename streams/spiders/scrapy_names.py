"""Scrapy's names that crawlog does not have, each with its replacement.

A name without effect would silently change a crawl: it would go further than `allowed_domains` says, or faster than
`download_delay`. So such names are refused when the spider is loaded, before the first request.
"""

import ast
from collections.abc import Iterator
from types import ModuleType

OF_SPIDER = {
    "allowed_domains": 'settings = {"scope.kind": "host"}, "domain" (the default: the registrable domains of the seeds)'
    ' or "any"; "scope.include" and "scope.exclude" take expressions',
    "custom_settings": 'settings = {"politeness.delay_s": 2}, with the names that `crawlog settings` lists',
    "start_requests": 'start_urls = ["https://…"], URLs on the command line, or `crawlog run --seeds FILE`',
    "start": 'start_urls = ["https://…"], URLs on the command line, or `crawlog run --seeds FILE`',
    "closed": "a worker has no end of the crawl; do it once `crawlog run` has ended",
    "from_crawler": "there is no crawler; write an __init__ without arguments, and settings = {…}",
    "update_settings": 'settings = {"politeness.delay_s": 2}, with the names that `crawlog settings` lists',
    "download_delay": 'settings = {"politeness.delay_s": 2}',
    "download_timeout": 'settings = {"fetch.timeout_s": 30}',
    "download_maxsize": 'settings = {"fetch.max_body_bytes": 8388608}',
    "max_concurrent_requests": 'settings = {"politeness.per_host": 1}, and "fetch.concurrency" for a whole worker',
    "user_agent": 'settings = {"fetch.user_agent": "…"}',
    "http_user": "fetch.logins, in the environment or in crawlog.toml",
    "http_pass": "fetch.logins, in the environment or in crawlog.toml",
}
"""Attributes and methods of a spider."""

METHODS = frozenset({"start_requests", "start", "closed", "from_crawler", "update_settings"})
"""Those of them that are methods. A plain attribute of such a name is the user's own, and allowed."""

CALLBACKS = "there are no callbacks: `parse` gets each page; tell pages apart by response.url, or by what is on them"
CARRIED = "nothing travels with a request: `parse` has response.url and the page"

OF_REQUEST = {
    "callback": CALLBACKS,
    "errback": "failures do not come to `parse`; handle_httpstatus_list = [404] has it called for that status",
    "cb_kwargs": CARRIED,
    "meta": CARRIED,
    "flags": CARRIED,
    "method": "only GET is sent",
    "body": "only GET is sent, without a body",
    "headers": "fetch.headers are sent with every request",
    "cookies": 'settings = {"fetch.cookies": True} keeps those that sites set',
    "dont_filter": "a URL is fetched once in a job; `crawlog run --fresh` fetches all of them again",
    "encoding": "a query is sent in the encoding of its page; leave it out",
}
"""Arguments of a request."""

OF_RESPONSE = {
    "xpath": "selectors are CSS: response.css('a'), response.css_first('h1')",
    "selector": "response.tree is the document, as selectolax parses it",
    "follow_all": "for node in response.css('a'): yield response.follow(node)",
    "meta": CARRIED,
    "cb_kwargs": CARRIED,
    "request": CARRIED,
    "flags": CARRIED,
    "encoding": "response.text is decoded as browsers do",
    "jmespath": "response.json() is the body as Python values",
}
"""Attributes and methods of a response."""

OF_LIST = frozenset(
    {"get", "getall", "extract", "extract_first", "xpath", "re", "re_first", "attrib", "css", "css_first", "text",
     "attributes", "html"}
)  # fmt: skip
"""Names that Scrapy's lists or one node have, and a list of nodes does not."""

OF_SELECTOR = {
    "::text": "node.text() is a node's text",
    "::attr": "node.attributes['href'] is an attribute of a node",
    "//": "there is no XPath",
    ":contains": 'write :lexbor-contains("x")',
    ":first": "css_first gives the first node",
}
"""Parts of invalid selectors, each with the replacement."""

IMPORT = "crawlog has its own: `from crawlog import Request, Spider`"


def of_spider(spider: object) -> Iterator[str]:
    """A line for each of Scrapy's names on a spider, with the replacement."""
    for name, way in OF_SPIDER.items():
        if hasattr(spider, name) and (name not in METHODS or callable(getattr(spider, name))):
            yield f"{type(spider).__name__}.{name} does nothing here: {way}"


def of_requests(source: bytes, module: ModuleType, spider: object, request: type) -> Iterator[str]:
    """A line for each of Scrapy's arguments in a request, with the replacement.

    Args:
        source: Of the spider's file.
        module: The same file, after it was run.
        request: The class of crawlog's requests.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _makes_request(node.func, module, request):
            second = node.args[1] if len(node.args) > 1 else None
            names = ["callback"] if second is not None and _is_callback(second, spider) else []
            names += [keyword.arg for keyword in node.keywords if keyword.arg in OF_REQUEST]
            yield from (f"line {node.lineno}: {name} does nothing here: {OF_REQUEST[name]}" for name in names)


def _makes_request(called: ast.expr, module: ModuleType, request: type) -> bool:
    """Whether this is crawlog's Request, under any name, or a response's follow."""
    match called:
        case ast.Name(id=name):
            return vars(module).get(name) is request
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            of = vars(module).get(name)
            return getattr(of, attribute, None) is request or (attribute == "follow" and name != "self")
    return False


def _is_callback(argument: ast.expr, spider: object) -> bool:
    match argument:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return callable(getattr(spider, name, None))
    return isinstance(argument, ast.Lambda)


def of_selector(selector: str) -> str:
    """Why a selector is invalid, by its parts; a line of code with the selector will do."""
    ways = [way for part, way in OF_SELECTOR.items() if part in selector]
    return "; ".join(ways) or "it is not a CSS selector"


def of_list(selector: str, name: str) -> str:
    """The message about an attribute that a list of nodes does not have."""
    if name not in OF_LIST:
        return f"'Nodes' object has no attribute {name!r}"
    return (
        f"css({selector!r}) is a list of nodes, and has no {name}: go through it, or take css_first({selector!r});"
        " node.text() and node.attributes['href'] are what a node holds"
    )
