"""Pages that the quotes site lacks and Scrapy's users meet: errors, redirects, cookies, an echo, feeds, a shop.

Each answer depends on the request alone, but for `/flaky`, which counts.
"""

import gzip
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flask import Blueprint, Flask

SHOP = {
    "tools": [("hammer", 12.5, False), ("saw", 20.0, True), ("nails", 0.0, True), ("pliers", 9.99, True)],
    "garden": [("rake", 15.0, True), ("hose", 31.25, False), ("hammer", 12.5, False)],
}
"""Section → name, price (0 for none) and whether it excludes VAT; the hammer is in two."""

XML = """<?xml version="1.0" encoding="UTF-8"?>
<feed xmlns:x="urn:extra">{}</feed>"""

NODE = '<item id="{0}"><name>Thing {0}</name><description>No. {0} &amp; more</description><x:rank>{1}</x:rank></item>'

SITEMAP = '<?xml version="1.0"?>\n<{0} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:xhtml="http://www.w3.org/1999/xhtml">{1}</{0}>'


def add(app: "Flask", counts: Counter[str]) -> None:
    """Adds the pages to an application of Flask's.

    Args:
        counts: How often each address of `/flaky` was asked for.
    """
    from flask import Blueprint, Response

    pages = Blueprint("more", __name__)
    for part in (_answers, _bodies, _redirects, _cookies, _feeds, _sitemaps, _shop):
        part(pages)

    @pages.route("/flaky/<int:fails>/<key>")
    def fails_first(fails: int, key: str) -> Any:
        counts[key] += 1
        return Response(f"<h1>{key}</h1>", 503 if counts[key] <= fails else 200)

    app.register_blueprint(pages)


def _answers(app: "Blueprint") -> None:
    import time

    from flask import Response, jsonify, request

    @app.route("/status/<int:code>")
    def status(code: int) -> Any:
        return Response(f"<h1>{code}</h1>", code)

    @app.route("/slow/<float:seconds>")
    def slow(seconds: float) -> Any:
        time.sleep(seconds)
        return "<h1>late</h1>"

    @app.route("/echo", methods=["GET", "POST", "PUT", "DELETE", "PATCH"])
    def echo() -> Any:
        named = {name.lower(): value for name, value in request.headers if name.lower().startswith(("x-", "referer"))}
        about = ("Content-Type", "Accept-Language", "User-Agent", "Authorization")
        headers = {name.lower(): request.headers[name] for name in about if name in request.headers}
        body = request.get_data(as_text=True)
        return jsonify(
            method=request.method, args=request.args, headers=headers | named, cookies=request.cookies, body=body
        )


def _bodies(app: "Blueprint") -> None:
    from flask import Response, request

    @app.route("/latin")
    def latin() -> Any:
        return Response("<title>Käse für 5 £</title>".encode("latin-1"), content_type="text/html; charset=iso-8859-1")

    @app.route("/zipped")
    def zipped() -> Any:
        return Response(gzip.compress(b"<h1>packed</h1>"), headers={"Content-Encoding": "gzip"})

    @app.route("/private")
    def private() -> Any:
        login = request.authorization
        if login is None or (login.username, login.password) != ("ann", "hush"):
            return Response("who?", 401, {"WWW-Authenticate": 'Basic realm="r"'})
        return "<h1>inside</h1>"

    @app.route("/plain.txt")
    def plain() -> Any:
        return Response("one line\n", content_type="text/plain")

    @app.route("/picture.png")
    def picture() -> Any:
        return Response(b"\x89PNG\r\n\x1a\n" + bytes(64), content_type="image/png")


def _redirects(app: "Blueprint") -> None:
    from flask import Response, redirect, request

    @app.route("/hop/<int:count>", methods=["GET", "POST"])
    def hop(count: int) -> Any:
        return redirect(f"/hop/{count - 1}" if count > 1 else "/landed", int(request.args.get("code", 302)))

    @app.route("/landed", methods=["GET", "POST"])
    def landed() -> Any:
        return f"<h1>{request.method}</h1><p>{request.get_data(as_text=True)}</p>"

    @app.route("/to")
    def to() -> Any:
        return redirect(request.args["url"], 302)

    @app.route("/refresh")
    def refresh() -> Any:
        return Response('<meta http-equiv="refresh" content="0; url=/landed">')


def _cookies(app: "Blueprint") -> None:
    from flask import Response, jsonify, redirect, request

    @app.route("/cookies")
    def cookies() -> Any:
        return jsonify(request.cookies)

    @app.route("/cookies/set/<name>/<value>")
    def set_cookie(name: str, value: str) -> Any:
        answer = Response("<h1>set</h1>") if "stay" in request.args else redirect("/cookies")
        answer.set_cookie(name, value)
        return answer

    @app.route("/basket/<int:step>")
    def basket(step: int) -> Any:
        held = request.cookies.get("basket", "")
        answer = Response(f'<p class="held">{held}</p><a class="next" href="/basket/{step + 1}">next</a>')
        answer.set_cookie("basket", f"{held}{step}")
        return answer


