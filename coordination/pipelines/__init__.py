"""What is stored about log pipelines: what operators said, and how far each appender is."""
