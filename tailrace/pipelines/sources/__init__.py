"""Where segments come from: a store, a service over HTTP, or memory in tests of appenders."""