def _feeds(app: "Blueprint") -> None:
    from flask import Response

    @app.route("/feed.xml")
    def xml() -> Any:
        nodes = "".join(NODE.format(number, number * number) for number in range(1, 6))
        return Response(XML.format(nodes), content_type="application/xml")

    @app.route("/feed.csv")
    def csv() -> Any:
        lines = [f"{number};'Thing {number}';'a ; b {number}'" for number in range(1, 6)]
        return Response("\n".join(lines) + "\n", content_type="text/csv")

    @app.route("/lines.jsonl")
    def lines() -> Any:
        return Response("".join(json.dumps({"n": number}) + "\n" for number in range(4)), content_type="text/plain")


def _sitemaps(app: "Blueprint") -> None:
    from flask import Response, request

    def answer(kind: str, locations: str) -> Any:
        return Response(SITEMAP.format(kind, locations), content_type="application/xml")

    @app.route("/robots.txt")
    def robots() -> Any:
        root = request.host_url
        text = (
            f"User-agent: *\nDisallow: /forbidden\nSitemap: {root}sitemap_index.xml\nSitemap: {root}sitemap_shop.xml\n"
        )
        return Response(text, content_type="text/plain")

    @app.route("/forbidden")
    def forbidden() -> Any:
        return "<h1>forbidden</h1>"

    @app.route("/sitemap_index.xml")
    def index() -> Any:
        maps = "".join(
            f"<sitemap><loc>{request.host_url}{name}</loc></sitemap>" for name in ("sitemap.xml", "sitemap_shop.xml")
        )
        return answer("sitemapindex", maps)

    @app.route("/sitemap.xml")
    def all_pages() -> Any:
        root = request.host_url
        alternate = f'<xhtml:link rel="alternate" hreflang="de" href="{root}tag/love/"/>'
        years = [("", 2001), ("page/2/", 2004), ("page/3/", 2006), ("author/Albert-Einstein/", 2010)]
        urls = "".join(
            f"<url><loc>{root}{path}</loc><lastmod>{year}-01-01</lastmod>{alternate if not path else ''}</url>"
            for path, year in years
        )
        return answer("urlset", urls)

    @app.route("/sitemap_shop.xml")
    def shop() -> Any:
        paths = ["shop/tools", "shop/garden", *(f"shop/item/{name}" for name, _, _ in SHOP["tools"])]
        return answer("urlset", "".join(f"<url><loc>{request.host_url}{path}</loc></url>" for path in paths))


def _shop(app: "Blueprint") -> None:
    from flask import abort

    @app.route("/shop")
    def front() -> Any:
        links = "".join(f'<li><a class="category" href="/shop/{name}">{name}</a></li>' for name in SHOP)
        return (
            f'<h1>Shop</h1><ul>{links}</ul><a href="/shop/old/subsection">old</a><a href="http://127.0.0.2:9/">far</a>'
        )

    @app.route("/shop/old/subsection")
    def old() -> Any:
        return "<h1>old</h1>"

    @app.route("/shop/<section>")
    def section(section: str) -> Any:
        if section not in SHOP:
            abort(404)
        rows = "".join(
            f'<tr class="row"><td><a href="/shop/item/{name}?from={section}">{name}</a></td>'
            f'<td class="price">{price or ""}</td></tr>'
            for name, price, _ in SHOP[section]
        )
        return f'<h1>{section}</h1><table>{rows}</table><a href="/shop">back</a>'

    @app.route("/shop/item/<name>")
    def item(name: str) -> Any:
        [found] = {one for rows in SHOP.values() for one in rows if one[0] == name}
        price = f'<p id="price" data-net="{int(found[2])}">€ <b>{found[1]}</b></p>' if found[1] else ""
        return (
            f'<table><tr><td id="item_id">ID: {sum(map(ord, name))}</td><td id="item_name">--{name}--</td>'
            f'<td id="item_description">a {name}, <i>good</i> </td></tr></table>{price}<p id="stock">7 left</p>'
            f'<a id="more" href="/shop/item/{name}/more">more</a><footer><a class="social" href="/f">F</a>'
            '<a class="social" href="/t">T</a><a class="email" href="mailto:a@b.c">Mail</a></footer>'
        )

    @app.route("/shop/item/<name>/more")
    def more(name: str) -> Any:
        return f'<p id="additional_data">more of {name}</p>'
