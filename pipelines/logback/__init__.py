"""logback's configurations as pipelines' files: `tailrace pipelines import logback.xml`."""
