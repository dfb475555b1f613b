"""The output and error files of a batch, from its results."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from gateway.batches.records import Batch
from gateway.batches.results import Results
from gateway.files.contents import Contents
from gateway.files.records import Purpose, StoredFile

_WRITE_BYTES = 1024**2


async def publish_files(batch: Batch, results: Results, contents: Contents, now: datetime) -> Sequence[StoredFile]:
    """Publish the contents of the files that are not empty. Their rows are the caller's to insert. Again: the same
    files."""
    made = [await asyncio.to_thread(_publish, batch, results, contents, kind, now) for kind in ("output", "error")]
    return [file for file in made if file is not None]


def _publish(batch: Batch, results: Results, contents: Contents, kind: str, now: datetime) -> StoredFile | None:
    content = contents.create()
    try:
        part = bytearray()
        for line in results.outputs(errors=kind == "error"):
            part += line
            if len(part) >= _WRITE_BYTES:
                content.write(bytes(part))
                part.clear()
        content.write(bytes(part))
        if not content.size:
            return None
        file_id = batch.file_id(kind)
        size, sha256 = content.size, content.sha256
        content.publish(batch.tenant_id, file_id)
    finally:
        content.discard()
    expires_at = now + timedelta(seconds=batch.output_life_s)
    filename = f"{batch.id}_{kind}.jsonl"
    return StoredFile(file_id, batch.tenant_id, filename, Purpose.BATCH_OUTPUT, size, sha256, now, expires_at)
