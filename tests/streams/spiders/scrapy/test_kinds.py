"""The classes of items and requests that are looked up by name."""

from types import ModuleType

import pytest
import scrapy
from scrapy.http import FormRequest

from crawlog.streams.spiders.scrapy.kinds import Kinds


class ApiRequest(scrapy.Request):
    """Of a package that several projects share."""


class Product(scrapy.Item):
    """The same."""

    name = scrapy.Field()


@pytest.fixture
def kinds() -> Kinds:
    """Of a project whose spider imports these, and some of Scrapy's."""
    module = ModuleType("shop")
    vars(module).update(
        ApiRequest=ApiRequest, Product=Product, FormRequest=FormRequest, Request=scrapy.Request, Item=scrapy.Item
    )
    return Kinds([("spider", module)])


def test_requests_of_a_class_that_the_project_imports_travel(kinds: Kinds) -> None:
    """Those of Scrapy's own classes keep their names."""
    requests = [kind("http://a.test/") for kind in (ApiRequest, FormRequest, scrapy.Request)]
    names = [kinds.of_request(request) for request in requests]
    assert names == ["spider:ApiRequest", "scrapy.http.request.form:FormRequest", ""]
    assert [kinds.request(name) for name in names] == [ApiRequest, FormRequest, scrapy.Request]


def test_items_of_a_class_that_the_project_imports_travel(kinds: Kinds) -> None:
    """As the same class."""
    packed = kinds.values.packed(Product(name="a"))
    assert packed == {"$item": ["spider:Product", {"name": "a"}]}
    assert kinds.values.unpacked(packed) == Product(name="a")
    assert kinds.values.packed(scrapy.Item()) == {"$item": ["scrapy.item:Item", {}]}


def test_a_class_that_the_project_does_not_import_is_refused() -> None:
    """With the way to do it."""
    with pytest.raises(TypeError, match="define or import it there"):
        Kinds([]).of_request(ApiRequest("http://a.test/"))
