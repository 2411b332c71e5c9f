"""The configuration of `tailrace forward`: YAML to frozen models, with errors that name the key."""
