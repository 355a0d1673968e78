"""Imports mutated exports through the API, each into a tenant of its own, and compares what is stored.

The oracle is the import of the unmutated units; that it has all of their texts is a check of its own.
"""

import itertools
import json
import re
from collections import Counter, defaultdict
from typing import Any

from app.transfer.importers.service import ForeignSystem
from tests.soak.export_units import ExportUnit, sample_units, texts_of
from tests.soak.mutated_exports import MutatedExport, mutated_export, unmutated
from tests.support.api import Client, Service

_MARK = re.compile(r"-u\d+s\d+-")
_OF_INSTALLATION = frozenset({
    "id", "conversation_id", "salt", "content_hash", "chain_hash", "head_hash", "superseded_by", "supersedes", "rev",
    "token_epoch", "updated_at", "recorded_at", "last_repeated_at", "prev_hash", "hash", "tokens", "committed_at",
})  # fmt: skip
NOT_IMPORTED = {"zep": {"fact"}, "letta": {"system"}}
"""Members with texts that an importer leaves out: a sentence of an edge, and the instructions beside the messages."""
SYSTEMS = (*ForeignSystem, "langgraph_store")
Records = dict[str, list[dict[str, Any]]]


class ImportFault(AssertionError):
    """A file whose import breaks the promise."""


async def stored_records(client: Client) -> Records:
    """Return the records of a tenant by the marks that they bear."""
    answer = await client.post("/v1/export", json={"created_at": "2026-01-01T00:00:00Z"})
    assert answer.status_code == 200, answer.text
    records: Records = defaultdict(list)
    conversation: list[dict[str, Any]] = []
    for line in answer.content.split(b"\n")[1:-2]:
        record = json.loads(line)
        if record["type"] in {"turn", "summary"}:
            conversation.append(record)
            continue
        _add(records, conversation)
        conversation = [record]
    _add(records, conversation)
    return records


def _add(records: Records, group: list[dict[str, Any]]) -> None:
    for mark in sorted(set(_MARK.findall(json.dumps(group)))) or [""]:
        records[mark] += group


def comparable(records: list[dict[str, Any]]) -> list[str]:
    """Return the records without what the installation gives, grouped by conversation."""
    groups: list[list[str]] = []
    for record in records:
        left_out = (
            _OF_INSTALLATION if record["type"] in {"conversation", "memory"} else _OF_INSTALLATION | {"created_at"}
        )
        members = {name: value for name, value in record.items() if name not in left_out}
        members |= {"superseded": "superseded_by" in record}
        if record["type"] == "fact_decision":
            continue
        if record["type"] != "turn":
            groups.append([])
        groups[-1].append(json.dumps(members, sort_keys=True))
    return ["\n".join(group) for group in sorted(groups)]


async def imported_body(service: Service, client: Client, system: str, body: bytes) -> dict[str, Any]:
    """Return the result of an import, or the problem of a refused file."""
    source = system.removesuffix("_store")
    answer = await client.post("/v1/import", content=body, params={"source": source})
    if answer.status_code != 202:
        assert answer.status_code < 500, answer.text
        return {"refused": answer.json(), "problems": []}
    await service.run_jobs()
    ended = (await client.get(f"/v1/operations/{answer.json()['id']}")).json()
    assert ended["status"] == "succeeded", ended
    return ended["result"]


async def expected_records(service: Service, system: str) -> dict[str, list[str]]:
    """Return what an import of the unmutated units stores, by mark, after a check of their texts."""
    body, units = unmutated(system, len(sample_units(system)))
    async with await service.new_tenant() as client:
        result = await imported_body(service, client, system, body)
        assert result["problems"] == [], result
        records = await stored_records(client)
    for unit in units:
        missing = _missing_texts(system, unit, unit.values, records[unit.mark])
        assert records[unit.mark], (system, unit.mark)
        assert not missing, (system, unit.mark, missing)
    return {mark: comparable(group) for mark, group in records.items()}


def _missing_texts(system: str, unit: ExportUnit, values: Any, records: list[dict[str, Any]]) -> list[str]:
    left_out = NOT_IMPORTED.get(system, set())
    values = [
        {k: v for k, v in value.items() if k not in left_out} if isinstance(value, dict) else value for value in values
    ]
    stored = json.dumps(records)
    return sorted(text for text in texts_of(values, unit.mark) if json.dumps(text)[1:-1] not in stored)


async def check_file(
    service: Service, system: str, expected: dict[str, list[str]], *, seed: int, number: int
) -> Counter[str]:
    """Import the file of a number, and return what was counted. Raises ImportFault."""
    export = mutated_export(system, seed, number)
    where = f"{system} seed {seed} file {number} ({export.mutation}, {export.encoding}, {export.wrapping})"
    async with await service.new_tenant() as client:
        try:
            result = await imported_body(service, client, system, export.body)
        except AssertionError as error:
            raise ImportFault(f"{where}: {error}") from error
        records = await stored_records(client)
    counts = Counter({"files": 1, "good": len(export.good), "odd": len(export.pointers), "refused files": 0})
    if "refused" in result:
        if export.good:
            raise ImportFault(f"{where}: refused with {len(export.good)} good units: {result['refused']}")
        counts["refused files"] += 1
        fields = result["refused"].get("errors", [])
        result["problems"] = [{"id": field["detail"], "errors": [field]} for field in fields]
    faults = [
        f"good unit {unit.mark} differs: {_difference(comparable(records[unit.mark]), expected[unit.mark])}"
        for unit in export.good
        if comparable(records[unit.mark]) != expected[unit.mark]
    ]
    for mark, pointers in export.pointers.items():
        is_named = _is_named(mark, pointers, result)
        is_stored = bool(records.get(mark)) or (_may_lose_mark(export, mark) and bool(records.get("")))
        counts["odd stored"] += is_stored
        counts["odd named"] += is_named
        if not is_stored and not is_named:
            faults.append(f"{mark} at {sorted(pointers)} is neither stored nor named")
    if faults:
        raise ImportFault(f"{where}: {faults}; {json.dumps(result.get('problems'))[:600]}")
    return counts


def _may_lose_mark(export: MutatedExport, mark: str) -> bool:
    """Return whether a mutation may have removed what bears the mark in the records of a unit."""
    values = export.texts.get(mark)
    return values is not None and (not texts_of(values, mark) or "source_node" in json.dumps(values))


def _difference(stored: list[str], expected: list[str]) -> str:
    """Return the first lines that differ."""
    pairs = itertools.zip_longest("\n".join(stored).split("\n"), "\n".join(expected).split("\n"))
    first, second = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
    return f"{first} instead of {second}"


def _is_named(mark: str, pointers: set[str], result: dict[str, Any]) -> bool:
    """Return whether a problem has the id of a unit, or a place in it; of a refused file, the place of the file."""
    problems, refused_at = result["problems"], "" if "refused" in result else None
    for problem in problems:
        if mark in str(problem.get("id")):
            return True
        for place, pointer in itertools.product([error["pointer"] for error in problem["errors"]], pointers):
            if place in {pointer, refused_at} or place.startswith(f"{pointer}/"):
                return True
    return False


async def check_system(
    service: Service, system: str, *, seed: int, first: int, files: int
) -> tuple[Counter[str], list[str]]:
    """Check the files of a system; return the counts and the faults."""
    expected = await expected_records(service, system)
    counts, faults = Counter[str](), list[str]()
    for number in range(first, first + files):
        try:
            counts += await check_file(service, system, expected, seed=seed, number=number)
        except ImportFault as fault:
            faults.append(str(fault))
    return counts, faults
