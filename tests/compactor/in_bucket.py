"""What a server holds of a store, asked without the store."""

from __future__ import annotations

from typing import Any

from tests.compactor.lake import Lake


def uploads(lake: Lake) -> list[str]:
    assert lake.bucket is not None
    client = lake.bucket.client()
    found = client.list_multipart_uploads(Bucket=lake.bucket.name).get("Uploads", [])
    client.close()
    return [upload["Key"] for upload in found]


def objects(lake: Lake) -> dict[str, dict[str, Any]]:
    """Every key below the prefix as the server knows it, markers of folders too."""
    assert lake.bucket is not None
    client, name = lake.bucket.client(), lake.bucket.name
    listed = client.list_objects_v2(Bucket=name)["Contents"]
    found = {entry["Key"]: client.head_object(Bucket=name, Key=entry["Key"]) for entry in listed}
    client.close()
    return {key.removeprefix(f"{lake.bucket.prefix}/"): head for key, head in found.items()}
