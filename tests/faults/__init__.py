"""A proxy that stands between us and a real S3 server, and misbehaves by a seeded schedule.

    client ── HTTP/1.1 ── FaultProxy ── HTTP/1.1 ── MinIO
                              │
                          Schedule: which fault meets which request

Bytes pass unchanged, the Host header too: clients sign for the proxy's address, and a server
asked by path style checks the signature over whatever Host it is given.

`kinds` says what can go wrong and which lies are lawful, `schedule` when, `requests` what is
known of a request, `http1` how messages are cut from a stream, `answers` what S3 says when
it refuses, `exchange` how a fault is played, `proxy` who listens, `thread` runs a proxy
beside tests that have no loop of their own. `python -m tests.faults` is the same as a process.

`link` knows nothing of S3: a way between two programs that can be cut, as a network can.
"""
