"""What is known of each file, so that neither a crash nor a power cut loses or repeats a line."""
