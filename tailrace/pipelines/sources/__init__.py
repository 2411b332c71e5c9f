"""Sources of segments: a store, a service over HTTP, or memory in tests of appenders."""
