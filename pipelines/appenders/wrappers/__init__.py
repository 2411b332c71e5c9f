"""Wrappers: appenders that give their events on to another one, which stands under `to`.

filter  leaves events out (`narrowing`)      mask   replaces text by regular expression (`masking`)
retry   tries again by itself (`retrying`)   async  does not wait for the wrapped one (`queueing`)

They can be put into each other. The state of a checkpoint is that of the wrapped appender, so
what it does exactly once it does exactly once in a wrapper as well.
"""
