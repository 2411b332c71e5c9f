"""Doors: routes of other log stores, by which their clients write without knowing Tailrace.

`records` sorts what arrives into batches of runs, `routes` reads, admits, stores and answers.
`repeats` recognises what is sent again. Each protocol has a module: `otlp`, `loki`,
`elasticsearch` and `splunk`.
"""
