"""Files that run a crawl of Scrapy's by themselves when they are loaded, as scripts do.

Each process that loads such a file would crawl the site, beside the log and without its rules.
"""

import ast
from collections.abc import Iterator

from crawlog.streams.errors import Misconfigured


def check(path: object, source: bytes) -> None:
    """Raises: Misconfigured: the file starts a crawl outside of `if __name__ == "__main__":`."""
    if b"scrapy.crawler" not in source:
        return
    try:
        nodes = list(_run_at_once(ast.parse(source)))
    except (SyntaxError, ValueError):
        return  # told of when it is run
    made = {target.id for node in nodes if isinstance(node, ast.Assign) for target in _names(node)}
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=("start" | "run") as verb)) if (
                name in made | {"reactor"}
            ):
                raise Misconfigured(
                    f"--spider {path} cannot be loaded: line {node.lineno}: {name}.{verb}() would crawl by "
                    'Scrapy in each process that loads the file: write it below `if __name__ == "__main__":`, and give '
                    "settings of the process as custom_settings of the spider"
                )


def _run_at_once(module: ast.Module) -> Iterator[ast.AST]:
    """All parts of a file but functions, classes, and what stands below a look at `__name__`."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        is_guarded = isinstance(node, ast.If) and "__name__" in ast.dump(node.test)
        if not is_guarded and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            waiting += ast.iter_child_nodes(node)


def _names(node: ast.Assign) -> Iterator[ast.Name]:
    """The names that a process of Scrapy's is given."""
    match node.value:
        case ast.Call(func=ast.Name(id=kind) | ast.Attribute(attr=kind)) if kind.endswith("CrawlerProcess"):
            yield from (target for target in node.targets if isinstance(target, ast.Name))
