"""Self-contained HTML pages from the templates of a package, around the one in `closecall/templates`."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def render(package: str, template: str, **values: Any) -> str:
    """The page that a template makes of the values; texts are escaped, and a value that is missing is an error."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("closecall")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": "{:,}".format, "score": "{:.3f}".format, "percent": "{:.1%}".format}
    environment.filters["points"] = lambda value: f"{100 * value:.1f}"
    environment.filters["signed"] = lambda value: f"{100 * value:+.1f}"
    return environment.get_template(template).render(**values)


def script_policy(script: str) -> str:
    """The source of a Content-Security-Policy that lets this script run and no other."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"
