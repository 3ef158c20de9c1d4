"""Digests by which runs, learning and parts are known again: those that records are sealed with."""

from __future__ import annotations

from simfed.record.digest import digest_of, digest_of_text, file_digest, folder_digest

__all__ = ["digest_of", "digest_of_text", "file_digest", "folder_digest"]
