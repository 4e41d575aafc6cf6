"""Self-contained HTML pages from the templates beside this file."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, **values: Any) -> str:
    """The page that a template makes of the values; texts are escaped, and a value that is missing is an error."""
    environment = Environment(
        loader=PackageLoader("mining"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": "{:,}".format, "score": "{:.3f}".format, "percent": "{:.1%}".format}
    return environment.get_template(template).render(**values)
