"""OpenTelemetry's operators: what they parse becomes time, level, attributes and message."""
