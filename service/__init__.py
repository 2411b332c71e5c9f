"""The HTTP microservice: one node is one process with one journal."""
