"""Parquet files of which some columns, or the footer as well, are encrypted."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe


class _NoKms(pe.KmsClient):
    """Keys "wrapped" by base64: the files need not be safe."""

    def __init__(self, config: pe.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def write_encrypted(
    path: Path, table: pa.Table, leaves: Sequence[str], plain_footer: bool = True
) -> Path:
    """Write a file of one row group; `leaves` are encrypted by a key of their own."""
    settings = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"c": list(leaves)}, plaintext_footer=plain_footer
    )
    properties = pe.CryptoFactory(_NoKms).file_encryption_properties(
        pe.KmsConnectionConfig(), settings
    )
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return path
