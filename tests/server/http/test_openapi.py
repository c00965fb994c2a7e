"""The OpenAPI document: it has every route and no other, and answers are as it says."""

import re
from typing import Any

from starlette.routing import Route

import runnel
from runnel.server import http
from runnel.server.http.openapi import SPECIFICATION
from tests.server.http.browser import web


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is as a schema of the document says: as much of JSON Schema as it uses."""
    if "$ref" in schema:
        return fits(value, SPECIFICATION["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "oneOf" in schema:
        return sum(fits(value, one) for one in schema["oneOf"]) == 1
    kinds = {"string": str, "integer": int, "array": list, "object": dict, "null": type(None)}
    wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not isinstance(value, tuple(kinds[one] for one in wanted)):
        return False
    if isinstance(value, dict):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties")
        known = all(name in properties or more for name in value) if properties or more else True
        return (
            known
            and all(name in value for name in schema.get("required", ()))
            and all(fits(one, properties.get(name, more)) for name, one in value.items() if properties or more)
        )
    if isinstance(value, list):
        return all(fits(one, schema["items"]) for one in value)
    return "enum" not in schema or value in schema["enum"]


async def test_it_has_every_route_and_no_other() -> None:
    async with runnel.open() as broker:
        routes = [one for one in http.app(broker).routes if isinstance(one, Route)]
    served = {(re.sub(r":path", "", one.path), "post" if one.methods == {"POST"} else "get") for one in routes}
    assert served == {(path, method) for path, ways in SPECIFICATION["paths"].items() for method in ways}


async def test_answers_are_as_it_says() -> None:
    async with web() as (_, client):
        assert (await client.get("/openapi.json")).json() == SPECIFICATION
        publish = SPECIFICATION["paths"]["/topics/{topic}"]["post"]["responses"]["201"]
        schema = publish["content"]["application/json"]["schema"]
        headers = {"Runnel-Key": "%ff", "Runnel-Header-a": "b"}
        assert fits((await client.post("/topics/t", content=b"\xff", headers=headers)).json(), schema)
        many = {"content-type": "application/x-ndjson"}
        assert fits((await client.post("/topics/t", content=b"1\n2", headers=many)).json(), schema)
        for path, schema in (
            ("/topics/t/records?limit=1", {"$ref": "Records"}),
            ("/topics", {"$ref": "Topics"}),
            ("/healthz", {"$ref": "Status"}),
            ("/nothing", {"$ref": "Problem"}),
            ("/topics/u/records", {"$ref": "Problem"}),
        ):
            answer = (await client.get(path)).json()
            assert fits(answer, schema), (path, answer)
            assert not fits(answer | {"surprise": 1}, schema)


def test_every_reference_is_there() -> None:
    named = set(re.findall(r"#/components/(\w+)/(\w+)", str(SPECIFICATION)))
    assert named == {(kind, name) for kind, some in SPECIFICATION["components"].items() for name in some}
