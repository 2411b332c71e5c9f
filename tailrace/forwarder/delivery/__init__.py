"""Sends batches to one of several services until the outcome of each is definite.

targets   the services, the one in use, a single request and its outcome
delivery  the queues of the files, and the threads that send
"""
