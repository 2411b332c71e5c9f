"""The object store as this node meets it."""

from __future__ import annotations

from service.metrics.declared import Declared, counter, gauge, histogram

STORE: tuple[Declared, ...] = (
    counter(
        "store_requests",
        "Calls of the object store that have ended: done, refused (an answer: a condition "
        "failed or nothing was there), failed, unknown (it may have happened), left by the caller.",
        lambda s: s.store.requests,
        "operation",
        "outcome",
    ),
    gauge(
        "store_running",
        "Calls of the object store that have no answer yet.",
        lambda s: s.store.running,
        "operation",
    ),
    histogram(
        "store_seconds",
        "Time of calls of the object store, whatever came of them.",
        lambda s: s.store.seconds,
        "operation",
    ),
    counter(
        "store_sent_bytes",
        "Bytes of bodies handed to the object store, also by calls that failed.",
        lambda s: s.store.sent,
        "operation",
    ),
    counter(
        "store_received_bytes",
        "Bytes of objects got from the object store.",
        lambda s: s.store.received,
        "operation",
    ),
    counter(
        "store_composed_bytes",
        "Bytes that the object store copied within itself.",
        lambda s: s.store.composed,
        "operation",
    ),
    counter(
        "s3_requests",
        "Requests to S3, every try counted: what calls of the object store cost.",
        lambda s: s.store.s3_requests,
        "operation",
    ),
    gauge(
        "store_clock_ahead_seconds",
        "How far this node's clock is ahead of the store's, negative if behind; 0 for a folder.",
        lambda s: s.node.skew.ahead_ms / 1000,
    ),
)
